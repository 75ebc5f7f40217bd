"""Versions of a store from Python; the tests of the store compare their rows with a model.

What could break: an option is not passed on; a rollback of an open store changes it; errors do not say what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import rowmill
from rowmill import NewVersion
from rowmill.cli import main
from rowmill.errors import InvalidInput, StoreLocked, StoreMissing

if TYPE_CHECKING:
    from pathlib import Path


def fill(folder: Path, steps: int = 4) -> None:
    with rowmill.open(folder, memory="16MiB") as store:
        table = store.table("t", dim=4, optimizer=rowmill.optim.SGD(lr=1.0))
        for step in range(steps):
            table.put(np.arange(100), np.full((100, 4), step, np.float32))
            version = NewVersion(name=f"step-{step}", keep=3, step=step, metric=1.0 / (step + 1))
            store.checkpoint(attachments={"step": str(step).encode()}, version=version)


def test_versions_are_listed_read_and_rolled_back_to(tmp_path: Path) -> None:
    fill(tmp_path)
    found = rowmill.versions(tmp_path)
    assert [version["name"] for version in found] == ["step-1", "step-2", "step-3"]
    assert [version["number"] for version in found] == [2, 3, 4]
    assert [(version["step"], version["rows"]) for version in found] == [
        (1, 100),
        (2, 100),
        (3, 100),
    ]
    assert found[0]["bytes_alone"] > 100 * 16 > found[2]["bytes_alone"]
    for name in ("step-2", 3):
        with rowmill.open(tmp_path, memory="16MiB", read_only=True, version=name) as store:
            assert store.open_table("t").get([5]).tolist() == [[2.0] * 4]
            assert store.attachment("step") == b"2"
    assert rowmill.rollback(tmp_path, "step-1") == 5
    with rowmill.open(tmp_path, memory="16MiB") as store:
        assert store.open_table("t").get([5]).tolist() == [[1.0] * 4]
        assert [version["name"] for version in store.versions()] == ["step-1", "step-2", "step-3"]
    rowmill.drop_version(tmp_path, "step-2")
    assert [version["name"] for version in rowmill.versions(tmp_path)] == ["step-1", "step-3"]


def test_a_version_is_pushed_and_the_store_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "store"
    fill(folder)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    urls = {name: (tmp_path / name).as_uri() for name in ("step-1", "step-3")}
    for name, url in urls.items():
        assert main(["push", str(folder), url, "--version", name]) == 0
        (only,) = rowmill.checkpoints(url)
        assert (only["epoch"], only["rows"]) == (5, 100)
        restored = tmp_path / f"restored-{name}"
        rowmill.restore(url, restored)
        step = int(name[-1])
        with rowmill.open(restored, memory="16MiB") as store:
            assert store.open_table("t").get(np.arange(100)).tolist() == [[step] * 4] * 100
            assert store.attachment("step") == str(step).encode()
            assert store.versions() == []
            store.open_table("t").put([3], np.ones((1, 4), np.float32))
            store.checkpoint()
        assert main(["fsck", str(restored)]) == 0
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    # A version is of another history than the last checkpoint, or another version.
    for arguments in (["--version", "step-1"], []):
        assert main(["push", str(folder), urls["step-3"], *arguments]) == 1
        assert "push to another URL" in capsys.readouterr().err
    assert main(["push", str(folder), urls["step-1"], "--version", "step-0"]) == 2
    assert '"step-1", "step-2", "step-3", got "step-0"' in capsys.readouterr().err
    assert main(["push", str(tmp_path / "none"), urls["step-1"], "--version", "a"]) == 2
    assert not (tmp_path / "none").exists()
    with rowmill.open(folder, memory="16MiB"):
        assert main(["push", str(folder), urls["step-1"], "--version", "step-1"]) == 1
    assert "open" in capsys.readouterr().err
    assert rowmill.rollback(folder, "step-2") == 5


def test_the_best_version_stays(tmp_path: Path) -> None:
    with rowmill.open(tmp_path, memory="16MiB") as store:
        store.table("t", dim=4, optimizer=rowmill.optim.SGD(lr=1.0)).put(
            [1], np.ones((1, 4), np.float32)
        )
        for step, loss in enumerate([0.3, 0.1, 0.4, 0.5]):
            version = NewVersion(name=f"v{step}", keep=2, metric=loss, best="lowest")
            store.checkpoint(version=version)
        assert [version["name"] for version in store.versions()] == ["v1", "v3"]


def test_bad_versions_are_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    with rowmill.open(tmp_path, memory="16MiB") as store:
        with pytest.raises(StoreLocked):
            rowmill.rollback(tmp_path, "step-1")
        with pytest.raises(InvalidInput, match="version name must be 1 to 100 bytes"):
            store.checkpoint(version=NewVersion(name="7", keep=1))
        with pytest.raises(InvalidInput, match="metric must be a finite number"):
            store.checkpoint(version=NewVersion(name="a", keep=1, metric=float("nan")))
        # Nothing has changed.
        store.checkpoint()
    with pytest.raises(InvalidInput, match="keep must be"):
        NewVersion(name="a", keep=0)
    with pytest.raises(InvalidInput, match='"step-1", "step-2", "step-3", got "step-0"'):
        rowmill.rollback(tmp_path, "step-0")
    with pytest.raises(InvalidInput, match="rowmill rollback"):
        rowmill.open(tmp_path, version="step-1")
    with pytest.raises(StoreMissing):
        rowmill.versions(tmp_path / "nowhere")
