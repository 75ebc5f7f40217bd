"""`make serve-demo` on a small run: it trains, exports, serves, compares answers, and leaves only the run behind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "examples/serve_demo.py"


def write_settings(folder: Path) -> Path:
    """The quickstart with a hundredth of its rows."""
    text = (ROOT / "examples/quickstart.toml").read_text()
    for old, new in (
        ("rows = 600_000", "rows = 6_000"),
        ("rows_per_table = 180_000", "rows_per_table = 1_800"),
        ('"out/quickstart', f'"{folder}/quickstart'),
        ('row_memory = "64MiB"', 'row_memory = "1MiB"'),
    ):
        assert old in text
        text = text.replace(old, new)
    settings = folder / "settings.toml"
    settings.write_text(text)
    return settings


def demo(settings: Path) -> subprocess.CompletedProcess[str]:
    temporary = settings.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, str(DEMO), "--config", str(settings)],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert list(temporary.glob("rowmill*")) == []
    return done


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.timeout(900)
def test_demo_answers_equal_predict_and_the_run_is_reused(tmp_path: Path) -> None:
    settings = write_settings(tmp_path)
    done = demo(settings)
    assert done.returncode == 0, done.stderr
    commands = re.findall(r"^\$ rowmill (\w+)", done.stdout, re.MULTILINE)
    assert commands == ["train", "export", "predict", "serve", "serve"]
    table = re.findall(r"^ +(\d+) +([\d.]+) +([\d.]+) +([\d.]+)$", done.stdout, re.MULTILINE)
    assert [row for row, *_ in table] == [str(row) for row in range(8)]
    assert len({predicted for _, predicted, *_ in table}) > 1
    for _, *values in table:
        assert max(map(float, values)) - min(map(float, values)) < 1.1e-6
    assert "all answers are within 1e-06 of `rowmill predict`" in done.stdout

    # A second demo uses the run and does not change it, also if it fails.
    run = tmp_path / "quickstart"
    shutil.move(run / "log", tmp_path / "log")
    before = times(run)
    done = demo(settings)
    assert done.returncode == 1
    assert "using the run in" in done.stdout
    assert "has no Parquet files, from which the demo takes its rows" in done.stderr
    assert "Traceback" not in done.stderr
    assert times(run) == before
