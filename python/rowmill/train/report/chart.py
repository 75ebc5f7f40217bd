"""A line chart as inline SVG: no script, readable on paper, values on hover."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_WIDTH, _HEIGHT = 520, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 14, 34
_LABEL_GAP = 13


@dataclass(frozen=True)
class Line:
    """One curve; a point without a value leaves a gap."""

    name: str
    points: Sequence[tuple[float, float | None]]


@dataclass(frozen=True)
class Level:
    """A horizontal line to compare with."""

    name: str
    value: float


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    form: Callable[[float], str],
    levels: Sequence[Level] = (),
    from_zero: bool = False,
    robust: bool = False,
    unit: str = "rows",
) -> str:
    """The chart as an `<svg>` element, or a remark if no line has a value.

    Args:
        lines: Curves over the same axes.
        title: Description for screen readers; it is not drawn.
        form: Formats a value of the vertical axis.
        levels: Horizontal lines.
        from_zero: Whether the vertical axis starts at 0.
        robust: Choose the vertical axis without the top and bottom 2 % of the values, and clip them. For curves whose
            first points would flatten the rest.
        unit: What the horizontal axis counts.
    """
    known = [
        [(x, y) for x, y in line.points if y is not None and math.isfinite(y)] for line in lines
    ]
    values = sorted(y for points in known for _, y in points)
    if not values:
        return '<p class="none">no figures</p>'
    cut = len(values) // 50 if robust else 0
    used = values[cut : len(values) - cut] + [level.value for level in levels]
    ticks = nice_ticks(0.0 if from_zero else min(used), max(used))
    low, high = ticks[0], ticks[-1]
    x_high = max(x for points in known for x, _ in points)

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (_WIDTH - _LEFT - _RIGHT) * (x / x_high if x_high else 0.0)
        share = (min(max(y, low), high) - low) / (high - low)
        return across, _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
        *_axes(ticks, x_high, place, form, unit),
        *_level_lines(levels, x_high, place, form),
    ]
    for number, (line, points) in enumerate(zip(lines, known, strict=True)):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        parts.append(f'<polyline class="line line{number}" points="{path}"/>')
        for x, y in points:
            at_x, at_y = place(x, y)
            hover = f"{escape(line.name)}: {form(y)} at {x:,.0f} {unit}"
            parts.append(
                f'<circle class="dot line{number}" cx="{at_x:.1f}" cy="{at_y:.1f}" r="5">'
                f"<title>{hover}</title></circle>"
            )
    parts.append("</svg>")
    legend = ""
    if len(lines) > 1:
        names = "".join(
            f'<span><i class="key line{number}"></i>{escape(line.name)}</span>'
            for number, line in enumerate(lines)
        )
        legend = f'<p class="legend">{names}</p>'
    return "".join(parts) + legend


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers that enclose a range, at least two.

    Examples:
        >>> nice_ticks(0.0, 93.0)
        [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    """
    if high - low < 1e-9 * max(abs(high), abs(low), 1e-3):
        pad = abs(high) * 0.05 or 0.5
        low, high = low - pad if low else 0.0, high + pad
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    # A step below 1e-9 needs more than 12 decimal digits.
    digits = max(12, 3 - math.floor(math.log10(step)))
    return [round(i * step, digits) for i in range(first, last + 1)]


def short_count(value: float) -> str:
    """A count in a few characters.

    Examples:
        >>> [short_count(value) for value in (950, 12_000, 2_500_000)]
        ['950', '12k', '2.5M']
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _axes(
    ticks: Sequence[float],
    x_high: float,
    place: Callable[[float, float], tuple[float, float]],
    form: Callable[[float], str],
    unit: str,
) -> list[str]:
    parts: list[str] = []
    for tick in ticks:
        _, y = place(0, tick)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{form(tick)}</text>'
        )
    for tick in [tick for tick in nice_ticks(0.0, x_high) if tick <= x_high]:
        x, _ = place(tick, ticks[0])
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{_HEIGHT - 14}" text-anchor="middle">{short_count(tick)}</text>'
        )
    parts.append(
        f'<text class="tick" x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 2}" text-anchor="end">{unit} trained on</text>'
    )
    return parts


def _level_lines(
    levels: Sequence[Level],
    x_high: float,
    place: Callable[[float, float], tuple[float, float]],
    form: Callable[[float], str],
) -> list[str]:
    parts: list[str] = []
    label_y = math.inf
    # From the bottom up, each label at least one text line above the previous one, so that labels do not overlap.
    for level in sorted(levels, key=lambda level: level.value):
        x, y = place(x_high, level.value)
        label_y = min(y - 4, label_y - _LABEL_GAP)
        parts.append(f'<line class="level" x1="{_LEFT}" x2="{x:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="level" x="{_LEFT + 6}" y="{label_y:.1f}">{escape(level.name)} {form(level.value)}</text>'
        )
    return parts
