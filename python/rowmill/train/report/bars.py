"""Stacked bars as inline SVG, for example the time of each part of a step."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from rowmill.train.report.chart import nice_ticks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_WIDTH, _ROW, _BAR = 1100, 46, 24
_RIGHT, _TOP, _BOTTOM = 70, 6, 30

PALETTE = (
    "#2563eb",
    "#0891b2",
    "#0f9d6b",
    "#65a30d",
    "#a3b763",
    "#6ee7b7",
    "#67e8f9",
    "#93c5fd",
    "#64748b",
    "#f5a742",
    "#d97706",
    "#dc2626",
    "#be185d",
    "#7c3aed",
    "#cbd5e1",
)
"""Colours of the parts, in order."""


@dataclass(frozen=True)
class Bar:
    """One bar: its name, and the length of every part."""

    name: str
    parts: Sequence[float]


def stacked_bars(
    bars: Sequence[Bar], parts: Sequence[str], *, title: str, form: Callable[[float], str]
) -> str:
    """Horizontal bars over one axis from zero, and a legend.

    Args:
        bars: Bars, each with a length for every part.
        parts: Names of the parts, at most as many as `PALETTE` has colours.
        title: Description for screen readers.
        form: Formats a length.
    """
    height = _TOP + _ROW * len(bars) + _BOTTOM
    ticks = nice_ticks(0.0, max([sum(bar.parts) for bar in bars] + [1e-9]))

    def across(length: float) -> float:
        return (_WIDTH - _RIGHT) * length / ticks[-1]

    out = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">']
    for tick in ticks:
        x = across(tick)
        out.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{height - _BOTTOM}"/>'
            f'<text class="tick" x="{x:.1f}" y="{height - 12}" text-anchor="middle">{form(tick)}</text>'
        )
    for number, bar in enumerate(bars):
        top = _TOP + number * _ROW
        out.append(f'<text class="bar" x="0" y="{top + 13}">{escape(bar.name)}</text>')
        begin = 0.0
        for part, length, colour in zip(parts, bar.parts, PALETTE[: len(parts)], strict=True):
            if length > 0:
                out.append(
                    f'<rect x="{across(begin):.1f}" y="{top + 18}" width="{across(length):.2f}" height="{_BAR}" '
                    f'fill="{colour}"><title>{escape(part)}: {form(length)}</title></rect>'
                )
            begin += length
        out.append(
            f'<text class="tick" x="{across(begin) + 6:.1f}" y="{top + 18 + _BAR / 2 + 4:.1f}">{form(begin)}</text>'
        )
    out.append("</svg>")
    legend = "".join(
        f'<span><i class="swatch" style="background:{colour}"></i>{escape(part)}</span>'
        for part, colour in zip(parts, PALETTE, strict=False)
    )
    return "".join(out) + f'<p class="legend">{legend}</p>'
