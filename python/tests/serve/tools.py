"""Third-party programs that check workers. `tools/serving.sh` installs them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

_PROMTOOL = Path(__file__).parents[3] / ".tools/prometheus/usr/bin/promtool"
_BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def promtool() -> Path:
    """Path of promtool, with which Prometheus checks metrics."""
    if not _PROMTOOL.exists():
        pytest.fail("no promtool under .tools: run tools/serving.sh, as `make test-serving` does")
    return _PROMTOOL


def browser() -> str:
    """Path of a Chromium that needs no display."""
    for name in _BROWSERS:
        if found := shutil.which(name):
            return found
    pytest.fail("no chromium: run tools/serving.sh, as `make test-serving` does")
