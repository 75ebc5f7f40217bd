"""Programs that tests ask workers with, which `tools/serving.sh` brings."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

_PROMTOOL = Path(__file__).parents[3] / ".tools/prometheus/usr/bin/promtool"
_BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def promtool() -> Path:
    """The checker of metrics that comes with Prometheus."""
    if not _PROMTOOL.exists():
        pytest.fail("no promtool under .tools: run tools/serving.sh, as `make test-serving` does")
    return _PROMTOOL


def browser() -> str:
    """A chromium that needs no display."""
    for name in _BROWSERS:
        if found := shutil.which(name):
            return found
    pytest.fail("no chromium: run tools/serving.sh, as `make test-serving` does")
