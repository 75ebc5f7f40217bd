"""Models of triples (head, relation, tail) in plain torch, over any modules that return rows for numbers.

Each model combines the two known parts of a triple into a *query*, a vector of the entities' dim. The score of a
candidate is its dot product with the query (DistMult, ComplEx) or minus its distance (TransE, RotatE). So many queries
are scored against many candidates at once.

Shapes: B triples or queries, N candidates, D weights of an entity. Rows of complex numbers hold D/2 real parts, then
D/2 imaginary ones.
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
"""Floats of the differences that a distance computes at once where nothing is differentiated: 64 MiB."""


class TripleModel(nn.Module, ABC):
    """A model of triples.

    Args:
        entities: Called with int64 numbers of any shape, gives their rows, `[..., D]`.
        relations: The same for relations, `[..., relation_dim(D)]`.
        margin: TransE, RotatE: added to every score, for losses that look at one score at a time.
        norm: TransE: 1 or 2, of the distance.
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
                f"entities of {dim} weights want relations of {self.relation_dim(dim)} in {type(self).__name__}, got {found}"
            )
        self.entities = entities
        self.relations = relations
        self.margin = margin
        self.norm = norm

    @classmethod
    def relation_dim(cls, dim: int) -> int:
        """Weights of a relation."""
        if cls.complex_rows and dim % 2:
            raise InvalidInput(
                f"the rows of {cls.__name__} are complex numbers: dim must be even, got {dim}"
            )
        return dim

    @classmethod
    def relation_initializer(cls) -> Initializer | None:
        """How relations are born, if not as entities are."""
        return None

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """Scores of triples, given as numbers `[B]`: the higher, the likelier."""
        query_BD = self.tail_query(self.entities(heads), self.relations(relations))
        return self.pair_scores(query_BD, self.entities(tails))

    @abstractmethod
    def tail_query(self, heads: Tensor, relations: Tensor) -> Tensor:
        """What asks for the tail, from rows of heads and relations."""

    @abstractmethod
    def head_query(self, tails: Tensor, relations: Tensor) -> Tensor:
        """What asks for the head, from rows of tails and relations."""

    @abstractmethod
    def scores(self, query_BD: Tensor, candidates_ND: Tensor) -> Tensor:
        """Every query against every candidate, `[B, N]`."""

    @abstractmethod
    def pair_scores(self, query_BD: Tensor, candidates_BD: Tensor) -> Tensor:
        """Every query against its own candidate, `[B]`."""

    def magnitudes(self, rows: Tensor) -> Tensor:
        """Absolute values of rows, of complex numbers where they are: what a penalty is on."""
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
        # By differences, not by a product of matrices, whose rounding would be that of the squares.
        cdist = cast("Callable[..., Tensor]", torch.cdist)
        exact = "donot_use_mm_for_euclid_dist"
        return self.margin - cdist(query_BD, candidates_ND, p=self.norm, compute_mode=exact)

    def pair_scores(self, query_BD: Tensor, candidates_BD: Tensor) -> Tensor:
        """The margin minus the distance."""
        difference = query_BD - candidates_BD
        norm = cast("Callable[..., Tensor]", torch.linalg.vector_norm)
        return self.margin - norm(difference, ord=self.norm, dim=-1)


class RotatE(TripleModel):
    """Minus the distance of the head, turned by the relation, and the tail (Sun et al. 2019, arXiv 1902.10197).

    A relation is D/2 angles; the distance is the sum of the moduli of the complex differences.
    """

    complex_rows = True

    @classmethod
    def relation_dim(cls, dim: int) -> int:
        """An angle for every complex number."""
        return super().relation_dim(dim) // 2

    @classmethod
    def relation_initializer(cls) -> Initializer | None:
        """Angles all around."""
        return Uniform(-torch.pi, torch.pi)

    def tail_query(self, heads: Tensor, relations: Tensor) -> Tensor:
        """The head, turned."""
        return _times(heads, _turn(relations))

    def head_query(self, tails: Tensor, relations: Tensor) -> Tensor:
        """The tail, turned back."""
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
"""The models by the names that settings have for them."""


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
    # Unlike the root of a sum of squares this has a gradient, 0, where both are 0.
    return torch.complex(real, imaginary).abs()
