"""The reports of a run: `report.json` for programs and `report.html` for reading."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from rowmill.train.report.figures import figures_of
from rowmill.train.report.page import html_page, report_page

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "clear_report",
    "figures_of",
    "html_page",
    "read_report",
    "report_page",
    "write_report",
    "write_whole",
]


def write_report(report: dict[str, Any], out: Path) -> None:
    """Write `report.html`, then `report.json`, into a folder. Each file appears atomically."""
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_finite(report), indent=2, allow_nan=False) + "\n"
    for name, content in (("report.html", report_page(report)), ("report.json", text)):
        write_whole(out / name, content)


def write_whole(file: Path, content: str) -> None:
    """Write a text file atomically."""
    unfinished = file.with_name(f".{file.name}")
    # Names of files may have bytes that are not UTF-8.
    unfinished.write_text(content, encoding="utf-8", errors="backslashreplace")
    unfinished.replace(file)


def read_report(out: Path) -> dict[str, Any] | None:
    """The content of the `report.json` of a folder; None if it is missing or not valid JSON."""
    try:
        return json.loads((out / "report.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def clear_report(out: Path) -> None:
    """Remove the report of a folder, if there is one."""
    for name in ("report.json", "report.html"):
        (out / name).unlink(missing_ok=True)


def _finite(value: Any) -> Any:
    """Replace NaN and infinite numbers, which JSON lacks, by None."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}  # pyright: ignore
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]  # pyright: ignore
    return None if isinstance(value, float) and not math.isfinite(value) else value
