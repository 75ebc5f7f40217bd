"""Rows of a storage node in Python: lookups of modules, exported programs, refused changes, keys, a node that restarts.

What could break: a module that gives other bits than over the store itself, a training step that seems to work, calls that
hang when the node is gone, errors that do not say what to do.
"""

from __future__ import annotations

import os
import re
import threading
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import rowmill
from python.tests.nodes import KEY, OTHER_KEY, access_file, serving
from rowmill.errors import (
    InvalidInput,
    SpecMismatch,
    StorageError,
    StoreClosed,
    StoreForked,
    StoreReadOnly,
    TableMissing,
)
from rowmill.nn import EmbeddingBag, EmbeddingCollection, Feature, RaggedBatch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rowmill import Store

ROWS = 500


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with tables of two groups."""
    folder = tmp_path_factory.mktemp("node") / "store"
    sgd = rowmill.optim.SGD(lr=0.5)
    with rowmill.open(folder, memory="32MiB", seed=3) as store:
        for name, dim, num_rows in (("user", 8, None), ("item", 8, ROWS), ("word", 4, ROWS)):
            table = store.table(name, dim=dim, optimizer=sgd, num_rows=num_rows)
            ids = np.arange(0, ROWS, 2)
            table.put(ids, np.random.default_rng(dim).random((len(ids), dim)).astype(np.float32))
    return folder


@pytest.fixture(scope="module")
def url(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(folder, tmp_path_factory.mktemp("names") / "node") as (url, _):
        yield url


@pytest.fixture
def remote(url: str) -> Iterator[Store]:
    with rowmill.open(url) as store:
        yield store


def collection(store: Store, dtype: torch.dtype = torch.float32) -> EmbeddingCollection:
    features = [
        Feature("user", store.open_table("user"), "mean"),
        Feature("item", store.open_table("item"), padding_idx=6),
        Feature("seen", store.open_table("item")),
        Feature("word", store.open_table("word")),
    ]
    return EmbeddingCollection(features, output_dtype=dtype)


def batch(seed: int) -> RaggedBatch:
    stream = np.random.default_rng(seed)
    return RaggedBatch.from_lists(
        {
            name: [stream.integers(0, ROWS, stream.integers(0, 6)).tolist() for _ in range(9)]
            for name in ("user", "item", "seen", "word")
        }
    )


def test_modules_give_the_bits_of_the_store(folder: Path, remote: Store) -> None:
    assert remote.read_only
    assert remote.table_names() == ["item", "user", "word"]
    with rowmill.open(folder, memory="32MiB", read_only=True) as local:
        for dtype in (torch.float32, torch.bfloat16):
            here, there = (collection(store, dtype).eval() for store in (local, remote))
            for seed in range(4):
                assert torch.equal(here(batch(seed)), there(batch(seed)))
        item = remote.open_table("item")
        assert (item.dim, item.num_rows, item.dtype) == (8, ROWS, "fp32")
        ids = torch.randint(0, ROWS, (7, 3))
        assert torch.equal(item.get(ids), local.open_table("item").get(ids))
        bags = [
            EmbeddingBag(ROWS, 8, mode="sum", table=store.open_table("item")).eval()
            for store in (local, remote)
        ]
        weights = torch.rand(7, 3)
        assert torch.equal(bags[0](ids, None, weights), bags[1](ids, None, weights))
        assert torch.equal(bags[0].weight, bags[1].weight)


def test_a_module_is_exported(remote: Store) -> None:
    bag = EmbeddingBag(ROWS, 8, mode="mean", table=remote.open_table("item")).eval()
    ids = torch.randint(0, ROWS, (5, 4))
    with torch.no_grad():
        program = torch.export.export(bag, (ids,))
        assert torch.equal(program.module()(ids), bag(ids))


def test_threads_share_a_store(folder: Path, remote: Store) -> None:
    with rowmill.open(folder, memory="32MiB", read_only=True) as local:
        model = collection(local).eval()
        expected = [model(batch(seed)) for seed in range(8)]
    model, wrong = collection(remote).eval(), list[int]()

    def ask(first: int) -> None:
        for turn in range(10):
            seed = (first + turn) % 8
            if not torch.equal(model(batch(seed)), expected[seed]):
                wrong.append(seed)

    for count in (1, 8, 16):
        threads = [threading.Thread(target=ask, args=(first,)) for first in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_training_and_changes_are_refused(remote: Store, url: str) -> None:
    model = collection(remote)
    with pytest.raises(StoreReadOnly, match=r"model\.eval\(\)") as raised:
        model(batch(0))
    assert url in str(raised.value)
    assert "rowmill storage follow" in str(raised.value)
    item: Any = remote.open_table("item")
    for call in (
        lambda: item.put([1], np.zeros((1, 8), np.float32)),
        lambda: item.rmw([1], np.zeros((1, 8), np.float32)),
        lambda: item.delete([1]),
        lambda: remote.checkpoint(),
        lambda: remote.step().__enter__(),
        lambda: len(item),
    ):
        with pytest.raises(StoreReadOnly, match="can only be read"):
            call()
    sgd = rowmill.optim.SGD(lr=0.5)
    assert remote.table("item", dim=8, optimizer=sgd, num_rows=ROWS).name == "item"
    with pytest.raises(SpecMismatch, match="dim=8"):
        remote.table("item", dim=4, optimizer=sgd, num_rows=ROWS)


def test_wrong_arguments_are_told(remote: Store, url: str, tmp_path: Path) -> None:
    with pytest.raises(TableMissing, match="it has item, user, word"):
        remote.open_table("absent")
    with pytest.raises(InvalidInput, match="out of range"):
        remote.open_table("item").get([ROWS])
    address, name = url.rsplit("/", 1)
    with pytest.raises(StorageError, match="no subsystem of this name"):
        rowmill.open(f"{address}/nqn.2014-08.org.nvmexpress:uuid:{name[-36:][::-1]}")
    with pytest.raises(InvalidInput, match="no /NQN"):
        rowmill.open(address)
    with pytest.raises(InvalidInput, match="leave out at, version and feed"):
        rowmill.open(url, version="best")
    with pytest.raises(InvalidInput, match="access is for URLs"):
        rowmill.open(tmp_path / "store", access=tmp_path / "access.toml")
    file = tmp_path / "access.toml"
    (tmp_path / "damaged").write_text("DHHC-1:00:")
    for text, reason in (
        ("key = 1", "the settings are the strings nqn, key_file, controller_key_file, got key = 1"),
        ("=", "is not a TOML file"),
        ('key_file = "absent"', "cannot read key_file 'absent'"),
        ('nqn = "me"', 'nqn: "me" is no NVMe qualified name: it must start with "nqn."'),
        ('key_file = "damaged"', 'key_file: a key has the form "DHHC-1:'),
        ('controller_key_file = "damaged"', 'controller_key_file: a key has the form "DHHC-1:'),
    ):
        file.write_text(text)
        with pytest.raises(InvalidInput, match=re.escape(reason)) as raised:
            rowmill.open(url, access=file)
        assert str(file) in str(raised.value)
    store = rowmill.open(url)
    table = store.open_table("item")
    store.close()
    with pytest.raises(StoreClosed):
        table.get([1])


def test_a_host_proves_its_key(folder: Path, tmp_path: Path) -> None:
    with serving(folder, tmp_path / "node", with_key=True) as (url, _):
        with rowmill.open(url, access=access_file(tmp_path / "right", KEY)) as store:
            assert store.open_table("item").get([1, 2]).shape == (2, 8)
        with pytest.raises(StorageError, match="compare the key of this host"):
            rowmill.open(url, access=access_file(tmp_path / "wrong", OTHER_KEY))
        with pytest.raises(StorageError, match="does not allow host"):
            rowmill.open(url)


def test_a_node_proves_its_key_to_a_host_that_asks(folder: Path, tmp_path: Path) -> None:
    def access(node_key: str) -> Path:
        return access_file(tmp_path / "access", KEY, node_key=node_key)

    with serving(folder, tmp_path / "node", with_key=True, own_key=OTHER_KEY) as (url, _):
        with rowmill.open(url, access=access(OTHER_KEY)) as store:
            assert store.open_table("item").get([1, 2]).shape == (2, 8)
        with pytest.raises(StorageError, match="the controller did not prove its key"):
            rowmill.open(url, access=access(KEY))
    with (
        serving(folder, tmp_path / "keyless", with_key=True) as (url, _),
        pytest.raises(StorageError, match="the controller"),
    ):
        rowmill.open(url, access=access(OTHER_KEY))


def test_lookups_go_on_after_the_node_was_killed(folder: Path, tmp_path: Path) -> None:
    with serving(folder, tmp_path / "node") as (url, _):
        store = rowmill.open(url)
        table = store.open_table("user")
        expected = table.get(torch.arange(100))
    port = int(url.split(":")[2].split("/")[0])
    found: list[torch.Tensor] = []
    asking = threading.Thread(target=lambda: found.append(table.get(torch.arange(100))))
    asking.start()
    with serving(folder, tmp_path / "node", port=port) as (again, _):
        assert again == url
        asking.join()
        assert torch.equal(found[0], expected)
    with rowmill.open(folder, memory="32MiB", read_only=True) as local:
        assert torch.equal(local.open_table("user").get(torch.arange(100)), expected)
    store.close()


def test_a_forked_child_is_told_to_open_the_node_itself(remote: Store) -> None:
    table = remote.open_table("user")
    with warnings.catch_warnings():
        # Newer versions of Python warn of threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            table.get([1])
        except StoreForked:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert table.get([1]).shape == (1, 8)


def test_a_call_ends_when_no_node_answers(folder: Path, tmp_path: Path) -> None:
    with serving(folder, tmp_path / "node") as (url, _):
        store = rowmill.open(url, wait_deadline_s=0.5)
        table = store.open_table("user")
        table.get([1])
    with pytest.raises(StorageError, match=r"not answered within .*not connected"):
        table.get([1])
    store.close()
    with pytest.raises(StorageError, match="is the node running"):
        rowmill.open(url)
