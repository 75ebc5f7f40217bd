"""What many tests need: an empty store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import rowmill

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[rowmill.Store]:
    with rowmill.open(tmp_path / "store", memory="64MiB", wait_deadline_s=2.0) as opened:
        yield opened
