"""`rowmill.nn.EmbeddingBag` and `Embedding` compared with torch's: same arguments, same results.

Every test runs both modules on the same ids and compares forward, gradients of other parameters, and
the rows after one SGD step. Sums of a few float32 in another order differ by rounding: 1e-6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import rowmill
from rowmill.errors import InvalidInput
from rowmill.nn import Embedding, EmbeddingBag
from rowmill.optim import SGD

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS, DIM, LR = 12, 3, 0.5
NAMES = iter(f"table{i}" for i in range(1_000_000))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rowmill.Store]:
    folder: Path = tmp_path_factory.mktemp("bags")
    with rowmill.open(folder / "store", memory="64MiB", wait_deadline_s=2.0) as opened:
        yield opened


def table_of(store: rowmill.Store, num_rows: int | None = ROWS) -> rowmill.Table:
    return store.table(next(NAMES), dim=DIM, optimizer=SGD(lr=LR), num_rows=num_rows)


def twins(store: rowmill.Store, **options: Any) -> tuple[nn.EmbeddingBag, EmbeddingBag]:
    plain = nn.EmbeddingBag(ROWS, DIM, **options)
    stored = EmbeddingBag(
        ROWS, DIM, **options, _weight=plain.weight.detach(), table=table_of(store)
    )
    return plain, stored


def assert_same_step(plain: nn.Module, stored: Any, *args: Any) -> None:
    """Check that forward, backward, an SGD step and gradients of per-sample weights agree."""
    mine = [arg.clone().requires_grad_() if is_float(arg) else arg for arg in args]
    theirs = [arg.clone().requires_grad_() if is_float(arg) else arg for arg in args]
    out, expected = stored(*mine), plain(*theirs)
    assert out.shape == expected.shape
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)
    upstream = torch.randn_like(expected)
    optimizer = torch.optim.SGD(plain.parameters(), lr=LR)
    optimizer.zero_grad()
    expected.backward(upstream)
    out.backward(upstream)
    optimizer.step()
    torch.testing.assert_close(stored.weight, plain.weight.detach(), rtol=1e-6, atol=1e-6)  # pyright: ignore[reportCallIssue]
    for one, other in zip(mine, theirs, strict=True):
        if is_float(one):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-6, atol=1e-6)


def is_float(arg: Any) -> bool:
    return isinstance(arg, Tensor) and arg.is_floating_point()


ragged = st.lists(st.lists(st.integers(0, ROWS - 1), max_size=5), min_size=1, max_size=6)


@given(
    bags=ragged,
    mode=st.sampled_from(["sum", "mean"]),
    padding=st.none() | st.integers(-ROWS, ROWS - 1),
    last=st.booleans(),
    weighted=st.booleans(),
    int32=st.booleans(),
)
@settings(deadline=None)
def test_ragged_bags_agree_with_torch(
    store: rowmill.Store,
    bags: list[list[int]],
    mode: str,
    padding: int | None,
    last: bool,
    weighted: bool,
    int32: bool,
) -> None:
    plain, stored = twins(store, mode=mode, padding_idx=padding, include_last_offset=last)
    assert stored.padding_idx == plain.padding_idx
    dtype = torch.int32 if int32 else torch.int64
    ids = torch.tensor([id_ for bag in bags for id_ in bag], dtype=dtype)
    ends = torch.tensor([len(bag) for bag in bags]).cumsum(0)
    starts = torch.cat([torch.zeros(1, dtype=dtype), ends.to(dtype)])
    weights = [torch.rand(len(ids))] if weighted and mode == "sum" else []
    assert_same_step(plain, stored, ids, starts if last else starts[:-1], *weights)


@pytest.mark.parametrize("shape", [(4, 3), (1, 1), (0, 3)])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_two_dimensional_input_agrees_with_torch(
    store: rowmill.Store, shape: tuple[int, int], mode: str
) -> None:
    plain, stored = twins(store, mode=mode)
    assert_same_step(plain, stored, torch.randint(0, ROWS, shape))


def test_weighted_two_dimensional_input_agrees_with_torch(store: rowmill.Store) -> None:
    plain, stored = twins(store, mode="sum")
    assert_same_step(plain, stored, torch.randint(0, ROWS, (4, 3)), None, torch.rand(4, 3))


@given(
    ids=st.lists(st.lists(st.integers(0, ROWS - 1), min_size=2, max_size=2), max_size=5),
    padding=st.none() | st.integers(0, ROWS - 1),
)
@settings(deadline=None)
def test_embedding_agrees_with_torch(
    store: rowmill.Store, ids: list[list[int]], padding: int | None
) -> None:
    plain = nn.Embedding(ROWS, DIM, padding_idx=padding)
    stored = Embedding(
        ROWS, DIM, padding_idx=padding, _weight=plain.weight.detach(), table=table_of(store)
    )
    assert_same_step(plain, stored, torch.tensor(ids, dtype=torch.int64).reshape(-1, 2))


def test_signatures_equal_those_of_torch() -> None:
    import inspect

    for ours, theirs in ((EmbeddingBag, nn.EmbeddingBag), (Embedding, nn.Embedding)):
        for method in ("__init__", "forward"):
            mine = list(inspect.signature(getattr(ours, method)).parameters)
            other = list(inspect.signature(getattr(theirs, method)).parameters)
            assert [name for name in mine if name != "table"] == other


def test_evaluation_inserts_no_rows_and_takes_no_clocks(store: rowmill.Store) -> None:
    table = table_of(store, num_rows=None)
    bag = EmbeddingBag(None, DIM, mode="sum", table=table)
    ids = torch.tensor([[2**40, 5]])
    with torch.no_grad():
        seen = bag(ids)
    bag.eval()
    assert not bag(ids).requires_grad
    assert len(table) == 0
    assert store.stats()["tickets"] == 0
    torch.testing.assert_close(seen, table.get(ids).sum(dim=1))
    bag.train()
    torch.testing.assert_close(bag(ids).detach(), seen)
    assert len(table) == 2
    assert store.stats()["tickets"] == 0, "the dropped graph released its clocks"


def test_frozen_rows_do_not_train(store: rowmill.Store) -> None:
    plain = nn.Embedding(ROWS, DIM)
    stored = Embedding(
        ROWS, DIM, _weight=plain.weight.detach(), _freeze=True, table=table_of(store)
    )
    assert not stored(torch.tensor([1])).requires_grad
    assert (stored.weight == plain.weight).all()


def test_weights_get_gradients_in_evaluation_too(store: rowmill.Store) -> None:
    plain, stored = twins(store, mode="sum")
    stored.eval()
    ids, weights = torch.tensor([[1, 2]]), torch.ones(1, 2, requires_grad=True)
    stored(ids, None, weights).sum().backward()
    torch.testing.assert_close(weights.grad, plain.weight.detach()[ids].sum(dim=2))
    assert (stored.weight == plain.weight).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_outputs_are_on_the_device_of_the_ids(store: rowmill.Store) -> None:
    plain, stored = twins(store, mode="sum")
    plain.cuda()
    ids = torch.randint(0, ROWS, (4, 3), device="cuda")
    out = stored(ids)
    assert out.device == ids.device
    out.sum().backward()
    plain(ids).sum().backward()
    assert plain.weight.grad is not None
    expected = plain.weight.detach() - LR * plain.weight.grad
    torch.testing.assert_close(stored.weight, expected.cpu())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_norm": 1.0}, "max_norm is not supported"),
        ({"scale_grad_by_freq": True}, "scale_grad_by_freq is not supported"),
        ({"dtype": torch.float64}, "weights must be float32, got torch.float64"),
        ({"mode": "max"}, 'mode must be "mean" or "sum"'),
        ({"padding_idx": ROWS}, "padding_idx must be within num_embeddings"),
        ({"_weight": torch.zeros(ROWS + 1, DIM)}, r"must be \[12, 3\], got \[13, 3\]"),
    ],
)
def test_unsupported_arguments_of_torch_are_refused(
    store: rowmill.Store, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidInput, match=says):
        EmbeddingBag(ROWS, DIM, **options, table=table_of(store))


def test_sizes_must_match_the_table(store: rowmill.Store) -> None:
    with pytest.raises(InvalidInput, match=r"embedding_dim must be 3, the dim of table .*, got 4"):
        EmbeddingBag(ROWS, 4, table=table_of(store))
    with pytest.raises(
        InvalidInput, match=r"num_embeddings must be 12, the num_rows of table .*, got 13"
    ):
        EmbeddingBag(13, DIM, table=table_of(store))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((torch.tensor([1]),), "1-D offsets"),
        ((torch.tensor([[1]]), torch.tensor([0])), "offsets go with 1-D input only"),
        (
            (torch.tensor([1.0]), torch.tensor([0])),
            "input must be int64 or int32, got torch.float32",
        ),
        ((torch.tensor([1]), torch.tensor([0.0])), "offsets must be int64 or int32"),
        ((torch.tensor([1, 2]), torch.tensor([1])), "offsets must run from 0 .* got 1..2"),
        ((torch.tensor([1, 2]), torch.tensor([0, 2, 1])), "offsets must not decrease"),
        ((torch.tensor([1, ROWS]), torch.tensor([0])), "id 12 is outside table"),
        ((torch.tensor([[1]]), None, torch.ones(1, 2)), "shape of the input"),
        ((torch.tensor([[1]]), None, torch.ones(1, 1)), 'per_sample_weights need mode="sum"'),
    ],
)
def test_invalid_input_is_named_and_holds_no_clock(
    store: rowmill.Store, args: tuple[Any, ...], says: str
) -> None:
    mode = "mean" if "need mode" in says else "sum"
    bag = EmbeddingBag(ROWS, DIM, mode=mode, table=table_of(store))
    with pytest.raises(InvalidInput, match=says):
        bag(*args)
    assert store.stats()["tickets"] == 0
    assert len(bag.table) == 0
