"""The pooled lookup with tables by name, for graphs that outlive the process that traced them."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rowmill.errors import InvalidInput
from rowmill.ops.handles import table_of
from rowmill.ops.lookup import lookup
from rowmill.partition.operators import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from typing import Any

    from torch import fx

    from rowmill.store import Store

_store: ContextVar[Store | None] = ContextVar("rowmill_named_lookup_store", default=None)

torch.library.define(
    "rowmill::named_lookup",
    "(Tensor ids, Tensor offsets, Tensor? weights, str[] tables, int[] features, bool[] means, "
    "bool[] padded, int[] paddings, SymInt bags, int dim, ScalarType dtype) -> Tensor",
)


@contextmanager
def rows_from(store: Store) -> Generator[None]:
    """Within this context the named lookups of this thread read tables of a store."""
    token = _store.set(store)
    try:
        yield
    finally:
        _store.reset(token)


def named(node: fx.Node) -> Callable[..., Any] | None:
    """What takes the place of a lookup by handles: one by names."""
    if name_of(node.target) != "rowmill::lookup":
        return None

    def by_name(ids: Any, offsets: Any, weights: Any, tables: Sequence[int], *rest: Any) -> Tensor:
        names = [table_of(handle).name for handle in tables]
        return torch.ops.rowmill.named_lookup(ids, offsets, weights, names, *rest)

    return by_name


@torch.library.impl("rowmill::named_lookup", "CPU")
def _named_lookup(
    ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    tables: Sequence[str],
    features: Sequence[int],
    means: Sequence[bool],
    padded: Sequence[bool],
    paddings: Sequence[int],
    bags: int,
    dim: int,
    dtype: torch.dtype,
) -> Tensor:
    store = _store.get()
    if store is None:
        raise InvalidInput(
            f"tables {list(tables)} are not open: call the program within rows_from(store)"
        )
    pads = [padding if has else None for has, padding in zip(padded, paddings, strict=True)]
    return lookup(
        [store.open_table(name) for name in tables],
        ids,
        offsets,
        weights,
        features=features,
        means=means,
        paddings=pads,
        bags=bags,
        training=False,
        dtype=dtype,
    )


@torch.library.register_fake("rowmill::named_lookup")  # pyright: ignore[reportUntypedFunctionDecorator]
def _named_lookup_shape(
    ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    tables: Sequence[str],
    features: Sequence[int],
    means: Sequence[bool],
    padded: Sequence[bool],
    paddings: Sequence[int],
    bags: int,
    dim: int,
    dtype: torch.dtype,
) -> Tensor:
    return ids.new_empty((bags, len(features) * dim), dtype=dtype)
