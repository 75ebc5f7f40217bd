"""Faults of a model in two processes: a half is killed, absent, stopped or has another bundle; a file is damaged.

A request says how long its dense half takes (`pausing`), so that a fault happens while a request runs. Every request must
end by its deadline, with correct scores or an error. Its memory must then be free, and a restarted half must be used
without a restart of the other half.
"""

from __future__ import annotations

import shutil
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from tritonclient.utils import InferenceServerException

import rowmill
from python.tests.serve.pausing import export_pausing, pausing_call
from python.tests.serve.test_serve import ask
from python.tests.serve.workers import START_S, Worker, stop, worker
from python.tests.warm import warm_python
from rowmill.errors import BundleDamaged
from rowmill.nn import Feature, StackedBags
from rowmill.partition.bundle import Bundle
from rowmill.partition.export import export
from rowmill.serve.files import BundleFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from torch import Tensor

PROGRAM = "python.tests.serve.pausing"
_METRICS = ("--metrics-port", "0", "--wire-memory", "32MiB", "--batch-requests", "1")
_TRANSPORTS = pytest.mark.parametrize("transport", ["tcp", "shm"])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles") / "pausing"
    export_pausing(folder)
    return folder


@contextmanager
def dense_half(bundle: Path, address: str, python: str | None = None) -> Generator[Worker]:
    flags = ("--role", "dense", "--listen", address, *_METRICS)
    with worker(bundle, *flags, program=PROGRAM, python=python or warm_python()) as found:
        yield found


@contextmanager
def cpu_half(bundle: Path, address: str, *flags: str, **options: Any) -> Generator[Worker]:
    ports = () if "--http-port" in flags else ("--http-port", "0")
    role = ("--role", "cpu", "--dense", address)
    options.setdefault("python", warm_python())
    with worker(bundle, *role, *ports, *_METRICS, *flags, **options) as found:
        yield found


def listen_at(transport: str, folder: Path) -> str:
    return "tcp://127.0.0.1:0" if transport == "tcp" else f"shm://{folder}/dense.sock"


def metric(server: Worker, name: str) -> float | None:
    """The sum of a metric over its labels; None if it has no value yet."""
    with urllib.request.urlopen(f"http://{server.addresses['metrics']}/metrics") as reply:
        lines = reply.read().decode().splitlines()
    found = [line for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found) if found else None


def until(what: str, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + START_S
    while not condition():
        assert time.monotonic() < end, f"{what} does not happen"
        time.sleep(0.05)


@dataclass
class Asked(threading.Thread):
    """A request in its own thread. When the thread has ended: the answer or the error, and how many seconds it took."""

    server: Worker
    bundle: Path
    request: dict[str, Tensor]
    timeout_s: float
    answer: dict[str, Tensor] | None = None
    error: Exception | None = None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        super().__init__()
        self.start()

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        begin = time.monotonic()
        try:
            timeout = int(1e6 * self.timeout_s)
            http = self.server.addresses["http"]
            self.answer = ask(http, self.bundle.name, self.request, timeout=timeout)
        except Exception as error:
            self.error = error
        self.seconds = time.monotonic() - begin


def check(server: Worker, bundle: Path) -> bool:
    """True if the worker answers. Fails if its scores differ from those of the bundle."""
    request = pausing_call(3, 0.0)
    found = Asked(server, bundle, request, 20.0)
    found.join()
    if found.answer is None:
        return False
    with Bundle.open(bundle) as opened:
        (expected,) = opened.run(request)
    (scores,) = found.answer.values()
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)
    return True


def under_way(front: Worker, bundle: Path) -> Asked:
    """Send a request that takes the dense half ten seconds; returns while it runs."""
    asked = Asked(front, bundle, pausing_call(4, 10_000.0), 60.0)
    until("the request comes in", lambda: metric(front, "rowmill_serve_open_requests") == 1)
    time.sleep(0.2)
    return asked


@_TRANSPORTS
def test_requests_fail_when_the_dense_half_is_killed_and_succeed_after_its_restart(
    transport: str, bundle: Path, tmp_path: Path
) -> None:
    with dense_half(bundle, listen_at(transport, tmp_path)) as first:
        address = first.addresses["dense"]
        with cpu_half(bundle, address) as front:
            asked = under_way(front, bundle)
            first.kill()
            asked.join()
            assert isinstance(asked.error, InferenceServerException)
            assert "dense half" in str(asked.error)
            assert asked.seconds < 60, "within its deadline"
            assert not check(front, bundle)
            until("memory is free", lambda: metric(front, "rowmill_serve_wire_memory_bytes") == 0)
            with dense_half(bundle, address) as second:
                until("the new dense half is used", lambda: check(front, bundle))
                assert (front.end(), second.end()) == (0, 0)


