"""These cases need other frameworks: `test_frameworks.py` runs them in processes that can import these."""

import os

import pytest

collect_ignore_glob = [] if "ROWMILL_FRAMEWORKS" in os.environ else ["*_cases.py"]


@pytest.fixture(autouse=True)
def _seed() -> None:
    import torch

    torch.manual_seed(0)
