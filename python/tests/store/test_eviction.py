"""Eviction and admission by the Python API; tests in Rust check which rows are chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import rowmill
from rowmill import TTL, LeastFrequent, LowestNorm, LowestScore, MinCount
from rowmill.config import ConfigError, load_config
from rowmill.errors import InvalidInput, SpecMismatch
from rowmill.init import Constant
from rowmill.nn import EmbeddingBag
from rowmill.optim import SGD

if TYPE_CHECKING:
    from pathlib import Path

ONES = np.ones((1, 2), np.float32)


def made(store: rowmill.Store, name: str = "t", **options: Any) -> rowmill.Table:
    return store.table(name, dim=2, optimizer=SGD(lr=0.5), initializer=Constant(1.0), **options)


def ids_of(table: rowmill.Table) -> list[int]:
    return sorted(int(id_) for ids, _ in table.scan() for id_ in ids)


def test_ttl_evicts_rows_without_recent_updates(store: rowmill.Store) -> None:
    table = made(store, eviction=TTL(steps=2))
    for id_ in (-1, 2, 2, 3):
        table.rmw([id_], ONES)
    evicted = table.evict()
    assert (evicted.tolist(), evicted.dtype) == ([-1], np.int64)
    assert ids_of(table) == [2, 3]
    assert table.get([-1]).tolist() == [[1.0, 1.0]]
    assert store.stats()["tables"]["t"]["evicted"] == 1


def test_event_time_is_set_by_steps(store: rowmill.Store) -> None:
    table = made(store, eviction=TTL(seconds=60))
    bag = EmbeddingBag(None, 2, mode="sum", table=table)
    assert store.event_time is None
    with pytest.raises(
        InvalidInput, match=r"table \"t\".* by event time.*store\.step\(event_time="
    ):
        bag(torch.tensor([[1]]))
    for time, id_ in ((1000, 1), (1050, 2), (1061, 3)):
        with store.step(event_time=time):
            bag(torch.tensor([[id_]])).sum().backward()
    assert store.event_time == 1061
    assert table.evict().tolist() == [1]
    bag(torch.tensor([[2]])).sum().backward()  # A step without event time uses the latest.
    store.ticket(event_time=1121).release()
    assert table.evict().tolist() == []
    store.ticket(event_time=1122).release()
    assert table.evict().tolist() == [2, 3]


@pytest.mark.parametrize("time", [-1, 1.5, "now", 2**63])
def test_an_invalid_event_time_is_named(store: rowmill.Store, time: Any) -> None:
    for begin in (store.step, store.ticket):
        with pytest.raises(InvalidInput, match="event_time must be a whole number"):
            begin(event_time=time)


def test_automatic_eviction_runs_every_n_steps(store: rowmill.Store) -> None:
    table = made(store, eviction=LeastFrequent(max_rows=2, every=3))
    bag = EmbeddingBag(None, 2, mode="sum", table=table)
    seen: list[int] = []
    for ids in ([1, 2, 3], [2, 3, 4], [3, 5, 4], [6, 7, 8]):
        bag(torch.tensor([ids])).sum().backward()
        seen.append(len(table))
    assert seen == [3, 4, 2, 5]
    assert ids_of(table) == [3, 4, 6, 7, 8], "2 and 4 were changed twice: the smaller id is evicted"


def test_eviction_by_score_and_by_norm(store: rowmill.Store) -> None:
    scored = made(store, "scored", eviction=LowestScore(max_rows=2))
    scored.put([1, 2, 3, 4], np.ones((4, 2), np.float32))
    scored.set_scores([1, 2, 3], [0.5, -1.0, 2.0])
    assert scored.evict().tolist() == [2, 4]
    values = np.array([[3, 4], [0.1, 0], [1, 0]], np.float32)
    for name, eviction, gone in (
        ("most", LowestNorm(max_rows=1), [2, 3]),
        ("below", LowestNorm(below=1.0), [2]),
    ):
        table = made(store, name, eviction=eviction)
        table.put([1, 2, 3], values)
        assert table.evict().tolist() == gone


def test_an_id_is_admitted_after_enough_lookups(store: rowmill.Store) -> None:
    table = made(store, admission=MinCount(3, bytes="64KiB"))
    bag = EmbeddingBag(None, 2, mode="sum", table=table)
    for count in (1, 2):
        out = bag(torch.tensor([[7]]))
        out.sum().backward()
        assert (out.tolist(), len(table)) == ([[1.0, 1.0]], 0), count
    bag(torch.tensor([[7, 7]])).sum().backward()
    assert table.get([7]).tolist() == [[0.0, 0.0]], "the row after its first gradient"
    bag.eval()
    for _ in range(4):
        bag(torch.tensor([[8]]))
    assert table.get_or_init([8]).tolist() == [[1.0, 1.0]]
    assert not table.contains([8]).any(), "evaluation does not count as a lookup"


def test_options_are_stored_with_the_table(tmp_path: Path) -> None:
    options: list[dict[str, Any]] = [
        {"eviction": TTL(steps=5, every=2), "admission": MinCount(4, 2048)},
        {"eviction": TTL(seconds=60)},
        {"eviction": LeastFrequent(max_rows=10)},
        {"eviction": LowestScore(max_rows=10)},
        {"eviction": LowestNorm(max_rows=10)},
        {"eviction": LowestNorm(below=0.1)},
        {},
    ]
    with rowmill.open(tmp_path / "store", memory="64MiB") as store:
        tables = [made(store, str(number), **given) for number, given in enumerate(options)]
        tables[0].get_or_init([1, 1, 2])
        tables[0].get_or_init([1])
        tables[0].get_or_init([1])
        store.checkpoint()
        store.push((tmp_path / "copies").as_uri())
    rowmill.restore((tmp_path / "copies").as_uri(), tmp_path / "restored")
    for folder in ("store", "restored"):
        with rowmill.open(tmp_path / folder, memory="64MiB") as store:
            for number, given in enumerate(options):
                table = store.open_table(str(number))
                assert table.eviction == given.get("eviction")
                assert table.admission == given.get("admission")
            table = store.open_table("0")
            table.get_or_init([1, 2])
            assert ids_of(table) == [1], "three reads before, and this one"
            with pytest.raises(SpecMismatch, match="has eviction"):
                made(store, "0", admission=MinCount(4, 2048))
            with pytest.raises(SpecMismatch, match="has admission"):
                made(store, "0", eviction=TTL(steps=5, every=2))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"eviction": "ttl"}, "eviction must be one of rowmill's TTL.* got 'ttl'"),
        ({"eviction": TTL()}, r"eviction: give one of steps or seconds, got TTL\("),
        ({"eviction": TTL(steps=1, seconds=1)}, "eviction: give one of steps or seconds"),
        ({"eviction": TTL(steps=0)}, r"TTL\(steps=...\) must be a whole number from 1"),
        ({"eviction": TTL(seconds=1.5)}, r"TTL\(seconds=...\) must be a whole number"),  # type: ignore[arg-type]
        ({"eviction": TTL(steps=1, every=-1)}, "every must be a whole number from 0"),
        ({"eviction": LeastFrequent(max_rows=0)}, r"LeastFrequent\(max_rows=...\) must be"),
        ({"eviction": LowestNorm()}, "give one of max_rows or below"),
        ({"eviction": LowestNorm(below=-1.0)}, "below must be a finite number > 0, got -1"),
        ({"eviction": LowestNorm(below="x")}, "below=...\\) must be a number"),  # type: ignore[arg-type]
        ({"admission": 3}, "admission must be a rowmill.MinCount, got 3"),
        ({"admission": MinCount(1)}, r"MinCount\(count\) must be a whole number from 2 to 255"),
        ({"admission": MinCount(2, "3KiB")}, "bytes must be a power of two from 1 KiB"),
    ],
)
def test_invalid_options_are_named(
    store: rowmill.Store, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidInput, match=says):
        made(store, **options)


def test_invalid_calls_are_named(store: rowmill.Store) -> None:
    plain = made(store)
    with pytest.raises(InvalidInput, match='set when table "t" is created'):
        plain.evict()
    with pytest.raises(InvalidInput, match='LowestScore for the rows of table "t"'):
        plain.set_scores([1], [1.0])
    scored = made(store, "scored", eviction=LowestScore(max_rows=2))
    with pytest.raises(InvalidInput, match="scores"):
        scored.set_scores([1, 2], [1.0])
    with pytest.raises(InvalidInput, match="scores"):
        scored.set_scores([1], [float("nan")])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[eviction]\nrule = "old"', "eviction.rule must be one of none, ttl"),
        (
            '[eviction]\nrule = "ttl"\nsteps = 0',
            "eviction.steps must be an integer of at least 1, got 0",
        ),
        ('[eviction]\nrule = "ttl"\nmax_rows = 5', "takes eviction.steps, got eviction.max_rows"),
        ('[eviction]\nrule = "ttl"', "takes eviction.steps, got none of these"),
        ("[eviction]\nsteps = 5", "eviction.steps is set, but eviction.rule is none"),
        (
            "[admission]\nmin_count = 1",
            "admission.min_count must be an integer of at least 2",
        ),
        ('[admission]\nbytes = "much"', "admission.bytes must be a number of bytes"),
        (
            '[eviction]\nrule = "ttl"\nsteps = 5\n[train]\nplain = true',
            "eviction.rule needs a store: drop --plain",
        ),
    ],
)
def test_invalid_sections_of_a_run_are_named(tmp_path: Path, text: str, says: str) -> None:
    from rowmill.train.rows import row_eviction

    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises((ConfigError, InvalidInput), match=says):
        row_eviction(load_config(path).eviction)
