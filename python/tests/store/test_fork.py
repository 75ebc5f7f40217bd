"""Forked children of a process with an open store: DataLoader workers, and children that exit normally."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import rowmill
from rowmill import _core
from rowmill.errors import StoreForked, StoreLocked
from rowmill.nn import EmbeddingBag
from rowmill.optim import SGD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from rowmill.store.tables import Table

DEADLINE_S = 120
ROOT = Path(__file__).parents[3]


@pytest.fixture
def table(store: rowmill.Store) -> Table:
    made = store.table("words", dim=2, optimizer=SGD(lr=1.0), num_rows=100)
    made.put(range(100), [[float(id), 0.0] for id in range(100)])
    store.checkpoint()
    return made


class Ids(Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> int:
        return number


class UsesTheStoreOfTheParent(Ids):
    def __init__(self, table: Table) -> None:
        self.table = table

    def __getitem__(self, number: int) -> int:
        return int(self.table.get([number])[0, 0])


class OpensItsOwn(Ids):
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.table: Table | None = None

    def __getitem__(self, number: int) -> int:
        if self.table is None:
            store = rowmill.open(self.folder, memory="64MiB", read_only=True)
            self.table = store.open_table("words")
        return int(self.table.get([number])[0, 0])


def batches(dataset: Dataset[int]) -> list[list[int]]:
    loader = DataLoader(
        dataset, batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=DEADLINE_S
    )
    return [batch.tolist() for batch in loader]


def test_a_worker_that_uses_the_parents_store_gets_an_error_with_the_fix(
    table: Table,
) -> None:
    with pytest.raises(StoreForked, match=r"rowmill\.open\(.*store.*, read_only=True\)"):
        batches(UsesTheStoreOfTheParent(table))
    assert table.get([3]).tolist() == [[3.0, 0.0]], "the parent's store still works"


def test_workers_that_do_not_use_the_store_run_while_the_parent_trains(table: Table) -> None:
    bag = EmbeddingBag(100, 2, mode="sum", table=table)
    assert batches(Ids()) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    loader = DataLoader(
        Ids(), batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=DEADLINE_S
    )
    for ids in loader:
        bag(ids.unsqueeze(1)).sum().backward()
    assert table.get([7]).tolist() == [[6.0, -1.0]]
    table.store.checkpoint()


def test_workers_that_open_the_store_read_only_read_the_checkpoint(table: Table) -> None:
    table.put([1], [[-1.0, 0.0]])
    dataset = OpensItsOwn(table.store.location)
    assert batches(dataset) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def in_child(work: Any) -> None:
    """Run `work` in a forked child; the test fails if the child raises or does not end."""
    with warnings.catch_warnings():
        # Python 3.12 warns about a fork with threads, which is the case under test.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.alarm(DEADLINE_S)
        try:
            work()
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_every_use_in_a_child_raises_and_the_child_ends_silently(table: Table) -> None:
    # In a new process: once autograd has started threads, as tests of this process may make it do, torch itself refuses
    # a backward in a child.
    table.store.close()
    program = f"from {__name__} import use_in_a_child; use_in_a_child({table.store.location!r})"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def use_in_a_child(folder: str) -> None:
    store = rowmill.open(folder, memory="64MiB")
    table = store.open_table("words")
    bag = EmbeddingBag(100, 2, mode="sum", table=table)
    ids: Tensor = torch.tensor([[11, 12]])
    ticket = store.ticket()
    queued = table.get_later([1], ticket=ticket)
    scan = iter(table.scan(batch_rows=10))
    next(scan)
    pooled = bag(ids)
    reads = {
        "get": lambda: table.get([1]),
        "len": lambda: len(table),
        "scan": lambda: next(iter(table.scan())),
        "hottest": table.hottest,
        "wait": queued.wait,
        "next of a scan": lambda: next(scan),
        "forward": lambda: bag(ids),
        "backward": lambda: pooled.sum().backward(),
        "evaluation": lambda: bag.eval()(ids),
        "step": lambda: store.step().__enter__(),
        "table": lambda: store.open_table("words"),
        "table_names": store.table_names,
        "lookahead": lambda: table.lookahead([1]),
        "checkpoint": store.checkpoint,
        "attachment_names": store.attachment_names,
        "stats": store.stats,
        "metrics": store.metrics,
        "changes": lambda: store.changes(0),
    }

    def child() -> None:
        nonlocal scan, pooled, queued
        for name, read in reads.items():
            try:
                read()
            except StoreForked:
                continue
            raise AssertionError(f"{name} used the store of the parent")
        reads.clear()
        ticket.release()
        del scan, pooled, queued
        store.close()

    in_child(child)
    pooled.sum().backward()
    ticket.release()
    assert table.get([11]).tolist() == [[10.0, -1.0]]
    store.close()


def test_a_step_open_at_a_fork_ends_silently_when_the_child_raises(
    store: rowmill.Store, table: Table
) -> None:
    bag = EmbeddingBag(100, 2, mode="sum", table=table)
    with store.step():
        bag(torch.tensor([[1]])).sum().backward()

        def child() -> None:
            with pytest.raises(StoreForked), store.step():
                pass
            store.steps.end(store.steps._thread.step, apply=False)  # pyright: ignore

        in_child(child)
    assert table.get([1]).tolist() == [[0.0, -1.0]]


def test_the_lock_of_a_folder_of_ranks_is_not_held_by_a_child(tmp_path: Path) -> None:
    lock = _core.FolderLock.take(str(tmp_path))
    with pytest.raises(StoreLocked):
        _core.FolderLock.take(str(tmp_path))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    lock.release()
    _core.FolderLock.take(str(tmp_path)).release()
    os.close(write)
    os.waitpid(child, 0)
    os.close(read)


PARENT = """
import os, sys, torch, rowmill
from rowmill.nn import EmbeddingBag
from rowmill.optim import SGD

