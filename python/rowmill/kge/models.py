"""Models of triples (head, relation, tail) in plain torch, over any embedding modules.

Each model combines the two known parts of a triple into a *query*, a vector of the entities' dim. The score of a
candidate is its dot product with the query (DistMult, ComplEx) or its negative distance from the query (TransE,
RotatE). So one operation scores many queries against many candidates.

Shapes: B triples or queries, N candidates, D weights of an entity. A row of complex numbers holds D/2 real parts, then
D/2 imaginary parts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, cast

import torch
from torch import Tensor, nn

from rowmill.errors import InvalidInput
from rowmill.init import Initializer, Uniform
from rowmill.ops.linear import linear

if TYPE_CHECKING:
    from collections.abc import Callable

_BLOCK_FLOATS = 1 << 24
"""Without gradients, distances are computed in blocks of this many floats of differences: 64 MiB."""


class TripleModel(nn.Module, ABC):
    """Base class of the models of triples.

    Args:
        entities: An embedding module: int64 entity numbers of any shape in, rows `[..., D]` out.
        relations: An embedding module for relations: rows `[..., relation_dim(D)]`.
        margin: TransE, RotatE: a constant added to every score, for losses of single scores (logistic,
            self-adversarial).
        norm: TransE: the distance is the L1 or L2 norm.
    """

    complex_rows: ClassVar[bool] = False
    """Whether rows are complex numbers."""
    dot_scores: ClassVar[bool] = False
    """Whether a score is the dot product of query and candidate."""

    def __init__(
        self, entities: nn.Module, relations: nn.Module, *, margin: float = 0.0, norm: int = 1
    ) -> None:
        super().__init__()
        dim, found = (getattr(rows, "embedding_dim", None) for rows in (entities, relations))
        if dim is not None and found not in (None, self.relation_dim(dim)):
            raise InvalidInput(
                f"{type(self).__name__} with entities of dim {dim} needs relations of dim {self.relation_dim(dim)}, got {found}"
            )
        self.entities = entities
        self.relations = relations
        self.margin = margin
        self.norm = norm

    @classmethod
    def relation_dim(cls, dim: int) -> int:
        """Weights of a relation's row for entities of `dim` weights; raises `InvalidInput` if the model needs an even dim."""
        if cls.complex_rows and dim % 2:
            raise InvalidInput(
                f"{cls.__name__} stores complex numbers: dim must be even, got {dim}"
            )
        return dim

    @classmethod
    def relation_initializer(cls) -> Initializer | None:
        """The initializer of relations; None: the same as for entities."""
        return None

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """Scores `[B]` of triples given as numbers, each `[B]`; a higher score means a likelier triple."""
        query_BD = self.tail_query(self.entities(heads), self.relations(relations))
        return self.pair_scores(query_BD, self.entities(tails))

    @abstractmethod
    def tail_query(self, heads: Tensor, relations: Tensor) -> Tensor:
        """The queries for tails `[..., D]`, from rows of heads and relations."""

    @abstractmethod
    def head_query(self, tails: Tensor, relations: Tensor) -> Tensor:
        """The queries for heads `[..., D]`, from rows of tails and relations."""

    @abstractmethod
    def scores(self, query_BD: Tensor, candidates_ND: Tensor) -> Tensor:
        """Scores of every query against every candidate, `[B, N]`."""

    @abstractmethod
    def pair_scores(self, query_BD: Tensor, candidates_BD: Tensor) -> Tensor:
        """Scores of every query against its own candidate, `[B]`."""

    def magnitudes(self, rows: Tensor) -> Tensor:
        """Absolute values of the weights of rows (moduli for complex rows), for penalties."""
        return _moduli(*rows.chunk(2, dim=-1)) if self.complex_rows else rows.abs()


class _DotModel(TripleModel):
    """Scores that are dot products of query and candidate."""

    dot_scores = True

    def scores(self, query_BD: Tensor, candidates_ND: Tensor) -> Tensor:
        return linear(query_BD, candidates_ND, candidates_ND.new_zeros(len(candidates_ND)))

    def pair_scores(self, query_BD: Tensor, candidates_BD: Tensor) -> Tensor:
        return (query_BD * candidates_BD).sum(dim=-1)


class DistMult(_DotModel):
    """The sum of `head * relation * tail` (Yang et al. 2015, arXiv 1412.6575). Symmetric in head and tail."""

    def tail_query(self, heads: Tensor, relations: Tensor) -> Tensor:
        """Head times relation."""
        return heads * relations

    def head_query(self, tails: Tensor, relations: Tensor) -> Tensor:
        """Tail times relation."""
        return tails * relations


