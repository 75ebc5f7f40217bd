"""Configurations of runs that execute in the process of a test."""

from __future__ import annotations

import io
from collections.abc import Callable

from rich.console import Console

from rowmill.config import Config

Make = Callable[..., Config]
"""Type of the fixture `make`: makes a configuration from the name of its folder, and settings as `section__key=value`."""


def quiet() -> Console:
    """A console that prints nothing."""
    return Console(file=io.StringIO())
