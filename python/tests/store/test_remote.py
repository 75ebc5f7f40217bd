"""Checkpoints to and from an S3 server, by the library and by the command line.

What could break: a restored checkpoint differs; a killed push or restore leaves an incomplete checkpoint that looks complete,
or cannot be continued; a server that dies, refuses or lacks the bucket causes a hang, or an error without the URL; two
writers damage each other's checkpoints. The server is a process on loopback that serves a folder of the test. Processes are
killed with SIGKILL.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import rowmill
from python.tests.programs import built_example
from rowmill.cli import main
from rowmill.errors import (
    CheckpointMissing,
    InvalidInput,
    RemoteConflict,
    RemoteError,
    StoreCorrupt,
    StoreLocked,
    StoreMissing,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

ROWS, DIM = 3000, 8
IDS = np.arange(ROWS, dtype=np.int64)
KEY, SECRET = "tester", "a secret of the tests"


@pytest.fixture(scope="session")
def server_program() -> Path:
    """Build the server with cargo; it is a test program of the crate under test."""
    return built_example("s3_server")


@dataclass
class Server:
    program: Path
    folder: Path
    process: subprocess.Popen[str]
    address: str

    @classmethod
    def start(cls, program: Path, folder: Path, *, pause_ms: int = 0) -> Server:
        (folder / "bucket").mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(
            [program, folder, KEY, SECRET, str(pause_ms)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        return cls(program, folder, process, process.stdout.readline().strip())

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT": f"{'http'}://{self.address}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def objects(self) -> list[Path]:
        """Files of complete objects."""
        found = [path for path in (self.folder / "bucket").rglob("*") if path.is_file()]
        return sorted(path for path in found if ".internal." not in path.name)


@pytest.fixture
def server(
    server_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    started = Server.start(server_program, tmp_path / "server")
    use(started, monkeypatch)
    yield started
    started.stop()


@pytest.fixture
def slow_server(
    server_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    started = Server.start(server_program, tmp_path / "server", pause_ms=100)
    use(started, monkeypatch)
    yield started
    started.stop()


def use(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)


URL = "s3://bucket/runs/first"


def open_store(path: Path, **options: Any) -> tuple[rowmill.Store, rowmill.Table]:
    store = rowmill.open(path, memory="32MiB", row_memory="256KiB", **options)
    table = store.table("rows", dim=DIM, optimizer=rowmill.optim.Adagrad(lr=0.5))
    return store, table


def train(table: rowmill.Table, rows: int, seed: int) -> None:
    gradients = np.random.default_rng(seed).normal(size=(rows, DIM)).astype(np.float32)
    table.rmw(IDS[:rows], gradients)


def content(table: rowmill.Table) -> bytes:
    return table.get(IDS).tobytes() + table.get_state(IDS).tobytes()


def content_at(path: Path) -> tuple[bytes, bytes | None]:
    with rowmill.open(path, memory="32MiB", read_only=True) as store:
        return content(store.open_table("rows")), store.attachment("step")


def epochs(url: str = URL) -> list[int]:
    return [checkpoint["epoch"] for checkpoint in rowmill.checkpoints(url)]


def advance(store: rowmill.Store, table: rowmill.Table, rows: int, seed: int) -> bytes:
    train(table, rows, seed)
    store.checkpoint(attachments={"step": str(seed).encode()})
    return content(table)


def command(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rowmill", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments])


def wait_until(condition: Any, process: subprocess.Popen[str] | None = None) -> None:
    """Wait for a condition, at most as long as the test may last; fail if the process ends first."""
    while not condition():
        assert process is None or process.poll() is None, (
            "the process ended before the condition held"
        )
        time.sleep(0.005)


def test_every_restored_checkpoint_is_bit_identical(server: Server, tmp_path: Path) -> None:
    store, table = open_store(tmp_path / "store")
    expected: dict[int, bytes] = {}
    with store:
        for epoch in range(1, 5):
            expected[epoch] = advance(store, table, ROWS if epoch == 1 else 100 * epoch, epoch)
            done = store.push(URL, keep=10)
            assert done["epoch"] == epoch
            assert (done["bytes_uploaded"] == done["bytes"]) == (epoch == 1)
        assert store.push(URL, keep=10)["parts_uploaded"] == 0
    assert epochs() == [1, 2, 3, 4]
    for epoch, rows in expected.items():
        restored = tmp_path / f"restored-{epoch}"
        assert rowmill.restore(URL, restored, checkpoint=epoch)["epoch"] == epoch
        assert content_at(restored) == (rows, str(epoch).encode())
    # A restored folder continues the same history.
    store, table = open_store(tmp_path / "restored-4")
    with store:
        advance(store, table, 50, 9)
        assert store.push(URL, keep=2)["objects_removed"] > 0
    assert epochs() == [4, 5]


def test_training_continues_while_a_checkpoint_is_pushed(
    slow_server: Server, tmp_path: Path
) -> None:
    store, table = open_store(tmp_path / "store")
    with store:
        expected = advance(store, table, ROWS, 1)
        pushing = threading.Thread(target=store.push, args=(URL,))
        pushing.start()
        wait_until(lambda: len(slow_server.objects()) > 2)
        later = 0
        while pushing.is_alive() and later < 20:
            later += 1
            advance(store, table, ROWS, later)
        pushing.join()
        assert later > 1
        store.push(URL)
    rowmill.restore(URL, tmp_path / "restored", checkpoint=1)
    assert content_at(tmp_path / "restored") == (expected, b"1")


def test_only_the_last_checkpoints_are_kept(server: Server, tmp_path: Path) -> None:
    store, table = open_store(tmp_path / "store")
    with store:
        for epoch in range(1, 6):
            expected = advance(store, table, ROWS, epoch)
            store.push(URL, keep=1)
            if epoch == 1:
                alone = len(server.objects())
    assert epochs() == [5]
    # All rows changed each time, so earlier checkpoints leave nothing but objects that reserve their numbers.
    assert len(server.objects()) < 2 * alone
    with pytest.raises(CheckpointMissing, match=f"no checkpoint 3 at {URL}; it has 5"):
        rowmill.restore(URL, tmp_path / "restored", checkpoint=3)
    assert not (tmp_path / "restored").exists()
    rowmill.restore(URL, tmp_path / "restored")
    assert content_at(tmp_path / "restored")[0] == expected


def test_a_killed_push_leaves_no_checkpoint_and_the_next_one_cleans_up(
    slow_server: Server, tmp_path: Path
) -> None:
    store, table = open_store(tmp_path / "store")
    with store:
        first = advance(store, table, ROWS, 1)
    assert run("push", tmp_path / "store", URL) == 0
    before = len(slow_server.objects())
    store, table = open_store(tmp_path / "store")
    with store:
        second = advance(store, table, ROWS, 2)
    pushing = command("push", tmp_path / "store", URL)
    wait_until(lambda: len(slow_server.objects()) > before + 2, pushing)
    pushing.send_signal(signal.SIGKILL)
    pushing.communicate()
    assert len(slow_server.objects()) > before
    assert epochs() == [1]
    rowmill.restore(URL, tmp_path / "first")
    assert content_at(tmp_path / "first")[0] == first
    assert run("push", tmp_path / "store", URL, "--keep", "1") == 0
    assert epochs() == [2]
    rowmill.restore(URL, tmp_path / "second")
    assert content_at(tmp_path / "second")[0] == second
    folders = {path.relative_to(slow_server.folder).parts[4] for path in slow_server.objects()
               if "objects" in path.parts}  # fmt: skip
    assert len(folders) <= 2, "files of the killed push must be removed"


def test_a_killed_restore_is_not_a_store_and_can_be_completed(
    slow_server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, table = open_store(tmp_path / "store")
    with store:
        expected = advance(store, table, ROWS, 1)
        store.push(URL)
    folder = tmp_path / "restored"
    restoring = command("restore", URL, folder)
    wait_until(lambda: (folder / "group-0.log").exists(), restoring)
    restoring.send_signal(signal.SIGKILL)
    restoring.communicate()
    with pytest.raises(StoreMissing, match="run the same restore again"):
        rowmill.open(folder, memory="32MiB")
    assert run("restore", URL, folder) == 0
    assert f"is at checkpoint 1: {ROWS:,} rows" in capsys.readouterr().out
    assert content_at(folder) == (expected, b"1")
    with pytest.raises(InvalidInput, match="is not empty"):
        rowmill.restore(URL, folder)


def test_a_server_that_dies_during_a_push_is_named(
    slow_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, table = open_store(tmp_path / "store")
    with store:
        expected = advance(store, table, ROWS, 1)
        failures: list[RemoteError] = []

        def push() -> None:
            try:
                store.push(URL)
            except RemoteError as error:
                failures.append(error)

        pushing = threading.Thread(target=push)
        pushing.start()
        wait_until(lambda: len(slow_server.objects()) > 3)
        slow_server.stop()
        pushing.join()
        assert URL in str(failures[0])
        assert "failed" in str(failures[0])
        again = Server.start(slow_server.program, slow_server.folder)
        try:
            use(again, monkeypatch)
            assert epochs() == []
            store.push(URL)
            rowmill.restore(URL, tmp_path / "restored")
        finally:
            again.stop()
        # The fixture stops the server a second time.
        slow_server.process = subprocess.Popen(["true"], stdout=subprocess.PIPE, text=True)
    assert content_at(tmp_path / "restored")[0] == expected


def test_a_second_writer_is_refused(server: Server, tmp_path: Path) -> None:
    store, table = open_store(tmp_path / "store")
    with store:
        advance(store, table, ROWS, 1)
        store.push(URL)
        rowmill.restore(URL, tmp_path / "copy")
        copy, copied = open_store(tmp_path / "copy")
        with copy:
            advance(store, table, 10, 2)
            advance(copy, copied, 10, 3)
            copy.push(URL)
            with pytest.raises(RemoteConflict, match=f"{URL} holds checkpoint 2 of another writer"):
                store.push(URL)
            with pytest.raises(StoreLocked):
                rowmill.store.remote.push_folder(tmp_path / "store", URL)
    assert epochs() == [1, 2]


def test_two_writers_at_the_same_time(slow_server: Server, tmp_path: Path) -> None:
    stores = [open_store(tmp_path / name) for name in ("one", "two")]
    outcomes: list[str] = []

    def push(store: rowmill.Store) -> None:
        try:
            store.push(URL)
            outcomes.append("pushed")
        except RemoteConflict as error:
            outcomes.append(str(error))

    for number, (store, table) in enumerate(stores):
        advance(store, table, ROWS, number)
    threads = [threading.Thread(target=push, args=(store,)) for store, _ in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store, _ in stores:
        store.close()
    assert sorted(outcome == "pushed" for outcome in outcomes) == [False, True], outcomes
    assert any("another writer" in outcome for outcome in outcomes)
    rowmill.restore(URL, tmp_path / "restored")


def test_refusals_of_the_server_are_reported(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, table = open_store(tmp_path / "store")
    with store:
        with pytest.raises(CheckpointMissing, match="has no checkpoint yet"):
            store.push(URL)
        advance(store, table, ROWS, 1)
        with pytest.raises(
            RemoteError, match=r"s3://elsewhere/x/\S+ failed: .*(NoSuchBucket|not found)"
        ):
            store.push("s3://elsewhere/x")
        for url in ("store", "ftp://host/x", "s3://key:secret@bucket/x"):
            with pytest.raises(InvalidInput, match="give s3://, gs://, az:// or file://"):
                store.push(url)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another secret")
        with pytest.raises(RemoteError, match=f"{URL}/\\S+ failed: .*(SignatureDoesNotMatch|403)"):
            store.push(URL)
        with pytest.raises(RemoteError, match=URL):
            rowmill.checkpoints(URL)
    assert server.objects() == []


def test_a_corrupted_object_is_detected_by_restore(server: Server, tmp_path: Path) -> None:
    store, table = open_store(tmp_path / "store")
    with store:
        advance(store, table, ROWS, 1)
        store.push(URL)
    segment = max(server.objects(), key=lambda path: path.stat().st_size)
    good = segment.read_bytes()
    segment.write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
    with pytest.raises(
        StoreCorrupt, match=f"{URL}/objects/.*{segment.name} is damaged: its checksum"
    ):
        rowmill.restore(URL, tmp_path / "restored")
    with pytest.raises(StoreMissing, match="restore"):
        rowmill.open(tmp_path / "restored", memory="32MiB")
    segment.unlink()
    with pytest.raises(StoreCorrupt, match=f"{segment.name} is damaged: it does not exist"):
        rowmill.restore(URL, tmp_path / "restored")


def test_push_and_restore_by_the_command_line(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, table = open_store(tmp_path / "store")
    with store:
        expected = advance(store, table, ROWS, 1)
    assert run("checkpoints", URL) == 0
    assert capsys.readouterr().out == f"no checkpoint at {URL}\n"
    assert run("push", tmp_path / "store", URL, "--keep", "2") == 0
    assert f"checkpoint 1 is at {URL}: " in capsys.readouterr().out
    assert run("checkpoints", URL) == 0
    assert f" UTC {ROWS:>16,} rows" in capsys.readouterr().out
    assert run("restore", URL, tmp_path / "restored", "--checkpoint", "1") == 0
    assert content_at(tmp_path / "restored")[0] == expected
    capsys.readouterr()
    assert run("restore", URL, tmp_path / "other", "--checkpoint", "7") == 2
    assert capsys.readouterr().err == f"rowmill: no checkpoint 7 at {URL}; it has 1\n"
    assert run("push", tmp_path / "nowhere", URL) == 2
    shutil.rmtree(server.folder / "bucket")
    assert run("checkpoints", URL) == 1
    assert URL in capsys.readouterr().err
