"""Where the real data is, and a process that runs are forked from."""

import os
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest


@pytest.fixture
def shared_data() -> Path:
    """Real data that is not part of the repository."""
    root = Path(os.environ.get("ROWMILL_DATA", Path(__file__).parents[4] / "shared/data"))
    if not root.is_dir():
        pytest.skip(f"no real data in {root}: set ROWMILL_DATA to its folder")
    return root


@pytest.fixture(scope="session")
def server() -> ForkServerContext:
    """Has loaded the modules of the command."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["rowmill.cli", "rowmill.train"])
    return context
