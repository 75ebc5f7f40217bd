"""The report: a single file without external parts, with all available metrics and well-formed charts."""

import itertools
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from rowmill.train.report import read_report, report_page, write_report, write_whole
from rowmill.train.report.chart import Level, Line, line_chart, nice_ticks, short_count


def a_report(**changes: Any) -> dict[str, Any]:
    point = {
        "step": 1,
        "rows": 256,
        "auc": 0.6,
        "logloss": 0.5,
        "ne": 0.9,
        "rows_per_s": 1000.0,
        "hit_rate": 0.9,
        "stall_share": 0.1,
        "row_bytes": 5 << 20,
        "process_bytes": 300 << 20,
    }
    later = {
        **point,
        "step": 2,
        "rows": 512,
        "auc": None,
        "logloss": float("nan"),
        "hit_rate": 0.95,
    }
    return {
        "test": {"auc": 0.7123, "logloss": 0.45, "ne": 0.88},
        "train": {"rows_per_s": 12345.6, "stall_share": 0.02, "hit_rate": 0.987},
        "teacher": {"auc": 0.7789, "logloss": 0.4, "ne": 0.8},
        "config": {
            "data": {"path": "<clicks> & more"},
            "model": {"kind": "dlrm", "dim": 16},
            "rows": {"optimizer": "adagrad"},
            "train": {"batch": 256, "plain": False},
            "generate": None,
        },
        "machine": {"processor": "One", "memory_bytes": 1 << 34},
        "run": {
            "train_rows": 512,
            "test_rows": 128,
            "steps": 2,
            "seconds": 0.5,
            "live_rows": 2_100_000,
            "live_row_bytes": 268_800_000,
            "row_limit": 64 << 20,
        },
        "curve": [point, later],
        **changes,
    }


def test_the_page_shows_the_metrics_and_loads_nothing() -> None:
    page = report_page(a_report())
    for figure in ("0.7123", "0.7789", "0.4500", "12,346", "98.7%", "2.0%", "2.1M", "256.3 MiB"):
        assert figure in page, figure
    assert "&lt;clicks&gt; &amp; more" in page
    assert "<clicks>" not in page
    assert re.findall(r"(?:src|href)=|url\(|<script|@import", page) == []


def test_every_chart_is_well_formed_and_inside_its_frame() -> None:
    charts = re.findall(r"<svg.*?</svg>", report_page(a_report()))
    assert len(charts) == 6
    for chart in charts:
        root = ElementTree.fromstring(chart)
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for circle in root.iter("circle"):
            assert 0 <= float(circle.attrib["cx"]) <= width
            assert 0 <= float(circle.attrib["cy"]) <= height


def test_a_run_without_test_rows_teacher_or_curve_has_a_page() -> None:
    nothing = {"auc": None, "logloss": None, "ne": None}
    page = report_page(a_report(test=nothing, teacher=None, curve=[]))
    assert page.count("no figures") == 6


def test_json_holds_null_for_undefined_metrics(tmp_path: Path) -> None:
    write_report(a_report(), tmp_path)
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["curve"][1]["logloss"] is None
    assert content["test"] == {"auc": 0.7123, "logloss": 0.45, "ne": 0.88}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]


def test_a_name_that_is_not_utf_8_is_written_with_escapes(tmp_path: Path) -> None:
    write_whole(tmp_path / "page", "clicks-\udce4.tsv")
    assert (tmp_path / "page").read_text() == "clicks-\\udce4.tsv"


def test_report_json_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that finds report.json takes the report for complete."""
    replace = Path.replace

    def only_the_first(path: Path, target: Path) -> None:
        if list(tmp_path.glob("report.*")):
            raise KeyboardInterrupt
        replace(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", only_the_first)
        with pytest.raises(KeyboardInterrupt):
            write_report(a_report(), tmp_path)
    assert read_report(tmp_path) is None
    assert (tmp_path / "report.html").read_text() == report_page(a_report())


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0, 1),
        (0.4321, 0.4399),
        (0, 93),
        (5, 5),
        (0, 0),
        (1e6, 3.3e8),
        (-2, 7),
        (0.0, 1e-5),
        (2e-16, 2e-16),
        (3e-14, 7e-14),
    ],
)
def test_ticks_are_even_and_enclose_the_range(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low
    assert ticks[-1] >= high
    assert 2 <= len(ticks) <= 9
    steps = {round((b - a) / (ticks[1] - ticks[0]), 6) for a, b in itertools.pairwise(ticks)}
    assert steps == {1.0}


def test_labels_of_levels_do_not_overlap() -> None:
    chart = line_chart(
        [Line("auc", [(1, 0.5), (2, 0.7)])],
        title="auc",
        form=lambda value: f"{value:.3f}",
        levels=[Level("test", 0.7), Level("teacher", 0.7001)],
    )
    heights = [float(y) for y in re.findall(r'class="level" x="[\d.]+" y="([\d.]+)"', chart)]
    assert len(heights) == 2
    assert abs(heights[0] - heights[1]) >= 12


def test_early_points_do_not_flatten_a_robust_chart() -> None:
    points = [(float(x), 100.0 if x == 0 else 1.0 + x / 100) for x in range(100)]
    chart = line_chart([Line("loss", points)], title="loss", form=lambda v: f"{v:g}", robust=True)
    assert ">100<" not in chart


@pytest.mark.parametrize("value", [0.0, 1e-17, 5e-324, -3e-20])
def test_a_nearly_constant_curve_has_a_chart(value: float) -> None:
    chart = line_chart([Line("loss", [(1, value), (2, value)])], title="loss", form=str)
    assert ElementTree.fromstring(chart).tag.endswith("svg")


def test_counts_are_abbreviated() -> None:
    assert [short_count(value) for value in (0, 0.5, 999, 1000, 1_500_000, 2e9)] == [
        "0", "0.5", "999", "1k", "1.5M", "2G",
    ]  # fmt: skip
