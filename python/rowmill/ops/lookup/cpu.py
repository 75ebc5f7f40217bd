"""The pooled lookup straight from store memory: one call of the store for all tables of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rowmill.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from rowmill import _core
    from rowmill.tables import Table


def lookup(
    tables: Sequence[Table],
    ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    features: Sequence[int],
    means: Sequence[bool],
    paddings: Sequence[int | None],
    bags: int,
    ticket: _core.Ticket | None,
) -> tuple[Tensor, _core.Lookup | None]:
    """Pool rows as `reference.lookup` defines; a ticket makes it a training get, which may insert.

    Returns:
        The pooled vectors, float32 [bags, features * dim], and with a ticket what their gradient
        will need.
    """
    dim = tables[0].dim
    out = torch.empty(bags, len(features) * dim)
    bags_of = feature_bags(ids, offsets, features, bags)
    weights_N = None if weights is None else weights.detach().contiguous().numpy()
    core = tables[0].store.core.lookup(
        [table.core for table in tables],
        [ids for ids, _, _ in bags_of],
        [ends for _, ends, _ in bags_of],
        [None if weights_N is None else weights_N[place] for _, _, place in bags_of],
        list(paddings),
        list(means),
        out.numpy(),
        len(features) * dim,
        ticket,
    )
    return out, core


def feature_bags(
    ids: Tensor, offsets: Tensor, features: Sequence[int], bags: int
) -> list[tuple[NDArray[np.int64], NDArray[np.int64], slice]]:
    """For each feature its ids, its B + 1 offsets from 0, and where the ids lie in the batch."""
    ids_N: NDArray[np.int64] = ids.contiguous().numpy()
    all_ends: NDArray[np.int64] = offsets.contiguous().numpy()
    if all_ends[0] != 0 or all_ends[-1] != len(ids_N):
        raise InvalidInput(
            f"offsets must run from 0 to the number of ids ({len(ids_N)}), "
            f"got {all_ends[0]}..{all_ends[-1]}"
        )
    out: list[tuple[NDArray[np.int64], NDArray[np.int64], slice]] = []
    for feature in features:
        ends = all_ends[feature * bags : (feature + 1) * bags + 1]
        place = slice(int(ends[0]), int(ends[-1]))
        out.append((ids_N[place], ends - place.start if place.start else ends, place))
    return out
