"""The pooled lookup in plain torch: the definition that the other implementations match.

Shapes: N ids in all, F features, B bags per feature, D weights per row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def lookup(
    weights_of: Sequence[Tensor],
    ids_N: Tensor,
    offsets: Tensor,
    weights_N: Tensor | None,
    features: Sequence[int],
    means: Sequence[bool],
    paddings: Sequence[int | None],
    bags: int,
) -> Tensor:
    """Pool rows of F features: the vector of bag b of feature `features[f]` is `out[b, f*D:(f+1)*D]`.

    Bag b of feature j is `ids_N[offsets[j*B + b] : offsets[j*B + b + 1]]`. A padding id is left out of sums
    and of the count of a mean; the vector of an empty bag is 0.

    Args:
        weights_of: Per feature, its weights, float32 [rows, D].
        ids_N: int64 [N].
        offsets: int64 [features in the batch * B + 1].
        weights_N: float32 [N], weights of a sum, or None.
        features: Positions of the F features in the batch.
        means: Per feature, whether its bags are averaged.
        paddings: Per feature, the padding id, or None.
        bags: B.

    Returns:
        float32 [B, F * D].
    """
    pooled: list[Tensor] = []
    for rows, feature, mean, padding in zip(weights_of, features, means, paddings, strict=True):
        ends = offsets[feature * bags : (feature + 1) * bags + 1]
        ids = ids_N[ends[0] : ends[-1]]
        bag_of_id = torch.repeat_interleave(torch.arange(bags), ends.diff())
        counted = torch.ones(len(ids)) if padding is None else (ids != padding).float()
        factors = counted
        if weights_N is not None:
            factors = counted * weights_N[ends[0] : ends[-1]]
        out = torch.zeros(bags, rows.shape[1])
        safe_ids = torch.where(counted > 0, ids, 0)
        out = out.index_add(0, bag_of_id, rows[safe_ids] * factors[:, None])
        if mean:
            sizes = torch.zeros(bags).index_add(0, bag_of_id, counted)
            out = out / sizes.clamp(min=1)[:, None]
        pooled.append(out)
    return torch.cat(pooled, dim=1)
