"""The report of a run as one self-contained HTML page: metrics, curves, then settings and machine."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from rowmill.size import format_size
from rowmill.train.report.chart import Level, Line, line_chart, short_count
from rowmill.train.report.figures import figures_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rowmill.train.report.figures import Figure

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #667085; --paper: #f6f7f9; --card: #ffffff;
  --edge: #e3e6eb; --line0: #2563eb; --line1: #d97706; --level: #0f9d6b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ebf0; --soft: #98a2b3; --paper: #12161c;
  --card: #1a2029; --edge: #2b3340; --line0: #6aa2ff; --line1: #f5a742; --level: #3ecf9a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 28px 20px 60px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 22px; margin: 0 0 2px; } h2 { font-size: 15px; margin: 0 0 8px; }
p { margin: 0; } .soft, .none { color: var(--soft); }
.grid { display: grid; gap: 14px; margin-top: 18px; }
.tiles { grid-template-columns: repeat(auto-fit, minmax(142px, 1fr)); }
.charts { grid-template-columns: repeat(auto-fit, minmax(min(430px, 100%), 1fr)); }
.card { background: var(--card); border: 1px solid var(--edge); border-radius: 10px; padding: 14px 16px; min-width: 0; }
.card b { display: block; font-size: 25px; font-weight: 650; font-variant-numeric: tabular-nums; }
.tiles p { font-size: 13px; white-space: nowrap; }
.card small { color: var(--soft); display: block; min-height: 1.5em; }
svg { width: 100%; height: auto; display: block; overflow: visible; }
svg line.grid { stroke: var(--edge); } text { font: 11px system-ui, sans-serif; }
text.tick { fill: var(--soft); } .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
polyline.line0 { stroke: var(--line0); } polyline.line1 { stroke: var(--line1); }
.dot { fill: transparent; } .dot:hover { fill: var(--line0); } .dot.line1:hover { fill: var(--line1); }
line.level { stroke: var(--level); stroke-dasharray: 5 4; } text.level { fill: var(--level); }
.legend { color: var(--soft); font-size: 13px; } .legend span { margin-right: 16px; }
.key { display: inline-block; width: 14px; height: 3px; margin-right: 6px; vertical-align: middle; }
.swatch { display: inline-block; width: 11px; height: 11px; margin-right: 5px; border-radius: 2px; }
text.bar { fill: var(--ink); }
.key.line0 { background: var(--line0); } .key.line1 { background: var(--line1); }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
td { padding: 3px 0; border-top: 1px solid var(--edge); overflow-wrap: anywhere; vertical-align: top; }
td:first-child { color: var(--soft); padding-right: 14px; white-space: nowrap; }
"""


def report_page(report: dict[str, Any]) -> str:
    """The page for the content of a `report.json`."""
    config, run, machine = report["config"], report["run"], report["machine"]
    data, kind = config["data"]["path"], config["model"]["kind"]
    title = f"{kind} on {data}" if data else kind
    unit = figures_of(report).unit
    where = "plain torch modules" if config["train"]["plain"] else "a store"
    lead = (
        f"{run['train_rows']:,} training {unit}, {run['test_rows']:,} test {unit}; "
        f"{run['steps']:,} steps of {config['train']['batch']} {unit} in {run['seconds']:.1f} s; "
        f"rows of {config['model']['dim']} weights in {where}, with {config['rows']['optimizer']}."
    )
    content = (
        f'<div class="grid tiles">{"".join(_tiles(report))}</div>'
        f'<div class="grid charts">{"".join(_charts(report))}</div>'
        f'<div class="grid charts">{_parts(report)}{_table("Rows and memory", _readable(run))}'
        f"{_table('Settings', _flat(config))}{_table('Machine', _readable(machine))}</div>"
    )
    return html_page(title, lead, content)


