"""The dense half of a model: its optimizer, and what it multiplies in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rowmill.config import ConfigError
from rowmill.optim import SplitAdagrad, SplitSGD

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from rowmill.config import TrainConfig


def dense_optimizer(
    train: TrainConfig, parameters: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimizer of the settings; with `split-bf16` the parameters become bfloat16.

    Raises:
        ConfigError: This processor does not multiply in bfloat16.
    """
    check_precision(train)
    split = train.precision == "split-bf16"
    match train.dense_optimizer:
        case "sgd":
            return (SplitSGD if split else torch.optim.SGD)(parameters, lr=train.dense_lr)
        case "adagrad":
            return (SplitAdagrad if split else torch.optim.Adagrad)(parameters, lr=train.dense_lr)
        case "adam":
            return torch.optim.Adam(parameters, lr=train.dense_lr)


def check_precision(train: TrainConfig) -> None:
    """Raise if this processor does not multiply in what the settings name."""
    if train.precision != "fp32" and not multiplies_bf16():
        raise ConfigError(
            f"train.precision = {train.precision!r} needs a processor with AVX512-BF16 or AMX, which this one has not: "
            "drop --precision"
        )


def multiplies_bf16() -> bool:
    """Whether this processor has instructions for it: without them bfloat16 is slower than float32."""
    has = torch.cpu.get_capabilities()
    return bool(has.get("avx512_bf16") or has.get("amx_bf16"))


def dense_precision(train: TrainConfig) -> torch.autocast:
    """In which products are taken inside of it. What comes out of a model may be bfloat16."""
    return torch.autocast("cpu", torch.bfloat16, enabled=train.precision != "fp32")
