"""A disk that fills up while a store writes: one error gives cause and fix, and the last checkpoint stays intact.

The disks are real: a small ext4 image and a small tmpfs, if this process may mount them. A limit on the size of files
(RLIMIT_FSIZE) needs no privileges and always runs: the system then refuses writes in the middle of a file.
"""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from python.tests.small_disk import small_disk
from python.tests.warm import warm_python
from rowmill import errors
from rowmill.cli import main
from rowmill.ctr.data.generate import generate
from rowmill.ctr.settings import GenerateConfig

if TYPE_CHECKING:
    from pathlib import Path

# Fills a store until writing fails, opens it again, and prints errors and rows. Values of version k are all k.
PROGRAM = """
import json, resource, signal, sys
import numpy as np
import rowmill
from rowmill.optim import SGD

folder, limit = sys.argv[1], int(sys.argv[2])

def opened(**options):
    return rowmill.open(folder, memory="16MiB", row_memory="512KiB", **options)

def attempt(call):
    try:
        call()
    except rowmill.RowmillError as error:
        return [type(error).__name__, str(error)]

with opened() as store:
    store.table("t", dim=16, optimizer=SGD(lr=1.0)).put(np.arange(5000), np.ones((5000, 16), np.float32))
    store.checkpoint(attachments={"version": b"1"})
if limit:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
store = opened()
table = store.open_table("t")
saved, first = 1, None
for version in range(2, 500):
    ids = np.arange(5000 + 200 * version)
    first = attempt(lambda: table.put(ids, np.full((len(ids), 16), version, np.float32)))
    if first is None and version % 5 == 0:
        first = attempt(lambda: store.checkpoint(attachments={"version": str(version).encode()}))
        saved = version if first is None else saved
    if first:
        break
later = [
    attempt(lambda: table.put([1], np.ones((1, 16), np.float32))),
    attempt(store.checkpoint),
    attempt(lambda: table.get(np.arange(5000))),
]
store.close()
again = []
for read_only in (True, False):
    with opened(read_only=read_only) as store:
        table = store.open_table("t")
        rows = 5000 + 200 * saved if saved > 1 else 5000
        values = table.get(np.arange(rows))
        again.append([len(table) == rows, np.unique(values).tolist(), store.attachment("version").decode()])
print(json.dumps({"saved": saved, "first": first, "later": later, "again": again}))
"""


def fill(folder: Path, limit: int = 0) -> list[str]:
    """Run the program, check the invariants that hold after any failure, and return the first error."""
    done = subprocess.run(
        [warm_python(), "-c", PROGRAM, str(folder), str(limit)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["first"] is not None, "the disk must fill up"
    put, checkpoint, get = found["later"]
    for error in (put, checkpoint):
        assert error[0] == "StorePoisoned"
        assert "refuses writes since an earlier failure" in error[1]
        assert "reopen the store, which then starts from its last checkpoint" in error[1]
    assert get is None, "reads must still work"
    saved = found["saved"]
    assert found["again"] == [[True, [float(saved)], str(saved)]] * 2
    return found["first"]


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_the_error_of_a_full_disk_names_the_file_and_keeps_the_last_checkpoint(
    kind: str, tmp_path: Path
) -> None:
    with small_disk(kind, tmp_path, 8) as disk:
        name, message = fill(disk / "store")
    assert name == "StoreFull"
    assert "no space left while writing" in message
    assert re.search(
        r"bytes to \S*(group-0\.log|index-\d+\.\w+|attachment-\d+-version|MANIFEST)", message
    )
    assert "free space on the file system" in message
    assert "reopened at its last checkpoint" in message


@pytest.mark.parametrize("limit", [450_560, 1_500_000, 2_097_152])
def test_the_error_of_a_size_limit_names_the_file_and_keeps_the_last_checkpoint(
    limit: int, tmp_path: Path
) -> None:
    name, message = fill(tmp_path / "store", limit)
    assert name in ("StoreFull", "StorePoisoned", "StoreIoError")
    assert "group-0.log" in message
    assert "reopen" in message


def test_training_on_a_full_disk_ends_with_one_line_and_can_be_resumed_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    generate(log, GenerateConfig(rows=8_000, rows_per_table=1_000))
    arguments = ["train", "--data", str(log), "--memory", "64MiB", "--row-memory", "512KiB"]
    arguments += ["--batch", "64", "--checkpoint-every", "10", "--threads", "1"]
    assert main([*arguments, "--out", str(tmp_path / "whole")]) == 0
    with small_disk("tmpfs", tmp_path, 12) as disk:
        capsys.readouterr()
        assert main([*arguments, "--out", str(tmp_path / "out"), "--store", str(disk / "s")]) == 1
        error = capsys.readouterr().err
        assert error.startswith("rowmill: no space left while writing")
        assert error.count("\n") == 1
        subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
        resume = [
            *arguments,
            "--out",
            str(tmp_path / "out"),
            "--store",
            str(disk / "s"),
            "--resume",
        ]
        assert main(resume) == 0
        assert "Resuming at step" in capsys.readouterr().out
    tests = [
        json.loads((tmp_path / out / "report.json").read_text())["test"] for out in ("whole", "out")
    ]
    assert tests[0] == tests[1]


def test_no_space_for_the_report_is_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    generate(log, GenerateConfig(rows=1_000, rows_per_table=100))
    with small_disk("tmpfs", tmp_path, 1) as disk:
        (disk / "ballast").write_bytes(b"\0" * ((1 << 20) - 8192))
        store = ["--store", str(tmp_path / "s")]
        code = main(
            ["train", "--data", str(log), "--memory", "64MiB", "--out", str(disk / "out"), *store]
        )
    assert code == 1
    error = capsys.readouterr().err
    assert "No space left on device" in error
    assert error.count("\n") == 1


def test_no_space_for_generated_data_is_a_one_line_error_and_can_be_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk("tmpfs", tmp_path, 2) as disk:
        arguments = ["data", "generate", "--out", str(disk / "log"), "--rows", "20000"]
        assert main(arguments) == 1
        error = capsys.readouterr().err
        assert "No space left on device" in error
        assert error.count("\n") == 1
        subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
        assert main(arguments) == 0


@pytest.mark.parametrize(("kind", "out"), [("nodes", "nodes.npz"), ("sequences", "log")])
def test_no_space_for_a_file_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, out: str
) -> None:
    with small_disk("tmpfs", tmp_path, 1) as disk:
        (disk / "ballast").write_bytes(b"\0" * ((1 << 20) - 65_536))
        arguments = ["data", kind, "--out", str(disk / out)]
        assert main(arguments) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"rowmill: No space left on device: {disk}")
        assert error.count("\n") == 1
        (disk / "ballast").unlink()
        subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
        assert main(arguments) == 0


def test_errors_of_a_full_disk_are_os_errors_too() -> None:
    assert issubclass(errors.StoreFull, OSError)
    assert issubclass(errors.StoreIoError, OSError)
