"""Claims about figures: what a summary must show, and whether it does."""

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """What figures must be.

    Attributes:
        figures: A pattern of names, as in file names.
        least: The smallest value.
        most: The largest.
    """

    figures: str
    least: float = float("-inf")
    most: float = float("inf")

    def holds(self, value: float) -> bool:
        """Whether a value is as it must be."""
        return self.least <= value <= self.most


def verdicts(
    summary: Mapping[str, float], claims: Iterable[Claim]
) -> list[tuple[str, float, bool]]:
    """Every figure that a claim is about: name, value, and whether the claim holds."""
    return [
        (name, value, claim.holds(value))
        for claim in claims
        for name, value in summary.items()
        if fnmatch.fnmatchcase(name, claim.figures)
    ]
