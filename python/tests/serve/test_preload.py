"""Rows that are read into memory before a worker is ready."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import torch

import rowmill
from rowmill.serve.preload import preload

if TYPE_CHECKING:
    from pathlib import Path

_ROWS = 60_000
_DIM = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("preload") / "rows"
    with rowmill.open(folder, memory="64MiB") as store:
        for name, dense in (("hashed", None), ("dense", _ROWS)):
            table = store.table(name, dim=_DIM, optimizer=rowmill.optim.SGD(lr=0.1), num_rows=dense)
            table.put(torch.arange(_ROWS), torch.rand(_ROWS, _DIM))
        store.checkpoint()
    return folder


def _read_only(folder: Path, memory: str) -> rowmill.Store:
    return rowmill.open(folder, memory=memory, read_only=True)


def test_all_rows_are_in_memory_afterwards(folder: Path) -> None:
    with _read_only(folder, "64MiB") as store:
        preload(store.core, threading.Event())
        stats = store.stats()
        assert stats["rows_resident"] == 2 * _ROWS
        store.open_table("hashed").get(torch.arange(_ROWS))
        assert store.stats()["cold_reads"] == stats["cold_reads"]


def test_it_stops_when_memory_is_full(folder: Path) -> None:
    with _read_only(folder, "16MiB") as store:
        preload(store.core, threading.Event())
        stats = store.stats()
        # 128 bytes per row: memory has room for some of the rows.
        assert 20_000 < stats["rows_resident"] < 2 * _ROWS
        assert stats["rows_looked_up"] < stats["rows_resident"] + 3 * 16_384


def test_it_stops_when_the_process_ends(folder: Path) -> None:
    ending = threading.Event()
    ending.set()
    with _read_only(folder, "64MiB") as store:
        preload(store.core, ending)
        assert store.stats()["rows_resident"] <= 16_384