@_TRANSPORTS
def test_a_killed_cpu_half_leaves_no_memory_in_use_and_can_restart(
    transport: str, bundle: Path, tmp_path: Path
) -> None:
    with dense_half(bundle, listen_at(transport, tmp_path)) as dense:
        address = dense.addresses["dense"]
        with cpu_half(bundle, address) as first:
            asked = under_way(first, bundle)
            first.kill()
            asked.join()
            assert asked.error is not None
        with cpu_half(bundle, address) as second:
            assert check(second, bundle)
            until("memory is free", lambda: metric(dense, "rowmill_serve_wire_memory_bytes") == 0)
            assert (second.end(), dense.end()) == (0, 0)


def test_a_cpu_half_is_not_ready_until_its_dense_half_starts(bundle: Path, tmp_path: Path) -> None:
    address = f"shm://{tmp_path}/dense.sock"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with cpu_half(bundle, address, "--http-port", str(port), wait=False) as front:
        front.addresses = {"http": f"127.0.0.1:{port}"}

        def status(path: str) -> int:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as reply:
                    return reply.status
            except urllib.error.HTTPError as error:
                return error.code
            except OSError:
                return 0

        until("it listens", lambda: status("/v2/health/live") == 200)
        assert status("/v2/health/ready") == 503
        asked = Asked(front, bundle, pausing_call(2, 0.0), 20.0)
        asked.join()
        assert isinstance(asked.error, InferenceServerException)
        assert "start the dense half" in str(asked.error)
        with dense_half(bundle, address):
            until("it is ready", lambda: status("/v2/health/ready") == 200)
            assert check(front, bundle)
            assert front.end() == 0


@_TRANSPORTS
def test_requests_miss_their_deadlines_while_the_dense_half_is_stopped(
    transport: str, bundle: Path, tmp_path: Path
) -> None:
    with (
        # The signal reaches the process that is started, and no process that this one forks.
        dense_half(bundle, listen_at(transport, tmp_path), sys.executable) as dense,
        cpu_half(bundle, dense.addresses["dense"]) as front,
    ):
        assert check(front, bundle)
        stop(dense.process)
        try:
            asked = [Asked(front, bundle, pausing_call(4, 0.0), 0.5) for _ in range(20)]
            for one in asked:
                one.join()
        finally:
            dense.process.send_signal(signal.SIGCONT)
        for one in asked:
            assert isinstance(one.error, InferenceServerException)
            assert "within" in str(one.error)
            assert one.seconds >= 0.4, "the dense half may continue before the deadline"
        until("it answers again", lambda: check(front, bundle))
        for half in (front, dense):
            until(
                "memory is free", lambda h=half: metric(h, "rowmill_serve_wire_memory_bytes") == 0
            )
        assert (front.end(), dense.end()) == (0, 0)


@_TRANSPORTS
def test_a_cpu_half_refuses_the_dense_half_of_another_bundle(
    transport: str, bundle: Path, tmp_path: Path
) -> None:
    other = tmp_path / "pausing"
    export_pausing(other, seed=5)
    with (
        dense_half(other, listen_at(transport, tmp_path)) as dense,
        cpu_half(bundle, dense.addresses["dense"], "--warm-up", "2", wait=False) as front,
    ):
        assert front.process.wait(START_S) == 1
        assert front.process.stdout is not None
        assert front.process.stdout.read() == "", "it was never ready"
        (line,) = [line for line in front.log if line.startswith("rowmill:")]
        assert "program" in line, line
        with cpu_half(other, dense.addresses["dense"]) as right:
            assert check(right, other)


def test_sigterm_during_an_example_of_the_warm_up_ends_the_worker_cleanly(tmp_path: Path) -> None:
    export_pausing(tmp_path / "slow", ms=1000.0)
    flags = ("--http-port", "0", *_METRICS, "--log-level", "info")
    with worker(
        tmp_path / "slow", *flags, wait=False, program=PROGRAM, python=warm_python()
    ) as found:
        until("the start", lambda: any("half: " in line for line in found.log))
        time.sleep(0.5)
        assert found.end() == 0
        assert found.process.stdout is not None
        assert found.process.stdout.read() == "", "it was never ready"
    assert [line for line in found.log if not line.startswith("{")] == []


