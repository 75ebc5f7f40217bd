"""`Setting`: help, flag and limits of one field of a section; and limits that fields share."""

from __future__ import annotations

from dataclasses import dataclass

from rowmill.errors import ConfigError as ConfigError

DIM_MAX = 65_536
FLOAT_MAX = 3e38
"""About the largest 32-bit float."""
BELOW_ONE = 0.999999
"""The largest decay; six digits, so that error messages print it exactly."""


@dataclass(frozen=True)
class Setting:
    """Help text of a field; its flag, smallest and largest value, and the name of its value in the help, if any."""

    help: str
    flag: str | None = None
    least: float | None = None
    most: float | None = None
    metavar: str | None = None