class ComplEx(_DotModel):
    """The real part of the sum of `head * relation * conj(tail)` (Trouillon et al. 2016, arXiv 1606.06357)."""

    complex_rows = True

    def tail_query(self, heads: Tensor, relations: Tensor) -> Tensor:
        """Head times relation, as complex numbers."""
        return _times(heads, relations)

    def head_query(self, tails: Tensor, relations: Tensor) -> Tensor:
        """Tail times the conjugate of the relation."""
        # Re(h r conj(t)) = Re(h conj(conj(r) t)): the dot product of h with conj(r) t.
        return _times(tails, _conjugate(relations))


class TransE(TripleModel):
    """Minus the distance of `head + relation` and tail (Bordes et al. 2013)."""

    def tail_query(self, heads: Tensor, relations: Tensor) -> Tensor:
        """Head plus relation."""
        return heads + relations

    def head_query(self, tails: Tensor, relations: Tensor) -> Tensor:
        """Tail minus relation."""
        return tails - relations

    def scores(self, query_BD: Tensor, candidates_ND: Tensor) -> Tensor:
        """The margin minus every distance."""
        # Not by matrix products: those compute squared distances, which loses half of the digits of small distances.
        cdist = cast("Callable[..., Tensor]", torch.cdist)
        exact = "donot_use_mm_for_euclid_dist"
        return self.margin - cdist(query_BD, candidates_ND, p=self.norm, compute_mode=exact)

    def pair_scores(self, query_BD: Tensor, candidates_BD: Tensor) -> Tensor:
        """The margin minus the distance."""
        difference = query_BD - candidates_BD
        norm = cast("Callable[..., Tensor]", torch.linalg.vector_norm)
        return self.margin - norm(difference, ord=self.norm, dim=-1)


class RotatE(TripleModel):
    """Minus the distance between the head, rotated by the relation, and the tail (Sun et al. 2019, arXiv 1902.10197).

    A relation is D/2 angles; the distance is the sum of the moduli of the complex differences.
    """

    complex_rows = True

    @classmethod
    def relation_dim(cls, dim: int) -> int:
        """One angle per complex number: D / 2."""
        return super().relation_dim(dim) // 2

    @classmethod
    def relation_initializer(cls) -> Initializer | None:
        """Uniform angles in [-pi, pi)."""
        return Uniform(-torch.pi, torch.pi)

    def tail_query(self, heads: Tensor, relations: Tensor) -> Tensor:
        """The head, rotated by the relation."""
        return _times(heads, _turn(relations))

    def head_query(self, tails: Tensor, relations: Tensor) -> Tensor:
        """The tail, rotated by the inverse of the relation."""
        return _times(tails, _turn(-relations))

    def scores(self, query_BD: Tensor, candidates_ND: Tensor) -> Tensor:
        """The margin minus every distance."""
        if torch.is_grad_enabled() and (query_BD.requires_grad or candidates_ND.requires_grad):
            return self.pair_scores(query_BD[:, None], candidates_ND[None])
        queries = max(_BLOCK_FLOATS // max(candidates_ND.numel(), 1), 1)
        starts = range(0, len(query_BD), queries)
        parts = [
            self.pair_scores(query_BD[start : start + queries, None], candidates_ND)
            for start in starts
        ]
        return torch.cat(parts)

    def pair_scores(self, query_BD: Tensor, candidates_BD: Tensor) -> Tensor:
        """The margin minus the distance."""
        difference = query_BD - candidates_BD
        return self.margin - _moduli(*difference.chunk(2, dim=-1)).sum(dim=-1)


MODELS: dict[str, type[TripleModel]] = {
    "transe": TransE,
    "rotate": RotatE,
    "distmult": DistMult,
    "complex": ComplEx,
}
"""The models by their names in settings (`model.kind`)."""


def _times(one: Tensor, other: Tensor) -> Tensor:
    one_re, one_im = one.chunk(2, dim=-1)
    other_re, other_im = other.chunk(2, dim=-1)
    return torch.cat(
        [one_re * other_re - one_im * other_im, one_re * other_im + one_im * other_re], dim=-1
    )


def _conjugate(rows: Tensor) -> Tensor:
    real, imaginary = rows.chunk(2, dim=-1)
    return torch.cat([real, -imaginary], dim=-1)


def _turn(angles: Tensor) -> Tensor:
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def _moduli(real: Tensor, imaginary: Tensor) -> Tensor:
    # torch's abs of complex numbers has the gradient 0 at 0; the root of a sum of squares would give NaN.
    return torch.complex(real, imaginary).abs()
