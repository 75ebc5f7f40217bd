"""Checkpoints of a run are pushed to an object store during training.

What could break: training waits for a slow object store or ends with a broken one; the last checkpoint never arrives. The
object store is a folder here; `test_remote.py` tests the S3 protocol.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

import rowmill
from rowmill.config import ConfigError, load_config
from rowmill.ctr.data.generate import generate
from rowmill.ctr.settings import GenerateConfig
from rowmill.errors import RemoteError
from rowmill.train import train
from rowmill.train.state import ATTACHMENT

if TYPE_CHECKING:
    from pathlib import Path


def settings(folder: Path, url: str, **more: object) -> dict[tuple[str, str], object]:
    generate(folder / "log", GenerateConfig(rows=3_000, seed=1, rows_per_table=500))
    values: dict[tuple[str, str], object] = {
        ("data", "path"): folder / "log",
        ("train", "out"): folder / "run",
        ("train", "threads"): 1,
        ("train", "checkpoint_every"): 4,
        ("store", "memory"): "64MiB",
        ("checkpoint", "push"): url,
        ("checkpoint", "keep"): 2,
    }
    return values | {("train", key): value for key, value in more.items()}


def test_the_last_checkpoint_of_a_run_is_pushed_and_can_be_resumed(tmp_path: Path) -> None:
    url = (tmp_path / "place").as_uri()
    console = Console(file=io.StringIO())
    values = settings(tmp_path, url)
    train(load_config(None, values), console)
    with rowmill.open(tmp_path / "run/store", memory="64MiB") as store:
        last = (
            store.core.checkpoint([(ATTACHMENT, store.attachment(ATTACHMENT) or b"")])["epoch"] - 1
        )
    found = [checkpoint["epoch"] for checkpoint in rowmill.checkpoints(url)]
    assert found[-1] == last
    assert 1 <= len(found) <= 2
    # The restored rows are those of the finished run, so resuming has nothing to do.
    rowmill.restore(url, tmp_path / "restored")
    values |= {("store", "path"): tmp_path / "restored", ("train", "resume"): True}
    values[("checkpoint", "push")] = None
    told = io.StringIO()
    report = train(load_config(None, values), Console(file=told))
    assert f"the run is complete, at step {report['run']['steps']}" in told.getvalue()


def test_training_continues_when_a_push_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    url = (tmp_path / "file/place").as_uri()
    told = io.StringIO()
    with pytest.raises(RemoteError, match="failed"):
        train(load_config(None, settings(tmp_path, url)), Console(file=told))
    assert "Warning: the checkpoint was not pushed; training continues: " in told.getvalue()
    assert (tmp_path / "run/report.json").exists()


def test_plain_rows_are_not_pushed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="drop --plain or --push"):
        load_config(None, settings(tmp_path, "file:///x", plain=True))
