"""The layout of histories (a user's earlier items) in the ids of a batch.

Shapes: B rows per batch, F id features, H histories, P places per history, S = F + H * P, D weights per row, E = H * D.

The first F id columns of a batch are single ids. Then follow the P places of every history, oldest item first. The
`lengths` of a batch hold the number of items per row; the remaining places are padding, and their vectors are ignored.
The ids of a history belong to one of the F features, its target.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Histories:
    """The layout of a batch with histories.

    Attributes:
        features: F.
        targets: for every history, the number of the feature whose ids it holds.
        places: P.

    Example:
        >>> layout = Histories(features=3, targets=(1,), places=2)
        >>> others, target, history = layout.split(torch.rand(5, 5, 4))
        >>> others.shape, target.shape, history.shape
        (torch.Size([5, 8]), torch.Size([5, 4]), torch.Size([5, 2, 4]))
    """

    features: int
    targets: tuple[int, ...]
    places: int

    def __post_init__(self) -> None:
        if not self.targets or not all(0 <= target < self.features for target in self.targets):
            raise ValueError(
                f"targets must name at least one of the {self.features} features, got {list(self.targets)}"
            )
        if self.places < 1:
            raise ValueError(f"places must be at least 1, got {self.places}")

    @property
    def columns(self) -> int:
        """S."""
        return self.features + len(self.targets) * self.places

    @property
    def others(self) -> list[int]:
        """The features that are not targets."""
        return [feature for feature in range(self.features) if feature not in self.targets]

    def split(self, pooled_BSD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Vectors of the other features, concatenated; of the targets, ``[B, E]``; and of the places, ``[B, P, E]``."""
        if pooled_BSD.shape[1] != self.columns:
            raise ValueError(f"ids must be [B, {self.columns}], got {list(pooled_BSD.shape[:2])}")
        others_BX = pooled_BSD[:, self.others].flatten(1)
        targets_BE = pooled_BSD[:, list(self.targets)].flatten(1)
        shape = (-1, len(self.targets), self.places, pooled_BSD.shape[2])
        places_BHPD = pooled_BSD[:, self.features :].reshape(shape)
        return others_BX, targets_BE, places_BHPD.transpose(1, 2).flatten(2)

    def taken(self, lengths_B: Tensor) -> Tensor:
        """Whether each place holds an item (else padding), bool ``[B, P]``."""
        return torch.arange(self.places, device=lengths_B.device) < lengths_B.unsqueeze(1)
