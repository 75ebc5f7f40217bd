"""Versions of the checkpoint of many ranks: kept together, rolled back to together.

What could break: parts of one version are of different steps; a crash during a rollback leaves some ranks at the version and
some at the last checkpoint; files of a version are removed while it is kept, or stay when it is gone.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from python.tests.distributed.elastic import Run
from rowmill import _core
from rowmill.cli import main
from rowmill.distributed import (
    Manifest,
    drop_version_of_ranks,
    rollback_ranks,
    take_lock,
    versions_of_ranks,
)
from rowmill.errors import InvalidInput, StoreLocked

if TYPE_CHECKING:
    from pathlib import Path

EVERY, KEEP, UNTIL = 3, 3, 18


def names(folder: Path) -> list[str]:
    return [version["name"] for version in versions_of_ranks(folder)]


def same(one: Run, other: Run) -> None:
    for result, expected in zip(one.results(), other.results(), strict=True):
        for what in ("rows", "counters", "weights", "random"):
            assert result[what] == expected[what], what


def run(folder: Path, **arguments: object) -> Run:
    arguments = {"until": UNTIL, "every": EVERY, "keep": KEEP, **arguments}
    return Run("train", folder, count=2, **arguments)


@pytest.fixture
def first(tmp_path: Path) -> Run:
    done = run(tmp_path)
    done.results()
    return done


def test_ranks_go_on_from_a_version_to_the_same_bits(
    first: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert names(folder) == ["step-12", "step-15", "step-18"]
    states = sorted(path.name for path in folder.glob("state-*.pt"))
    assert states == ["state-4.pt", "state-5.pt", "state-6.pt"]
    assert main(["versions", str(tmp_path / "run")]) == 0
    assert "step-15" in capsys.readouterr().out
    assert main(["rollback", str(folder), "step-12"]) == 0
    assert "as checkpoint 7" in capsys.readouterr().out
    # Later versions stay.
    assert names(folder) == ["step-12", "step-15", "step-18"]
    again = run(tmp_path)
    assert [result["begin"] for result in again.results()] == [12, 12]
    same(again, first)
    # The new versions replaced those of the same names, and files of the others are gone.
    assert names(folder) == ["step-12", "step-15", "step-18"]
    assert [version["number"] for version in versions_of_ranks(folder)] == [4, 8, 9]
    assert len(list(folder.glob("version-*.json"))) == KEEP


def test_a_crash_in_a_rollback_leaves_the_last_checkpoint(
    first: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "save", crash)
        with pytest.raises(KeyboardInterrupt):
            rollback_ranks(folder, "step-12")
    looked = Run("look", tmp_path, count=2).results()
    assert [result["number"] for result in looked] == [6, 6]
    # After the manifest was written, the rollback holds, whichever parts have committed it.
    with monkeypatch.context() as patch:
        settle = _core.settle
        calls: list[str] = []

        def crash_later(path: str, at: int) -> None:
            calls.append(path)
            if len(calls) > 3:
                raise KeyboardInterrupt
            settle(path, at)

        patch.setattr(_core, "settle", crash_later)
        with pytest.raises(KeyboardInterrupt):
            rollback_ranks(folder, "5")
    looked = Run("look", tmp_path, count=2).results()
    assert [result["number"] for result in looked] == [7, 7]
    again = run(tmp_path)
    assert [result["begin"] for result in again.results()] == [15, 15]
    same(again, first)


@pytest.mark.parametrize("where", ["before the manifest", "after the manifest", "before a commit"])
def test_versions_survive_a_killed_rank(tmp_path: Path, where: str) -> None:
    died = run(tmp_path, die=where)
    assert sorted(died.end(), key=lambda ended: ended or 0)[0] == -signal.SIGKILL
    kept = names(tmp_path / "run")
    assert set(kept) >= {"step-12", "step-15"}
    done = run(tmp_path)
    done.results()
    assert names(tmp_path / "run") == ["step-12", "step-15", "step-18"]
    for part in (tmp_path / "run/parts-1").iterdir():
        report = _core.fsck(str(part), False)
        assert (report["problems"], report["versions"]) == ([], KEEP)


def test_versions_that_are_not_there_and_runs_in_use_are_refused(
    first: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(InvalidInput, match="'step-12', 'step-15', 'step-18'; got 'step-3'"):
        rollback_ranks(folder, "step-3")
    lock = take_lock(folder)
    with pytest.raises(StoreLocked):
        rollback_ranks(folder, "step-12")
    assert main(["rollback", str(folder), "step-12"]) == 1
    assert "is in use by another process: stop it" in capsys.readouterr().err
    lock.release()
    drop_version_of_ranks(folder, "step-15")
    assert names(folder) == ["step-12", "step-18"]
