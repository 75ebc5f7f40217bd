"""The pooled lookup: the store's implementation and the registered operator, compared with the definition in plain torch."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import rowmill
from rowmill.errors import InvalidInput
from rowmill.nn import EmbeddingBag
from rowmill.ops.lookup import lookup, reference
from rowmill.optim import SGD

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = 9


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[rowmill.Table]]:
    with rowmill.open(tmp_path_factory.mktemp("ops") / "store", memory="16MiB") as store:
        yield [store.table(f"t{i}", dim=3, optimizer=SGD(lr=0.1), num_rows=ROWS) for i in range(3)]


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor, int]:
    """Ids and offsets of 3 features."""
    size = draw(st.integers(1, 4))
    lengths = draw(st.lists(st.integers(0, 4), min_size=3 * size, max_size=3 * size))
    count = sum(lengths)
    ids = draw(st.lists(st.integers(0, ROWS - 1), min_size=count, max_size=count))
    ends = torch.tensor([0, *lengths]).cumsum(0)
    return torch.tensor(ids, dtype=torch.int64), ends, size


@pytest.mark.parametrize(
    ("offsets", "feature", "says"),
    [
        ([], 0, "offsets must have one entry more than there are bags, got none"),
        ([0, 1, 2], 0, r"number of ids \(3\), got 0..2"),
        ([1, 1, 3], 0, r"number of ids \(3\), got 1..3"),
        ([0, 1, 3], 1, "feature 1 of 2 bags each is not among 3 offsets"),
        ([0, 1, 3], 2**63, "feature 9223372036854775808 of 2 bags"),
        ([0, 1, 4, 3, 3], 1, "offsets must not decrease, got 4..3 for feature 1"),
        ([0, 1, -2, 3, 3], 1, "offsets must not decrease, got -2..3 for feature 1"),
        ([0, 1, 2, 1, 3], 1, "offsets must not decrease"),
    ],
)
def test_invalid_offsets_are_named(
    tables: list[rowmill.Table], offsets: list[int], feature: int, says: str
) -> None:
    ids, ends = torch.tensor([5, 6, 7]), torch.tensor(offsets, dtype=torch.int64)
    with pytest.raises(InvalidInput, match=says):
        lookup(
            tables[:1],
            ids,
            ends,
            None,
            features=[feature],
            means=[False],
            paddings=[None],
            bags=2,
            training=False,
        )


@given(
    batch=batches(),
    features=st.lists(st.integers(0, 2), min_size=1, max_size=4),
    means=st.lists(st.booleans(), min_size=4, max_size=4),
    padding=st.none() | st.integers(0, ROWS - 1),
)
@settings(deadline=None)
def test_the_store_agrees_with_the_definition(
    tables: list[rowmill.Table],
    batch: tuple[Tensor, Tensor, int],
    features: list[int],
    means: list[bool],
    padding: int | None,
) -> None:
    ids, offsets, bags = batch
    means = means[: len(features)]
    paddings = [padding] * len(features)
    chosen = [tables[feature] for feature in features]
    rows = [table.get(torch.arange(ROWS)) for table in chosen]
    expected = reference.lookup(rows, ids, offsets, None, features, means, paddings, bags)
    plan = {"features": features, "means": means, "paddings": paddings, "bags": bags}
    out = lookup(chosen, ids, offsets, None, **plan, training=False)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)
    operator = torch.ops.rowmill.lookup(
        ids,
        offsets,
        None,
        [table.handle for table in chosen],
        features,
        means,
        [p is not None for p in paddings],
        [p or 0 for p in paddings],
        bags,
        3,
        torch.float32,
    )
    assert (operator == out).all()


class Model(nn.Module):
    def __init__(self, table: rowmill.Table) -> None:
        super().__init__()
        self.bag = EmbeddingBag(ROWS, 3, mode="mean", table=table)
        self.top = nn.Linear(3, 1)

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        return self.top(self.bag(ids, offsets))


@pytest.mark.parametrize("strict", [False, True])
def test_a_model_is_exported_with_any_batch_size(tables: list[rowmill.Table], strict: bool) -> None:
    model = Model(tables[0]).eval()
    ids, offsets = torch.tensor([1, 2, 3, 4]), torch.tensor([0, 1, 3])
    shapes = ({0: torch.export.Dim.DYNAMIC}, {0: torch.export.Dim.DYNAMIC})
    program = torch.export.export(model, (ids, offsets), dynamic_shapes=shapes, strict=strict)
    assert "rowmill.lookup" in str(program.graph)
    run = program.module()
    for args in [(ids, offsets), (torch.tensor([5, 6, 7]), torch.tensor([0, 1]))]:
        torch.testing.assert_close(run(*args), model(*args))


@pytest.mark.parametrize("padding", [0, -1, -(2**63), 2**63 - 1])
def test_any_id_can_be_the_padding_of_an_exported_model(store: rowmill.Store, padding: int) -> None:
    table = store.table("padded", dim=3, optimizer=rowmill.optim.SGD(lr=1.0))
    table.put([padding, 5], torch.ones(2, 3))
    bag = EmbeddingBag(None, 3, mode="sum", padding_idx=padding, table=table).eval()
    ids, offsets = torch.tensor([padding, 5, padding]), torch.tensor([0, 2])
    program = torch.export.export(bag, (ids, offsets))
    assert program.module()(ids, offsets).tolist() == [[1.0] * 3, [0.0] * 3]


def test_export_in_training_mode_is_refused(tables: list[rowmill.Table]) -> None:
    with pytest.raises(InvalidInput, match=r"call model.eval\(\) before"):
        torch.export.export(Model(tables[0]), (torch.tensor([1]), torch.tensor([0])))


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # raised by torch itself
def test_a_compiled_model_trains_like_an_eager_one(store: rowmill.Store) -> None:
    start, after = torch.rand(ROWS, 3), []
    for name in ("eager", "compiled"):
        torch.manual_seed(0)
        table = store.table(name, dim=3, optimizer=SGD(lr=0.5), num_rows=ROWS)
        table.put(torch.arange(ROWS), start)
        model = Model(table)
        run = torch.compile(model, backend="eager") if name == "compiled" else model
        for ids in ([1, 2, 3], [3, 3, 4]):
            run(torch.tensor(ids), torch.tensor([0, 2])).square().sum().backward()
        model.eval()
        with torch.no_grad():
            run(torch.tensor([1]), torch.tensor([0]))
        after.append(model.bag.weight)
    assert (after[0] == after[1]).all()
    assert not (after[0] == start).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_operator_passes_torchs_own_checks(
    tables: list[rowmill.Table], dtype: torch.dtype
) -> None:
    args = (torch.tensor([1, 2]), torch.tensor([0, 2]), None, [tables[0].handle])
    torch.library.opcheck(
        torch.ops.rowmill.lookup.default, (*args, [0], [False], [False], [0], 1, 3, dtype)
    )


def test_a_handle_does_not_keep_its_table(store: rowmill.Store) -> None:
    from rowmill.ops.handles import register, table_of

    class Thing:
        pass

    thing = Thing()
    handle = register(thing)  # pyright: ignore[reportArgumentType]
    assert table_of(handle) is thing
    del thing
    gc.collect()
    with pytest.raises(InvalidInput, match=f"no open table has handle {handle}"):
        table_of(handle)
