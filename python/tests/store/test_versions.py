"""Versions of a store from Python; the tests of the store compare their rows with a model.

What could break: an option is not passed on; a rollback of an open store changes it; errors do not say what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import rowmill
from rowmill import NewVersion
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
