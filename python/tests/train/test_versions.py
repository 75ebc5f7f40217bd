"""A run of `rowmill train` keeps versions of its checkpoints.

What could break: the best version is not kept; a run that is rolled back does not resume at the version, or to other bits; the
files of versions keep a new run from clearing its folder.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

import rowmill
from rowmill.cli import main
from rowmill.config import Config, ConfigError, load_config
from rowmill.ctr.data.generate import generate
from rowmill.ctr.settings import GenerateConfig
from rowmill.train import train

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def settings(folder: Path, **more: object) -> Config:
    if not (folder / "log").exists():
        generate(folder / "log", GenerateConfig(rows=4_000, seed=1, rows_per_table=500))
    values: dict[tuple[str, str], object] = {
        ("data", "path"): folder / "log",
        ("train", "out"): folder / "run",
        ("train", "threads"): 1,
        ("train", "batch"): 128,
        ("train", "checkpoint_every"): 4,
        ("store", "memory"): "64MiB",
        ("checkpoint", "versions"): 3,
    }
    for key, value in more.items():
        section, _, name = key.partition("__")
        values[section, name] = value
    return load_config(None, values)


def test_a_run_goes_on_from_its_best_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet = Console(file=io.StringIO())
    whole = train(settings(tmp_path, checkpoint__best="auc"), quiet)
    curve = {point["step"]: point["auc"] for point in whole["curve"]}
    found = rowmill.versions(tmp_path / "run/store")
    assert len(found) == 3
    for version in found:
        assert version["metric"] == curve[version["step"]]
    saved = [step for step in curve if step % 4 == 0 or step == whole["run"]["steps"]]
    assert max(version["metric"] for version in found) == max(curve[step] for step in saved)
    capsys.readouterr()
    assert main(["versions", str(tmp_path / "run")]) == 0
    listed = capsys.readouterr().out
    assert all(version["name"] in listed for version in found)
    # A rollback and a resume give the bits of the run.
    assert main(["rollback", str(tmp_path / "run"), found[0]["name"]]) == 0
    told = io.StringIO()
    again = train(
        settings(tmp_path, checkpoint__best="auc", train__resume=True), Console(file=told)
    )
    assert f"Resuming at step {found[0]['step']}" in told.getvalue()
    assert again["test"] == whole["test"]
    rounds = [(point["step"], point["auc"]) for point in again["curve"]]
    assert rounds == [(point["step"], point["auc"]) for point in whole["curve"]]
    # A version of a run is exported and inspected like any checkpoint: after a rollback.
    assert main(["fsck", str(tmp_path / "run/store")]) == 0
    assert "3 versions were checked" in capsys.readouterr().out


def test_settings_of_versions_are_checked(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"set checkpoint\.versions \(--versions\) to 2 or more, got 1"
    ):
        settings(tmp_path, checkpoint__versions=1, checkpoint__best="auc")
    with pytest.raises(ConfigError, match="drop --plain or --versions"):
        settings(tmp_path, train__plain=True)
    with pytest.raises(ConfigError, match=r"checkpoint\.best must be a metric .*, got 'acu'"):
        train(settings(tmp_path, checkpoint__best="acu"), Console(file=io.StringIO()))


def test_versions_of_no_run_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["versions", str(tmp_path)]) == 2
    assert "has no checkpoint" in capsys.readouterr().err
