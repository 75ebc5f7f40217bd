"""A task on the ranks that torchrun started: their meeting, their agreement on settings, and what no task supports there."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist

from rowmill.config.setting import ConfigError
from rowmill.distributed import Ranks, Watch
from rowmill.distributed.torchrun import Launched, ends_late, meet
from rowmill.train.backend import check_gpus, dense_device, torch_backend
from rowmill.train.out import ranked_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    import torch

    from rowmill.config.config import Config
    from rowmill.train.out import RunFolder

_T = TypeVar("_T")

_MEETING_S = 60.0
"""Longest wait for another rank to start."""

_WAIT_S = 600.0
"""Longest wait for another rank in a collective; a rank may still be reading the data."""

_LAST_WORDS_S = 5.0
"""After SIGTERM, a rank has this long to report which rank was lost."""


@dataclass(frozen=True)
class OnRanks:
    """This rank of a run.

    Attributes:
        ranks: All ranks.
        watch: Detects lost ranks.
        folder: The folder of the run, and the settings with it.
        device: The device of the dense half.
    """

    ranks: Ranks
    watch: Watch
    folder: RunFolder
    device: torch.device

    @property
    def config(self) -> Config:
        """The settings, with the folder of the run as `train.out`."""
        return self.folder.config

    def agree_on_data(self, read: Callable[[], tuple[_T, dict[str, Any]]]) -> _T:
        """Read the data of the settings on every rank, first on rank 0, which may have to generate it. A collective.

        Args:
            read: Returns the data and its identity, which must be equal on all ranks.
        """
        ranks, train = self.ranks, self.config.train

        def first() -> tuple[list[tuple[_T, dict[str, Any]]], dict[str, Any]]:
            return ([read()] if ranks.rank == 0 else []), {}

        def described() -> tuple[_T, dict[str, Any]]:
            data, identity = mine[0] if mine else read()
            # These settings may change when a run resumes, but must be equal on all ranks.
            now = {
                "train.resume": train.resume,
                "train.continues": train.continues,
                "train.checkpoint_every": train.checkpoint_every,
            }
            return data, identity | now

        mine = ranks.agree(first, "the data")
        return ranks.agree(described, "the settings")


@contextmanager
def on_ranks(config: Config) -> Generator[OnRanks]:
    """Meet the other ranks of torchrun, and watch them until the end."""
    here = Launched.here()
    if here is None:
        raise ConfigError("this process is not a rank of torchrun: start it with torchrun")
    backend = config.train.backend
    meet(
        here,
        torch_backend(backend),
        meeting_s=_MEETING_S,
        wait_s=_WAIT_S,
        able=lambda: check_gpus(backend, here.local_count),
    )
    device = dense_device(backend, here.local_rank)
    resume = "" if config.train.continues else " with --resume"
    ended = f"rowmill: ended by SIGTERM; to continue from the last checkpoint, run the same command{resume}"
    try:
        ranks = Ranks(timeout_s=_WAIT_S)
        with (
            ends_late(_LAST_WORDS_S, ended),
            Watch(ranks) as watch,
            ranked_folder(config, ranks) as folder,
        ):
            yield OnRanks(ranks, watch, folder, device)
    finally:
        dist.destroy_process_group()


def on_wire(config: Config) -> dict[str, Any]:
    """Entries of the identity of a run that only runs of many ranks have."""
    return {"train.rows_on_wire": config.train.rows_on_wire}


def check_ranked(config: Config, further: Mapping[str, bool]) -> None:
    """Raise `ConfigError` for a setting that only a run of one process supports; it names the setting.

    Args:
        config: The settings.
        further: Such settings of the task by description, and whether they are given.
    """
    alone = {
        **further,
        "train.plain": config.train.plain,
    }
    for what, given in alone.items():
        if given:
            raise ConfigError(
                f"{what} does not work with many ranks: start the command without torchrun, or drop the setting"
            )