store = rowmill.open(sys.argv[1], memory="64MiB", feed="64MiB")
table = store.table("words", dim=2, optimizer=SGD(lr=1.0))
bag = EmbeddingBag(None, 2, mode="sum", table=table)
table.put(range(1000), [[1.0, 2.0]] * 1000)
store.checkpoint()
table.put([5], [[3.0, 4.0]])
table.lookahead(range(1000))
ticket = store.ticket()
queued = table.get_later([1], ticket=ticket)
scan = iter(table.scan(batch_rows=10))
next(scan)
pooled = bag(torch.tensor([[7, 8]]))
child = os.fork()
if child == 0 and sys.argv[2] == "sleep":
    print(os.getpid(), flush=True)
    os.read(0, 1)
    os._exit(0)
if child == 0:
    sys.exit(0)
"""
"""Opens a store and forks in the middle of its work; the child sleeps, or ends as a program does."""

ENDS = """
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
queued.wait()
ticket.release()
pooled.sum().backward()
store.checkpoint()
store.close()
"""
KILLED = """
import signal
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_child_that_exits_normally_ends_and_writes_nothing(tmp_path: Path) -> None:
    # From 3.12 on, Python warns of every fork of a process with threads.
    python = [sys.executable, "-W", "ignore::DeprecationWarning"]
    ran = subprocess.run(
        [*python, "-c", PARENT + ENDS, str(tmp_path / "store"), "end"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "0\n", ran.stderr
    assert ran.stderr == ""
    with rowmill.open(tmp_path / "store", memory="64MiB") as store:
        words = store.open_table("words")
        assert words.get([5, 7]).tolist() == [[3.0, 4.0], [0.0, 1.0]]
    assert _core.fsck(str(tmp_path / "store"), False)["problems"] == []


@pytest.fixture
def orphan(tmp_path: Path) -> Iterator[int]:
    """A sleeping child of a process that was killed."""
    read, write = os.pipe()
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT + KILLED, str(tmp_path / "store"), "sleep"],
        stdin=read,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert parent.wait(DEADLINE_S) == -signal.SIGKILL
    parent.stdout.close()
    yield child
    os.close(write)
    os.close(read)


def test_a_folder_can_be_opened_while_a_child_outlives_its_killed_parent(
    orphan: int, tmp_path: Path
) -> None:
    with rowmill.open(tmp_path / "store", memory="64MiB") as store:
        assert store.open_table("words").get([5]).tolist() == [[1.0, 2.0]]
    os.kill(orphan, 0)  # The child still exists.
