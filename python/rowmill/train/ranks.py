"""Whether torchrun started this process, and what that says about a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rowmill.config.setting import ConfigError
from rowmill.distributed.torchrun import Launched
from rowmill.train.backend import dense_device, device_name

if TYPE_CHECKING:
    from rowmill.config.config import Config


def started_ranks() -> int | None:
    """How many ranks torchrun has started, of which this process is one; None if it has not."""
    here = Launched.here()
    return None if here is None else here.count


def rank_conditions(config: Config) -> dict[str, Any]:
    """What bits depend on where torchrun has started ranks: how many, and what their dense halves are on."""
    here = Launched.here()
    if here is None:
        return {}
    device = dense_device(config.train.backend, here.local_rank)
    return {"ranks": here.count, "device": device_name(device)}


def is_first() -> bool:
    """Whether this process is the one that talks: rank 0, or the only one."""
    here = Launched.here()
    return here is None or here.rank == 0


def check_alone(config: Config) -> None:
    """Raise `ConfigError` for a backend that nobody would use: this process is no rank."""
    if config.train.backend != "gloo":
        raise ConfigError(
            f"train.backend = {config.train.backend!r} is between ranks: start them with torchrun, or drop --backend"
        )
