"""The quickstart runs, with two million live rows and memory for a quarter of them; example settings of knowledge graphs run.
What `make` shows runs twice, on a tenth of its rows.

The full run takes a minute. The test computes its number of rows from the distribution of ids, and runs a hundredth of it.
"""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from python.tests.warm import warm_python
from rowmill.config import load_config
from rowmill.ctr.data.generate import id_laws
from rowmill.ctr.data.locality import expected_reuse
from rowmill.size import parse_size
from rowmill.train import train
from rowmill.train.dense import multiplies_bf16

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICKSTART = EXAMPLES / "quickstart.toml"


def test_the_quickstarts_rows_take_four_times_its_row_memory() -> None:
    config = load_config(QUICKSTART)
    assert config.generate is not None
    assert config.store.row_memory is not None
    train_rows = config.generate.rows - config.generate.rows // 5
    live_rows = sum(expected_reuse(law, train_rows)[0].sum() for law in id_laws(config.generate))
    assert live_rows >= 2_050_000
    # A row has weights and as many floats of Adagrad state.
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


@pytest.mark.slow
def test_what_make_shows_runs_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("day_by_day", EXAMPLES / "day_by_day.py")
    assert spec is not None
    assert spec.loader is not None
    days = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(days)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(days, "DAYS", {path: rows // 10 for path, rows in days.DAYS.items()})
    monkeypatch.setattr(days, "TABLE_ROWS", 18_000)
    settings = ("--memory", "128MiB", "--row-memory", "6MiB", "--batch", "32")
    monkeypatch.setattr(days, "SETTINGS", (*settings, "--checkpoint-every", "50"))
    kill = days.killed

    def killed(*arguments: str | Path) -> None:
        """Of a process that is not forked: a forked one ends a moment after its front-end process."""
        with monkeypatch.context() as patch:
            patch.setattr(days, "ROWMILL", (sys.executable, "-m", "rowmill"))
            kill(*arguments)

    monkeypatch.setattr(days, "killed", killed)
    monkeypatch.setattr(days, "ROWMILL", (warm_python(), "-m", "rowmill"))
    for _ in range(2):
        days.main()  # Ends the process if a command fails, or if bits differ.
        said = capfd.readouterr().out
        assert "\nResuming at step " in said
        assert "\nscores that a kill changed 0 of 10,000\n" in said
        assert Path("out/days/run/report.html").exists()


@pytest.mark.parametrize(
    "settings", sorted(EXAMPLES.glob("kge/*.toml")), ids=lambda path: path.stem
)
def test_settings_of_knowledge_graphs_train(settings: Path, tmp_path: Path) -> None:
    """A ring of 60 entities, each linked to the next two; if allowed, valid has an entity that train lacks."""
    lines = [f"e{n}\tr{k}\te{(n + k + 1) % 60}\n" for n in range(60) for k in range(2)]
    config = load_config(settings)
    seen = lines if config.kge.unseen == "error" else [*lines[:9], "new\tr0\te1\n"]
    for part, text in {"train": lines, "valid": seen[-10:], "test": lines[::12]}.items():
        (tmp_path / f"{part}.tsv").write_text("".join(text))
    flags = {
        ("data", "path"): tmp_path,
        ("train", "out"): tmp_path / "out",
        ("train", "epochs"): 2,
        ("train", "precision"): config.train.precision if multiplies_bf16() else "fp32",
        ("store", "memory"): "64MiB",
    }
    report = train(load_config(settings, flags), Console(file=io.StringIO()))
    # An untrained model has 0.08.
    assert report["test"]["mrr"] > 0.1
    assert report["config"]["model"]["kind"] in settings.stem


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


@pytest.mark.parametrize(
    "settings", sorted(EXAMPLES.glob("gnn/*.toml")), ids=lambda path: path.stem
)
def test_settings_of_graph_neural_networks_train(settings: Path, tmp_path: Path) -> None:
    flags = {
        ("nodes", "nodes"): 600,
        ("nodes", "classes"): 2,
        ("nodes", "noise"): 1.0,
        ("data", "path"): tmp_path / "nodes.npz",
        ("train", "out"): tmp_path / "out",
        ("train", "epochs"): 20,
        ("store", "memory"): "64MiB",
    }
    report = train(load_config(settings, flags), Console(file=io.StringIO()))
    assert report["test"]["auc"] > 0.7
    assert report["config"]["model"]["kind"] in settings.stem
