"""`rowmill export` when it is killed, on a full disk, on a file system without links, and for runs of earlier versions.

A bundle is complete or missing, the run is not changed, and the next export works.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

import rowmill
from python.tests.partition.models import click_model, stacked
from python.tests.partition.runs import trained
from python.tests.small_disk import small_disk
from python.tests.train.configs import quiet
from rowmill.cli import main
from rowmill.files import link_or_copy
from rowmill.partition import Bundle
from rowmill.partition.export import export
from rowmill.train.run import train
from rowmill.train.state import ATTACHMENT, unpacked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rowmill.config.config import Config

_WAIT_S = 240.0
"""Longest wait for an export; importing torch takes some seconds of it on a busy machine."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return trained(tmp_path_factory.mktemp("run"), "dlrm")


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def is_whole(bundle: Path) -> bool:
    with Bundle.open(bundle) as opened:
        (inputs, answers), *_ = opened.examples()
        return all(map(torch.equal, opened.run(inputs), answers))


def hidden(folder: Path) -> Iterator[Path]:
    """Files in hidden (temporary) folders."""
    return (path for path in folder.glob(".*/**/*") if path.is_file())


@pytest.mark.parametrize(
    "moment", [pytest.param("rows/MANIFEST", marks=pytest.mark.long), "examples.safetensors"]
)
def test_a_killed_export_leaves_no_bundle_and_the_next_one_works(
    moment: str, run: Config, tmp_path: Path
) -> None:
    before = contents(run.train.out)
    command = ["export", str(run.train.out), "--out", str(tmp_path / "bundle")]
    export_ = subprocess.Popen([sys.executable, "-m", "rowmill", *command])
    until = time.monotonic() + _WAIT_S
    while not any(str(path).endswith(moment) for path in hidden(tmp_path)):
        assert export_.poll() is None, f"it ended before it wrote {moment}"
        assert time.monotonic() < until
        time.sleep(0.02)
    export_.kill()
    export_.wait()
    assert not (tmp_path / "bundle").exists()
    assert contents(run.train.out) == before
    assert main(command) == 0
    assert is_whole(tmp_path / "bundle")
    assert contents(run.train.out) == before


def test_an_export_without_space_names_path_and_bytes(
    run: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(run.train.out)
    assert main(["export", str(run.train.out), "--out", str(tmp_path / "whole")]) == 0
    needed = sum(path.stat().st_size for path in (tmp_path / "whole").rglob("*") if path.is_file())
    with small_disk("tmpfs", tmp_path, 64) as disk:
        arguments = ["export", str(run.train.out), "--out", str(disk / "bundle")]
        ballast = disk / "ballast"
        # Space for no file, for some of the rows, and for all rows but not the other files.
        for share in (0.0, 0.3, 0.7):
            size = (64 << 20) - int(needed * share) // 4096 * 4096
            with ballast.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, size - 16384)
            capsys.readouterr()
            assert main(arguments) == 1, share
            error = capsys.readouterr().err
            assert error.startswith("rowmill: no space left for the bundle: "), error
            assert "bytes of it were written" in error
            assert str(disk / "bundle") in error
            assert error.count("\n") == 1
            ballast.unlink()
            assert list(disk.iterdir()) == []
        assert main(arguments) == 0
        assert is_whole(disk / "bundle")
    assert contents(run.train.out) == before


def test_without_links_files_are_copied(
    run: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = errno.EPERM
    asked: list[str] = []

    def refuses(source: str, _target: str) -> None:
        asked.append(source)
        raise OSError(reason, os.strerror(reason), source)

    monkeypatch.setattr(os, "link", refuses)
    assert main(["export", str(run.train.out), "--out", str(tmp_path / "bundle")]) == 0
    assert asked
    assert is_whole(tmp_path / "bundle")
    (tmp_path / "file").write_text("text")
    for reason in (errno.EXDEV, errno.EMLINK):
        link_or_copy(tmp_path / "file", tmp_path / errno.errorcode[reason])
        assert (tmp_path / errno.errorcode[reason]).read_text() == "text"


def test_rows_of_another_file_system_are_copied(tmp_path: Path) -> None:
    with rowmill.open(tmp_path / "store", memory="32MiB") as store:
        model = click_model("dlrm", lambda columns: stacked(store, columns))
        export(model.module, [model.call(5)], out=tmp_path / "first")
        with small_disk("tmpfs", tmp_path, 16) as disk:
            rows = shutil.copytree(tmp_path / "first" / "rows", disk / "rows")
            export(model.module, [model.call(5)], out=tmp_path / "second", rows=rows)
    assert contents(tmp_path / "second" / "rows") == contents(tmp_path / "first" / "rows")
    assert is_whole(tmp_path / "second")


def test_other_failures_of_a_link_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        link_or_copy(tmp_path / "absent", tmp_path / "link")
    (tmp_path / "file").touch()
    link_or_copy(tmp_path / "file", tmp_path / "link")
    assert (tmp_path / "link").samefile(tmp_path / "file")
    with pytest.raises(FileExistsError):
        link_or_copy(tmp_path / "file", tmp_path / "link")


def test_the_error_for_a_run_of_an_earlier_version_gives_the_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = trained(tmp_path, "dlrm")
    store_folder = tmp_path / "run" / "store"
    with rowmill.open(store_folder, memory="32MiB") as store:
        packed = store.attachment(ATTACHMENT)
        assert packed is not None
        described = unpacked(packed)
        del described["files"]
        older = io.BytesIO()
        torch.save(described, older)
        store.checkpoint(attachments={ATTACHMENT: older.getvalue()})
    for file in store_folder.glob("run-*.json"):
        file.unlink()
    command = ["export", str(tmp_path / "run"), "--out", str(tmp_path / "bundle")]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "names no settings, because an earlier version wrote it" in error
    assert "with --resume, and with a larger --epochs" in error
    train(replace(config, train=replace(config.train, resume=True, epochs=2)), quiet())
    shutil.rmtree(tmp_path / "log")
    assert main(command) == 0
    assert is_whole(tmp_path / "bundle")
