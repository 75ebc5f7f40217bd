"""Which cores of a machine the work of a rank takes, and which the threads that carry its messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rowmill.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

Pin = Literal["off", "apart", "together"]
"""Threads that carry messages run on any core, on cores of their own, or on the cores of the work."""


@dataclass(frozen=True)
class Cores:
    """Where the threads of a rank run.

    Attributes:
        compute: Cores of its work.
        comm: Cores of the threads that carry its messages.
        threads: How many share the work.
    """

    compute: tuple[int, ...]
    comm: tuple[int, ...]
    threads: int


def cores_of(
    rank: int, ranks: int, cores: Sequence[int], *, pin: Pin, threads: int | None = None
) -> Cores:
    """The cores of one of `ranks` ranks on this machine, which share `cores`.

    Apart: each rank's communication has a core if there are two for each rank, else one core carries that of all. What is left
    is for work, in equal shares, or shared where there are fewer cores than ranks. Together: no core is used but those for work.

    Examples:
        >>> cores_of(1, 2, [0, 1, 2, 3, 4, 5], pin="apart")
        Cores(compute=(2, 3), comm=(5,), threads=2)
    """
    if pin == "off":
        return Cores(tuple(cores), tuple(cores), threads or max(1, len(cores) // ranks))
    if len(cores) < 2:
        raise InvalidInput("--pin sets cores apart for communication: there is only one core here")
    carrying = ranks if len(cores) >= 2 * ranks else 1
    left, comm = cores[:-carrying], cores[-carrying:]
    begin, end = len(left) * rank // ranks, len(left) * (rank + 1) // ranks
    compute = left[begin : max(begin + 1, end)]
    carriers = compute if pin == "together" else comm[rank % carrying : rank % carrying + 1]
    return Cores(tuple(compute), tuple(carriers), threads or max(1, len(compute)))
