"""Weights of a model whose rows get another dim, or whose log gets other columns.

The entries along a dimension of a weight have names. Entries of equal names hold the same number before and after. A new name
along the first dimension is a new output of a layer; along another one it is a new input.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

Names = Sequence[Hashable] | None
"""Names of the entries along one dimension of a weight; None: the dimension does not change."""


@dataclass(frozen=True)
class DimNames:
    """What depends on the dim of a model.

    Attributes:
        rows: The names of the weights of a row, by table.
        dense: The names of the entries of dense weights, by name of the weight.
    """

    rows: Mapping[str, Sequence[Hashable]]
    dense: Mapping[str, tuple[Names, ...]] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Resizing:
    """How the weights of a model are brought to another dim.

    New inputs of a layer have the weight 0, so they change no output before they are trained. New outputs have the weights of a
    new model.

    Attributes:
        before: With the old dim.
        after: With the new dim.
        fresh: Weights of a new model with the new dim, by name; of those that get outputs.
        parameters: Names of the parameters of the dense optimizer, in its order.
    """

    before: DimNames
    after: DimNames
    fresh: Mapping[str, Tensor] = field(default_factory=dict[str, Any])
    parameters: tuple[str, ...] = ()

    def weights(self, old: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The dense weights with the new dim."""
        new = {name: self._resized(name, value) for name, value in old.items()}
        for name, value in new.items():
            names = self.after.dense.get(name)
            if names is None or names[0] is None or name not in self.fresh:
                continue
            known = set(self.before.dense[name][0] or ())
            born = [place for place, label in enumerate(names[0]) if label not in known]
            value[born] = self.fresh[name][born].to(value.dtype)
        return new

    def optimizer(self, old: dict[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Any]:
        """The state of the dense optimizer for the new weights; entries without an old weight are 0.

        Args:
            old: The state dict of the optimizer.
            weights: The old weights.
        """
        state: dict[int, dict[str, Any]] = {}
        found: dict[int, dict[str, Any]] = old["state"]
        for number, entries in found.items():
            name = self.parameters[number]
            state[number] = {
                key: self._resized(name, value)
                if isinstance(value, torch.Tensor) and value.shape == weights[name].shape
                else value
                for key, value in entries.items()
            }
        return {**old, "state": state}

    def _resized(self, name: str, old: Tensor) -> Tensor:
        if name not in self.after.dense:
            return old
        return renamed(old, self.before.dense[name], self.after.dense[name])


def renamed(
    weight: Tensor, before: tuple[Names, ...], after: tuple[Names, ...], *, new: float = 0.0
) -> Tensor:
    """A weight with its entries in the order of other names. Entries whose name it lacks have the value `new`.

    Example:
        >>> weight = torch.tensor([[1.0, 2.0]])
        >>> renamed(weight, (None, ["a", "b"]), (None, ["c", "b", "a"]))
        tensor([[0., 2., 1.]])
    """
    for dimension, (old, names) in enumerate(zip(before, after, strict=True)):
        if old is None or names is None or list(old) == list(names):
            continue
        places = {name: place for place, name in enumerate(old)}
        known = [place for place, name in enumerate(names) if name in places]
        shape = list(weight.shape)
        shape[dimension] = len(names)
        made = weight.new_full(shape, new)
        taken = torch.tensor([places[names[place]] for place in known], dtype=torch.int64)
        made.index_copy_(
            dimension,
            torch.tensor(known, dtype=torch.int64),
            weight.index_select(dimension, taken),
        )
        weight = made
    return weight
