"""The quickstart keeps what it promises: two million live rows, memory for a quarter of them, and it runs.

The full run takes a minute; here its promise is computed from the law of its ids, and a hundredth of it is run.
"""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from rowmill.config import load_config
from rowmill.data.generate import id_laws
from rowmill.data.locality import expected_reuse
from rowmill.size import parse_size
from rowmill.train import train

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICKSTART = EXAMPLES / "quickstart.toml"


def test_the_quickstart_outgrows_its_memory_fourfold() -> None:
    config = load_config(QUICKSTART)
    assert config.generate is not None
    assert config.store.row_memory is not None
    train_rows = config.generate.rows - config.generate.rows // 5
    live_rows = sum(expected_reuse(law, train_rows)[0].sum() for law in id_laws(config.generate))
    assert live_rows >= 2_050_000
    # A row: weights and as many floats of Adagrad state.
    live_bytes = live_rows * config.model.dim * 2 * 4
    assert parse_size(config.store.row_memory) <= live_bytes / 4


def test_the_quickstart_runs(tmp_path: Path) -> None:
    flags = {
        ("generate", "rows"): 6_000,
        ("generate", "rows_per_table"): 1_800,
        ("data", "path"): tmp_path / "log",
        ("store", "row_memory"): "1MiB",
        ("train", "out"): tmp_path,
    }
    report = train(load_config(QUICKSTART, flags), Console(file=io.StringIO()))
    assert report["teacher"]["auc"] > 0.75
    assert report["run"]["live_row_bytes"] > 2.5 * report["run"]["row_limit"]
    assert report["run"]["cold_reads"] + report["run"]["lookahead_loaded"] > 0
    assert report["test"]["auc"] is not None


def test_the_example_of_sequences_runs(tmp_path: Path) -> None:
    flags = {
        ("sequences", "users"): 100,
        ("sequences", "items"): 150,
        ("sequences", "events"): 20,
        ("data", "path"): tmp_path / "log",
        ("train", "epochs"): 1,
        ("train", "out"): tmp_path,
    }
    report = train(load_config(EXAMPLES / "sequences.toml", flags), Console(file=io.StringIO()))
    assert report["test"]["hr_at_10"] is not None
    assert report["run"]["steps"] > 0
