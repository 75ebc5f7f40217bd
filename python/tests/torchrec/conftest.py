"""The cases need TorchRec: `test_torchrec.py` runs them in a process that has it."""

import os

import pytest

collect_ignore = [] if "ROWMILL_TORCHREC" in os.environ else ["cases.py"]


@pytest.fixture(autouse=True)
def _seed() -> None:
    import torch

    torch.manual_seed(0)
