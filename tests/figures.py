"""Find numbers in documents that link to a result, and check their digits.

benchmarks/README.md describes the syntax. Arithmetic is decimal, on the digits in the result file, so a value exactly
halfway between two printed ones is rounded away from zero, without binary rounding errors.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import TypeAlias

Json: TypeAlias = "dict[str, Json] | list[Json] | str | float | bool | None"
RESULT_COLUMNS = {"measured", "rowmill", "peer", "ratio"}
"""Names of columns with results, in tables of measurements."""
NO_RESULT = "(no result kept)"
LINK = re.compile(r'\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+\.json)\s+"(?P<path>[^"]*)"\)')
PRINTED = re.compile(
    r"\**(?P<number>[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?) ?(?P<suffix>[kM%x]?)\**"
)
SUFFIXES = {
    "": Decimal(1),
    "x": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "%": Decimal("0.01"),
}
CODE = re.compile(r"`[^`]*`")
MEASUREMENT = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+| ?(?:x|%|ns|us|ms|s|k|M|[kKMGT]i?B)(?!\w))")
SCALE = re.compile(
    r"(?P<path>.+?) (?P<sign>[*/])(?P<factor>[\d.]+(?:e[+-]?\d+)?)(?:\^(?P<power>\d+))?"
)


class FigureError(ValueError):
    """A number whose digits do not match its result."""


@dataclass(frozen=True)
class Figure:
    """A number in a document, its result file relative to the document, and the path of the value in the file."""

    line: int
    text: str
    target: str
    path: str

    def check(self, folder: Path) -> None:
        """Raise FigureError unless the printed digits match the value; `folder` holds the document."""
        file = folder / self.target
        if not file.is_file():
            raise FigureError(f"{self.target} does not exist")
        value = evaluate(json.loads(file.read_text()), self.path)
        printed = PRINTED.fullmatch(self.text)
        if printed is None:
            raise FigureError(
                f"{self.text!r} is not one number with a suffix of k, M, %, x or none"
            )
        number = Decimal(printed["number"].replace(",", ""))
        _, _, exponent = number.as_tuple()
        assert isinstance(exponent, int)
        scaled = value / SUFFIXES[printed["suffix"]]
        rounded = scaled.quantize(Decimal((0, (1,), exponent)), rounding=ROUND_HALF_UP)
        if rounded != number:
            raise FigureError(
                f"{self.text!r} is printed, {self.path!r} of {self.target} is {scaled}"
            )


def figures(text: str) -> Iterator[Figure]:
    """All numbers of a document that link to a result."""
    for number, line in enumerate(text.splitlines(), 1):
        for link in LINK.finditer(line):
            yield Figure(number, link["text"], link["target"], link["path"])


def unlinked(text: str) -> Iterator[tuple[int, str]]:
    """Measurements without a link in tables of results: line and cell.

    A measurement is a number with a decimal point or a unit, in a column of results, unless its row says that no result was
    kept. Whole numbers without a unit are often conditions (`at bound 80`), so they do not count.
    """
    columns: list[int] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|"):
            columns = None
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if columns is None:
            columns = [at for at, cell in enumerate(cells) if cell in RESULT_COLUMNS]
        elif NO_RESULT not in line:
            for cell in (cells[at] for at in columns):
                if MEASUREMENT.search(CODE.sub("", LINK.sub("", cell))):
                    yield number, cell


def evaluate(result: Json, path: str) -> Decimal:
    """The value of a path, or the quotient of two paths, either optionally with a factor or divisor at the end."""
    scale = Decimal(1)
    if scaled := SCALE.fullmatch(path):
        path = scaled["path"]
        scale = Decimal(scaled["factor"]) ** int(scaled["power"] or 1)
        scale = 1 / scale if scaled["sign"] == "/" else scale
    value, *divisors = (_number(result, part) for part in path.split(" / "))
    for divisor in divisors:
        if divisor == 0:
            raise FigureError(f"{path!r} divides by zero")
        value /= divisor
    return value * scale


def _number(result: Json, path: str) -> Decimal:
    value = _resolve(result, path.split("."), path)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FigureError(f"{path!r} is not a number: {json.dumps(value)[:60]}")
    return Decimal(repr(value))


def _resolve(value: Json, steps: list[str], path: str) -> Json:
    """Follow a path. Keys and selecting values may contain dots: the longest existing key is used."""
    if not steps:
        return value
    for count in range(len(steps), 0, -1):
        step, rest = ".".join(steps[:count]), steps[count:]
        if isinstance(value, dict) and step in value:
            return _resolve(value[step], rest, path)
        if isinstance(value, list):
            if step.isdecimal() and int(step) < len(value):
                return _resolve(value[int(step)], rest, path)
            if "=" in step and (selected := _selected(value, step)):
                return _resolve(selected, rest, path)
    if isinstance(value, list) and len(value) == 1:
        return _resolve(value[0], steps, path)
    if isinstance(value, list):
        raise FigureError(
            f"{path!r}: {'.'.join(steps)!r} fits none of {len(value)} elements, select one first"
        )
    raise FigureError(f"{path!r}: there is no {'.'.join(steps)!r}")


def _selected(elements: list[Json], step: str) -> list[Json]:
    field, _, wanted = step.partition("=")
    return [
        element
        for element in elements
        if isinstance(element, dict)
        and field in element
        and wanted in (element[field], json.dumps(element[field]))
    ]