def damages(file: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Kinds of damage to a file: their name, and a function that does it."""
    content = file.read_bytes()
    at = len(content) // 2
    flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] if content else b"\0"
    yield "flipped", lambda: drop(file.write_bytes(flipped))
    yield "truncated", lambda: drop(file.write_bytes(content[: at or 1] if content else b"\0"))
    yield "missing", file.unlink


def drop(_: object) -> None:
    """Turn an expression with a value into one without."""


def test_every_damaged_file_of_a_bundle_is_named(bundle: Path, tmp_path: Path) -> None:
    """Every kind of damage to every file is found by `BundleFiles.open`, and one kind per file also by a worker."""
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    files = sorted(path for path in copy.rglob("*") if path.is_file())
    assert {"manifest.json", "dense.pt2", "cpu.json", "weights.safetensors"} <= {
        path.name for path in files
    }
    assert any("rows" in path.relative_to(copy).parts for path in files)
    ports = ("--http-port", "0", "--metrics-port", "0")
    for number, file in enumerate(files):
        content = file.read_bytes()
        for kind, (name, damage) in enumerate(damages(file)):
            damage()
            try:
                if file.name == "manifest.json" and name == "flipped":
                    continue  # It has no checksum of its own. The halves compare manifests.
                with pytest.raises(BundleDamaged, match=file.name):
                    BundleFiles.open(copy, "copy")
                if kind == number % 3:
                    with worker(copy, *ports, wait=False, python=warm_python()) as found:
                        assert found.process.wait(START_S) == 1
                        assert found.process.stdout is not None
                        assert found.process.stdout.read() == ""
                    (line,) = [line for line in found.log if line.startswith("rowmill:")]
                    assert file.name in line
            finally:
                file.write_bytes(content)
    assert BundleFiles.open(copy, "copy").manifest == BundleFiles.open(bundle, "b").manifest


class Stored(nn.Module):
    """One layer over rows of a store."""

    def __init__(self, rows: StackedBags) -> None:
        super().__init__()
        self.rows = rows
        self.layer = nn.Linear(64, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.layer(self.rows(ids).squeeze(1)).squeeze(1)


def test_damaged_row_blocks_give_errors_not_scores(tmp_path: Path) -> None:
    """Blocks are damaged on disk while a worker runs that has a part of the rows in memory."""
    count = 150_000
    path = tmp_path / "stored"
    with rowmill.open(tmp_path / "store", memory="64MiB") as store:
        table = store.table("rows", dim=64, optimizer=rowmill.optim.SGD(lr=0.1))
        torch.manual_seed(6)
        for start in range(0, count, 10_000):
            table.put(torch.arange(start, start + 10_000), torch.randn(10_000, 64))
        module = Stored(StackedBags([Feature("ids", table)]))
        export(module, [(torch.tensor([[1], [2], [3]]),)], out=path)
        requests = torch.randint(0, count, (60, 20, 1))
        with torch.no_grad():
            answers = [module(request) for request in requests]
    flags = ("--http-port", "0", "--metrics-port", "0", "--memory", "16MiB", "--slo", "30")
    with worker(path, *flags, python=warm_python()) as found:
        http = found.addresses["http"]

        def scores(request: Tensor) -> Tensor:
            (answer,) = ask(http, "stored", {"ids": request}).values()
            return answer

        torch.testing.assert_close(scores(requests[0]), answers[0], rtol=1e-5, atol=1e-5)
        damage_rows(path / "rows")
        errors: list[str] = []
        for request, answer in zip(requests, answers, strict=True):
            try:
                torch.testing.assert_close(scores(request), answer, rtol=1e-5, atol=1e-5)
            except InferenceServerException as error:
                errors.append(str(error))
        assert errors, "no request has read a damaged block"
        for error in errors:
            assert "corrupt" in error or "checksum" in error, error
        # Rows in memory are still served.
        torch.testing.assert_close(scores(requests[0]), answers[0], rtol=1e-5, atol=1e-5)
        assert found.end() == 0
    with worker(path, *flags, wait=False, python=warm_python()) as again:
        assert again.process.wait(START_S) == 1
    assert any("checksum" in line for line in again.log)


def damage_rows(rows: Path) -> None:
    """Flip one bit in each block of the log."""
    block = 4096
    logs = [path for path in rows.rglob("*") if path.is_file() and path.stat().st_size > 64 * block]
    assert logs
    for path in logs:
        with path.open("r+b") as file:
            for start in range(0, path.stat().st_size - block, block):
                file.seek(start + block // 2)
                byte = file.read(1)
                file.seek(start + block // 2)
                file.write(bytes([byte[0] ^ 1]))
