"""What a field of a section of settings says of itself, and limits that fields share."""

from __future__ import annotations

from dataclasses import dataclass

from rowmill.errors import InvalidInput

DIM_MAX = 65_536
FLOAT_MAX = 3e38
"""What a 32-bit float holds, nearly."""
BELOW_ONE = 0.999999
"""The largest decay, written so that messages can say it."""


class ConfigError(InvalidInput):
    """A setting is wrong; the message names it, its value and the fix."""


@dataclass(frozen=True)
class Setting:
    """What a person is told about a field, its flag if it has one, and the least and the most it takes."""

    help: str
    flag: str | None = None
    least: float | None = None
    most: float | None = None
