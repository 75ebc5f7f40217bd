"""Configurations of runs in the process of a test."""

from __future__ import annotations

import io
from collections.abc import Callable

from rich.console import Console

from rowmill.config import Config

Make = Callable[..., Config]
"""What the fixture `make` gives: a configuration by the name of its folder, and settings as `section__key=value`."""


def quiet() -> Console:
    """Prints nowhere."""
    return Console(file=io.StringIO())
