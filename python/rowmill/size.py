"""Sizes in bytes, parsed from and formatted as text such as `"2GiB"`."""

from __future__ import annotations

import re
from numbers import Integral

from rowmill.errors import InvalidInput

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_SIZE = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z]*)\s*")
_BYTES_MAX = (1 << 63) - 1


def parse_size(size: int | str, *, name: str = "memory") -> int:
    """Parse a size into a number of bytes.

    Args:
        size: A number of bytes, or a number with a unit: B, KB, MB, GB, TB (powers of 1000),
            KiB, MiB, GiB, TiB (powers of 1024). Upper and lower case are equal.
        name: The argument's name in error messages.

    Raises:
        InvalidInput: `size` is negative, 2^63 or more, or not a size.

    Examples:
        >>> parse_size("1.5 GiB")
        1610612736
    """
    if isinstance(size, int) and not isinstance(size, bool):
        if size < 0:
            raise InvalidInput(f"{name} must not be negative, got {size}")
        return _within(size, size, name)
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise InvalidInput(
            f'{name} must be a number of bytes or a size such as "2GiB", got {size!r}'
        )
    whole = round(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit
    return _within(whole, size, name)


def check_int(value: object, name: str, low: int, high: int) -> int:
    """`value` as an int; raise `InvalidInput` about `name` unless it is a whole number from `low` to `high`."""
    whole = None if isinstance(value, bool) or not isinstance(value, Integral) else int(value)
    if whole is not None and low <= whole <= high:
        return whole
    raise InvalidInput(f"{name} must be a whole number from {low} to {high}, got {value!r}")


def _within(bytes_: int, given: int | str, name: str) -> int:
    if bytes_ > _BYTES_MAX:
        raise InvalidInput(f"{name} must be less than 8388608TiB (2^63 bytes), got {given!r}")
    return bytes_


def format_size(bytes_: int) -> str:
    """Format a number of bytes in powers of 1024.

    Examples:
        >>> format_size(1610612736)
        '1.5 GiB'
    """
    size = float(bytes_)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
