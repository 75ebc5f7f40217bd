"""Optimizer and number format of the dense half of a model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rowmill.config.setting import ConfigError
from rowmill.optim import SplitAdagrad, SplitSGD
from rowmill.train.backend import CPU, device_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from rowmill.config.sections import TrainConfig


def dense_optimizer(
    train: TrainConfig, parameters: Iterable[nn.Parameter], device: torch.device
) -> torch.optim.Optimizer:
    """The dense optimizer of the settings; with `split-bf16` it converts the parameters to bfloat16.

    Raises:
        ConfigError: `train.precision` needs bfloat16 instructions that the device lacks.
    """
    check_precision(train, device)
    split = train.precision == "split-bf16"
    match train.dense_optimizer:
        case "sgd":
            return (SplitSGD if split else torch.optim.SGD)(parameters, lr=train.dense_lr)
        case "adagrad":
            return (SplitAdagrad if split else torch.optim.Adagrad)(parameters, lr=train.dense_lr)
        case "adam":
            return torch.optim.Adam(parameters, lr=train.dense_lr)


def check_precision(train: TrainConfig, device: torch.device = CPU) -> None:
    """Raise `ConfigError` if the device has no bfloat16 instructions and `train.precision` needs them."""
    if train.precision == "fp32":
        return
    if device.type == "cuda":
        if not torch.cuda.is_bf16_supported(including_emulation=False):
            raise ConfigError(
                f"train.precision = {train.precision!r} needs a GPU with bfloat16 arithmetic, which "
                f"{device_name(device)} lacks: use --precision fp32"
            )
    elif not multiplies_bf16():
        raise ConfigError(
            f"train.precision = {train.precision!r} needs a processor with AVX512-BF16 or AMX, which this one lacks: "
            "use --precision fp32"
        )


def multiplies_bf16() -> bool:
    """Whether this processor has bfloat16 instructions; without them bfloat16 is slower than float32."""
    # torch before 2.6 does not tell.
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return flags is not None and not {"avx512_bf16", "amx_bf16"}.isdisjoint(flags[1].split())


def dense_precision(train: TrainConfig, device: torch.device = CPU) -> torch.autocast:
    """Context manager for the forward pass: matrix products run in `train.precision`. Outputs may be bfloat16."""
    return torch.autocast(device.type, torch.bfloat16, enabled=train.precision != "fp32")
