"""What many tests need: an empty store, and kernels for a GPU that run where there is none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch

import rowmill

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


# Triton looks at them when it is first imported, and so before any module of tests is.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
# What it would choose anyway, with a warning.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[rowmill.Store]:
    with rowmill.open(tmp_path / "store", memory="64MiB", wait_deadline_s=2.0) as opened:
        yield opened
