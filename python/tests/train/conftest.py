"""Where the real data is."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def shared_data() -> Path:
    """Real data that is not part of the repository."""
    root = Path(os.environ.get("ROWMILL_DATA", Path(__file__).parents[4] / "shared/data"))
    if not root.is_dir():
        pytest.skip(f"no real data in {root}: set ROWMILL_DATA to its folder")
    return root