def html_page(title: str, lead: str, content: str) -> str:
    """A self-contained page; title and lead are escaped, content is HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>rowmill: {escape(title)}</title><style>{_STYLE}</style></head><body>"
        f'<h1>{escape(title)}</h1><p class="soft">{escape(lead)}</p>{content}</body></html>\n'
    )


def _parts(report: dict[str, Any]) -> str:
    """The parts of the data before the current one, each with the metrics of its test."""
    figures = figures_of(report)
    parts = {
        f"{number}. {part['data']}": ", ".join(
            [
                f"to step {part['steps']:,}",
                *(
                    f"{figure.name} {figure.of(part['test'])}"
                    for figure in figures.tested(part["test"])
                ),
            ]
        )
        for number, part in enumerate(report.get("parts", ()), 1)
    }
    return _table("Earlier data", parts) if parts else ""


def _tiles(report: dict[str, Any]) -> list[str]:
    figures, test, train, run = figures_of(report), report["test"], report["train"], report["run"]
    teacher: dict[str, float | None] = report.get("teacher") or {}

    def beside(figure: Figure) -> str:
        return f"teacher {figure.of(teacher)}" if teacher.get(figure.key) is not None else ""

    tiles = [
        *(
            (_sentence(figure.name), figure.of(test), beside(figure) or figure.note)
            for figure in figures.tested(test)
        ),
        (
            _sentence(f"{figures.unit} per second"),
            _optional(train["rows_per_s"], "{:,.0f}".format),
            "while training",
        ),
        ("Hit rate", _optional(train["hit_rate"], _percent), "of looked-up rows were in memory"),
        (
            "Stall share",
            _optional(train["stall_share"], _percent),
            "of the time the loop waited for rows",
        ),
    ]
    if "live_rows" in run:
        size = format_size(run["live_row_bytes"])
        tiles.append(("Live rows", short_count(run["live_rows"]), f"{size} with optimizer state"))
    return [
        f'<div class="card"><p class="soft">{escape(name)}</p><b>{escape(value)}</b><small>{escape(note)}</small></div>'
        for name, value, note in tiles
    ]


def _charts(report: dict[str, Any]) -> list[str]:
    figures, curve, test, run = (
        figures_of(report),
        report["curve"],
        report["test"],
        report["run"],
    )
    teacher: dict[str, float | None] = report.get("teacher") or {}

    def line(key: str, name: str, unit: float = 1.0) -> Line:
        values = [(point["rows"], point[key]) for point in curve if key in point]
        return Line(name, [(x, None if y is None else y / unit) for x, y in values])

    def levels(key: str) -> list[Level]:
        found = [("test", test.get(key)), ("teacher", teacher.get(key))]
        return [Level(name, value) for name, value in found if value is not None]

    memory = (
        [Level("all live rows", run["live_row_bytes"] / (1 << 20))]
        if run.get("live_row_bytes")
        else []
    )
    if run.get("row_limit"):
        memory.append(Level("limit for rows", run["row_limit"] / (1 << 20)))

    def card(title: str, chart: str) -> str:
        return f'<div class="card"><h2>{escape(title)}</h2>{chart}</div>'

    def one(
        title: str, key: str, form: Callable[[float], str], unit: float = 1.0, **options: Any
    ) -> str:
        return card(
            title,
            line_chart(
                [line(key, title, unit)], title=title, form=form, unit=figures.unit, **options
            ),
        )

    return [
        *(
            one(figure.name, figure.key, _fixed_short, levels=levels(figure.key), robust=True)
            for figure in figures.charts
        ),
        one(_sentence(f"{figures.unit} per second"), "rows_per_s", short_count, from_zero=True),
        card(
            "Hit rate and stall share",
            line_chart(
                [line("hit_rate", "hit rate"), line("stall_share", "stall share")],
                title="Hit rate and stall share",
                form=_percent_short,
                from_zero=True,
                unit=figures.unit,
            ),
        ),
        one("Memory of rows", "row_bytes", _mebibytes, from_zero=True, levels=memory, unit=1 << 20),
        one("Memory of the process", "process_bytes", _mebibytes, from_zero=True, unit=1 << 20),
    ]


def _table(title: str, values: dict[str, str]) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>"
        for name, value in values.items()
    )
    return f'<div class="card"><h2>{escape(title)}</h2><table>{rows}</table></div>'


def _flat(config: dict[str, dict[str, Any] | None]) -> dict[str, str]:
    return {
        f"{section}.{key}": "-" if value is None else str(value)
        for section, values in config.items()
        for key, value in (values or {}).items()
    }


def _readable(values: dict[str, Any]) -> dict[str, str]:
    def text(name: str, value: Any) -> str:
        sized = name.endswith(("_bytes", "_limit", "_budget", "_written"))
        if sized and isinstance(value, int):
            return format_size(value)
        if isinstance(value, int):
            return f"{value:,}"
        return f"{value:,.2f}" if isinstance(value, float) else str(value)

    return {name.replace("_", " "): text(name, value) for name, value in values.items()}


def _optional(value: float | None, form: Callable[[float], str]) -> str:
    return "-" if value is None else form(value)


def _sentence(name: str) -> str:
    return name[0].upper() + name[1:]


def _fixed_short(value: float) -> str:
    return f"{value:.3f}"


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _percent_short(value: float) -> str:
    return f"{value:.0%}"


def _mebibytes(value: float) -> str:
    return f"{value:,.0f} MiB"
