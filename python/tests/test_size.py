"""Parsing of sizes such as "2GiB", and errors that name an invalid size."""

import pytest

from rowmill.errors import InvalidInput
from rowmill.size import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("17", 17), ("17B", 17), ("2GiB", 2 << 30), ("2 gb", 2 * 10**9), (" 1.5kib ", 1536)],
)
def test_sizes_are_parsed(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "2XB", "-1", "1e9", "2 Gi B", None, 1.5, True])
def test_invalid_sizes_are_named(text: object) -> None:
    with pytest.raises(InvalidInput, match="row_memory must be"):
        parse_size(text, name="row_memory")  # pyright: ignore[reportArgumentType]


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(InvalidInput, match="memory must not be negative, got -1"):
        parse_size(-1)


@pytest.mark.parametrize("size", [1 << 63, "9000000TiB", "9" * 30, "9000000.5TiB"])
def test_sizes_beyond_63_bits_are_refused(size: int | str) -> None:
    with pytest.raises(InvalidInput, match="memory must be less than 8388608TiB"):
        parse_size(size)
    with pytest.raises(InvalidInput, match="memory must be a number of bytes"):
        parse_size("9" * 5000)


def test_sizes_are_formatted_with_units() -> None:
    assert [format_size(x) for x in (0, 1023, 1024, 3 << 20, 5 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "3.0 MiB",
        "5.0 TiB",
    ]
