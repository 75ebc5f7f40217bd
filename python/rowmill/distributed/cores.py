"""Core pinning: the cores for a rank's compute threads and for its communication threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rowmill.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

Pin = Literal["off", "apart", "together"]
"""Communication threads run on any core ("off"), on separate cores ("apart"), or on compute cores ("together")."""


@dataclass(frozen=True)
class Cores:
    """Cores of one rank.

    Attributes:
        compute: Cores of the compute threads.
        comm: Cores of the communication threads.
        threads: Number of compute threads.
    """

    compute: tuple[int, ...]
    comm: tuple[int, ...]
    threads: int


def cores_of(
    rank: int, ranks: int, cores: Sequence[int], *, pin: Pin, threads: int | None = None
) -> Cores:
    """Assign cores to one of the `ranks` ranks on this machine, which share `cores`.

    "apart": with two cores per rank or more, each rank has a communication core, else all ranks share one. The other cores
    compute, in equal shares; with fewer cores than ranks, ranks share them. "together": compute cores as with "apart", and
    communication runs on them too.

    Raises:
        InvalidInput: `pin` is not "off" and there is only one core.

    Examples:
        >>> cores_of(1, 2, [0, 1, 2, 3, 4, 5], pin="apart")
        Cores(compute=(2, 3), comm=(5,), threads=2)
    """
    if pin == "off":
        return Cores(tuple(cores), tuple(cores), threads or max(1, len(cores) // ranks))
    if len(cores) < 2:
        raise InvalidInput(
            "--pin needs a core for communication, and there is only one core here: use --pin off"
        )
    carrying = ranks if len(cores) >= 2 * ranks else 1
    left, comm = cores[:-carrying], cores[-carrying:]
    begin, end = len(left) * rank // ranks, len(left) * (rank + 1) // ranks
    compute = left[begin : max(begin + 1, end)]
    carriers = compute if pin == "together" else comm[rank % carrying : rank % carrying + 1]
    return Cores(tuple(compute), tuple(carriers), threads or max(1, len(compute)))
