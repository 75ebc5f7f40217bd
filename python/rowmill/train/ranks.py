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
    """Raise `ConfigError` if the settings name a backend, placement or speeds, which a run without torchrun does not use."""
    train = config.train
    for name, value, usual, flag in (
        ("placement", train.placement, None, "--placement"),
        ("speeds", None if train.speeds is None else str(train.speeds), None, "--speeds"),
        ("backend", train.backend, "gloo", "--backend"),
    ):
        if value != usual:
            raise ConfigError(
                f"train.{name} = {value!r} needs many ranks: start the command with torchrun, or drop {flag}"
            )
