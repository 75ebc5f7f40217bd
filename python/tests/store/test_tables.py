"""Tables: torch and NumPy arguments without copies, duplicate ids, and errors for invalid arguments.

test_optimizers.py compares the optimizers with torch's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import rowmill
from rowmill.errors import InvalidInput, StalenessTimeout
from rowmill.init import Constant, Uniform
from rowmill.optim import SGD

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def table(store: rowmill.Store) -> rowmill.Table:
    return store.table("t", dim=2, optimizer=SGD(lr=0.5), initializer=Constant(1.0))


def test_results_have_the_array_type_of_the_ids(table: rowmill.Table) -> None:
    tensor = table.get(torch.tensor([[1, 2, 3]]))
    assert isinstance(tensor, torch.Tensor)
    assert (tensor.shape, tensor.dtype) == ((1, 3, 2), torch.float32)
    array = table.get(np.array([1, 2, 3]))
    assert isinstance(array, np.ndarray)
    assert (array.shape, array.dtype) == ((3, 2), np.float32)
    assert table.get([]).shape == (0, 2)
    assert isinstance(table.contains(torch.tensor([1])), torch.Tensor)


def test_reading_unseen_ids_inserts_nothing(table: rowmill.Table) -> None:
    assert table.get([7]).tolist() == [[1.0, 1.0]]
    assert len(table) == 0
    assert table.get_or_init([7, 7]).tolist() == [[1.0, 1.0]] * 2
    assert len(table) == 1
    assert table.contains([7, 8]).tolist() == [True, False]


def test_results_are_written_into_the_callers_array(table: rowmill.Table) -> None:
    out = torch.full((2, 2), 9.0)
    assert table.get(torch.tensor([1, 2]), out=out) is out
    assert out.tolist() == [[1.0, 1.0]] * 2
    array = np.full((2, 2), 9.0, np.float32)
    assert table.get_or_init(np.array([1, 2]), out=array) is array
    assert array.tolist() == [[1.0, 1.0]] * 2


def test_ids_are_distinguished_by_all_64_bits(table: rowmill.Table) -> None:
    ids = np.array([0, 2**32, 2**63, 2**64 - 1], np.uint64)
    table.put(ids, np.arange(8, dtype=np.float32).reshape(4, 2))
    assert table.get(ids).reshape(-1).tolist() == list(range(8))
    assert table.get([-1]).tolist() == [[6.0, 7.0]]
    assert len(table) == 4


def test_the_last_duplicate_of_a_put_wins_and_gradients_of_duplicates_are_summed(
    table: rowmill.Table,
) -> None:
    table.put([5, 5], np.array([[1, 1], [2, 2]], np.float32))
    assert table.get([5]).tolist() == [[2.0, 2.0]]
    table.rmw([5, 6, 5], np.array([[1, 0], [0, 1], [1, 4]], np.float32))
    assert table.get([5, 6]).tolist() == [[1.0, 0.0], [1.0, 0.5]]
    table.rmw([5], np.ones((1, 2), np.float32), lr=2.0)
    assert table.get([5]).tolist() == [[-1.0, -2.0]]


def test_delete_returns_the_number_of_deleted_rows(table: rowmill.Table) -> None:
    table.get_or_init([1, 2, 3])
    assert table.delete([1, 1, 2, 9]) == 2
    assert (len(table), table.contains([1, 3]).tolist()) == (1, [False, True])


def test_scan_visits_every_row_once(table: rowmill.Table) -> None:
    ids = torch.arange(1000) * 7919
    values = torch.rand(1000, 2)
    table.put(ids, values)
    batches = list(table.scan(batch_rows=64))
    assert max(len(batch) for batch, _ in batches) <= 64
    seen = np.concatenate([batch for batch, _ in batches])
    rows = np.concatenate([batch for _, batch in batches])
    order = np.argsort(seen)
    assert (seen[order] == ids.numpy()).all()
    assert (rows[order] == values.numpy()).all()


def test_initial_values_depend_on_seed_table_and_id_only(tmp_path: Any) -> None:
    def rows(folder: str, seed: int, ids: list[int]) -> dict[int, list[float]]:
        with rowmill.open(tmp_path / folder, memory="16MiB", seed=seed) as store:
            table = store.table("t", dim=4, optimizer=SGD(lr=1.0), initializer=Uniform(-1.0, 1.0))
            return dict(zip(ids, table.get_or_init(ids).tolist(), strict=True))

    first, shuffled, other = (
        rows("a", 1, [1, 2, 3]),
        rows("b", 1, [3, 1, 2]),
        rows("c", 2, [1, 2, 3]),
    )
    assert first == shuffled
    assert first != other
    assert len({tuple(row) for row in first.values()}) == 3


def test_state_can_be_read_and_set(store: rowmill.Store) -> None:
    spec = rowmill.optim.Adagrad(lr=1.0, eps=0.0, initial_accumulator=0.25)
    table = store.table("a", dim=2, optimizer=spec, initializer=Constant(0.0))
    assert table.get_state([3]).tolist() == [[0.25, 0.25]]
    table.rmw([3], np.array([[1.0, 2.0]], np.float32))
    assert table.get_state([3]).tolist() == [[1.25, 4.25]]
    table.put_state([3], np.array([[3.0, 0.0]], np.float32))
    table.rmw([3], np.array([[1.0, 1.0]], np.float32))
    assert table.get_state([3]).tolist() == [[4.0, 1.0]]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda t: t.get(torch.tensor([1.0])), "ids must be int64, got a tensor of torch.float32"),
        (lambda t: t.get(np.array([1], np.int32)), "ids must be int64 or uint64, got int32"),
        (lambda t: t.get([1], out=np.empty((2, 2), np.float32)), r"out must have shape \(1, 2\)"),
        (lambda t: t.get(np.array([1]), out=np.empty((1, 2))), "out must be .*float32"),
        (
            lambda t: t.get(np.array([1]), out=np.empty((1, 4), np.float32)[:, ::2]),
            "out must be .*contig",
        ),
        (lambda t: t.put([1], np.zeros((1, 2))), "values must be float32, got float64"),
        (lambda t: t.put([1], torch.zeros(1, 2).half()), "values must be float32, got .*float16"),
        (lambda t: t.put([1, 2], np.zeros((1, 2), np.float32)), "values must have shape"),
        (lambda t: t.rmw([1], np.zeros(3, np.float32)), "gradients has 3 values, expected 2"),
        (lambda t: t.rmw([1], np.zeros(2, np.float32), lr=float("nan")), "lr"),
        (
            lambda t: t.put([1], np.array([1.0, np.inf], np.float32)),
            "values .* is inf at position 1",
        ),
        (
            lambda t: t.rmw([1], np.array([np.nan, 1.0], np.float32)),
            "gradients .* is NaN at position 0",
        ),
        (lambda t: t.lookahead([1], into="disk"), "into"),
        (lambda t: t.put([1, 2], [[1.0] * 2] * 4), r"values must have shape \(2, 2\)"),
        (lambda t: t.get([[1], [2, 3]]), "ids must be numbers in a regular shape"),
        (lambda t: t.get([1], out=[0.0, 0.0]), "out must be a tensor"),
        (lambda t: t.hottest(-1), "count must be"),
        (lambda t: t.lookahead([1], steps=0), "steps must be a whole number from 1"),
    ],
)
def test_invalid_arguments_are_named_and_change_nothing(
    table: rowmill.Table, call: Any, says: str
) -> None:
    table.get_or_init([1])
    with pytest.raises(InvalidInput, match=says):
        call(table)
    assert table.get([1]).tolist() == [[1.0, 1.0]]
    assert len(table) == 1


def test_arrays_may_begin_anywhere_if_they_are_empty_and_else_say_what_to_do(
    table: rowmill.Table,
) -> None:
    # At an odd address, where an empty `bytes` may lie too.
    ids = np.zeros(9, np.uint8)[1:].view(np.int64)
    assert not ids.flags.aligned
    assert table.get(ids[:0]).shape == (0, table.dim)
    with pytest.raises(InvalidInput, match="ids must begin at a multiple of 8 bytes: make a copy"):
        table.get(ids)


def test_an_id_outside_a_dense_table_is_named(store: rowmill.Store) -> None:
    table = store.table("d", dim=1, optimizer=SGD(lr=1.0), num_rows=10)
    assert table.get([0, 9]).shape == (2, 1)
    for id_ in (10, -1):
        with pytest.raises(InvalidInput, match=rf"id {id_} is outside table .*\[0, 10\)"):
            table.get_or_init([1, id_])
    assert len(table) == 0


def test_a_ticket_holds_rows_until_it_ends(table: rowmill.Table) -> None:
    store = table.store
    with store.ticket() as one:
        table.get_or_init([1, 1], ticket=one)
        with store.ticket() as two, pytest.raises(StalenessTimeout, match="id 1 "):
            table.get_or_init([1], ticket=two)
        table.rmw([1], np.ones((1, 2), np.float32), ticket=one)
        with store.ticket() as two:
            assert table.get_or_init([1], ticket=two).tolist() == [[0.5, 0.5]]
            with pytest.raises(StalenessTimeout):
                table.get_or_init([1], ticket=one)
        table.get_or_init([1, 2], ticket=one)
    with store.ticket() as three:
        table.get_or_init([1, 2], ticket=three)


def test_lookahead_changes_no_value(table: rowmill.Table) -> None:
    table.put([1], np.zeros((1, 2), np.float32))
    table.lookahead(torch.tensor([1, 2, 2]))
    table.lookahead([1], into="cache")
    assert table.get([1, 2]).tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert len(table) == 1


def test_a_queued_get_waits_for_the_update_of_a_held_row(store: rowmill.Store) -> None:
    table = store.table("owed", dim=2, optimizer=rowmill.optim.SGD(lr=1.0), staleness_bound=0)
    with store.ticket() as now, store.ticket() as coming:
        before = table.get_or_init(torch.tensor([1, 2]), ticket=now)
        queued = table.get_later(torch.tensor([[2], [7]]), ticket=coming)
        assert not queued.ready
        table.rmw([1, 2], np.ones((2, 2), np.float32), ticket=now)
        rows = queued.wait()
        assert isinstance(rows, torch.Tensor)
        assert rows.shape == (2, 1, 2)
        assert torch.equal(rows[0, 0], before[1] - 1)
        with pytest.raises(rowmill.errors.InvalidInput, match="already collected"):
            queued.wait()


def test_a_queued_get_ends_with_its_step(store: rowmill.Store) -> None:
    table = store.table("over", dim=2, optimizer=rowmill.optim.SGD(lr=1.0), staleness_bound=0)
    with store.ticket() as now:
        table.get_or_init([1], ticket=now)
        with store.ticket() as coming:
            queued = table.get_later([1], ticket=coming)
        with pytest.raises(rowmill.errors.StepConflict, match="is over"):
            queued.wait()


def test_a_ticket_of_another_store_is_refused(table: rowmill.Table, tmp_path: Path) -> None:
    with (
        rowmill.open(tmp_path / "other", memory="64MiB") as other,
        other.ticket() as foreign,
        pytest.raises(InvalidInput, match="belongs to another store") as caught,
    ):
        table.get_or_init([1], ticket=foreign)
    for store in (other, table.store):
        assert store.location in str(caught.value)
