"""Whether torchrun started this process, and the settings that follow from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rowmill.config.setting import ConfigError
from rowmill.distributed.torchrun import Launched
from rowmill.train.backend import dense_device, device_name

if TYPE_CHECKING:
    from rowmill.config.config import Config


def started_ranks() -> int | None:
    """Number of ranks that torchrun started, this process included; None without torchrun."""
    here = Launched.here()
    return None if here is None else here.count


def rank_conditions(config: Config) -> dict[str, Any]:
    """Conditions of bit-identical results under torchrun: number of ranks and device of their dense halves."""
    here = Launched.here()
    if here is None:
        return {}
    device = dense_device(config.train.backend, here.local_rank)
    return {"ranks": here.count, "device": device_name(device)}


def is_first() -> bool:
    """Whether this process prints and writes reports: rank 0, or the only process."""
    here = Launched.here()
    return here is None or here.rank == 0


def check_alone(config: Config) -> None:
    """Raise `ConfigError` if the settings name a backend or placement, which a run without torchrun does not use."""
    if config.train.placement is not None:
        raise ConfigError(
            f"train.placement = {config.train.placement!r} needs many ranks: start the command with torchrun, or drop "
            "--placement"
        )
    if config.train.backend != "gloo":
        raise ConfigError(
            f"train.backend = {config.train.backend!r} needs many ranks: start the command with torchrun, or drop "
            "--backend"
        )
