"""`node_dropout`: dropout of the vectors of nodes, by position or by node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rowmill.nn.dropout import named_dropout

if TYPE_CHECKING:
    from torch import Tensor


def node_dropout(vectors: Tensor, share: float, nodes: Tensor | None, *, training: bool) -> Tensor:
    """Dropout of the vectors of the first nodes of a sample.

    Args:
        vectors: `[n, D]`.
        share: As in `rowmill.nn.dropout.dropout`.
        nodes: The nodes of the sample, at least n, by which random bits are drawn; None: by position.
        training: If false, the result is `vectors` itself.
    """
    names = None if nodes is None else nodes[: len(vectors)]
    return named_dropout(vectors, share, names, training=training)
