"""Changes between checkpoints, read by another process: copies become equal to the store, and files hold every row."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
import pytest

import rowmill
from python.tests.warm import warm_python
from rowmill import errors
from rowmill.optim import SGD, Adagrad, Adam

if TYPE_CHECKING:
    from pathlib import Path

ADAM = Adam(lr=0.5)


def changes(*arguments: object, python: str = "") -> tuple[int, str, str]:
    done = subprocess.run(
        [python or warm_python(), "-m", "rowmill", "changes", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def ones(count: int, dim: int = 3) -> np.ndarray:
    return np.ones((count, dim), np.float32)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Checkpoint 1: ids in [0, 10) of `a`. Checkpoint 2: 8 to 12 written, 0 deleted, table `b` created."""
    with rowmill.open(tmp_path / "s", memory="16MiB", seed=5) as opened:
        a = opened.table("a", dim=3, optimizer=ADAM)
        a.rmw(range(10), ones(10))
        opened.checkpoint()
        a.rmw([8, 9, 10, 11], 2 * ones(4))
        a.delete([0])
        opened.table("b", dim=2, optimizer=SGD(lr=1.0), num_rows=10).put([3], ones(1, 2))
        opened.checkpoint()
    return tmp_path / "s"


def assert_equal(one: rowmill.Store, other: rowmill.Store) -> None:
    assert one.table_names() == other.table_names()
    for name in one.table_names():
        tables = [store.open_table(name) for store in (one, other)]
        assert tables[0].core.steps == tables[1].core.steps
        ids = [np.sort(np.concatenate([ids for ids, _ in table.scan()])) for table in tables]
        assert (ids[0] == ids[1]).all()
        # Also compare one id that may have no row.
        ids = np.append(ids[0], ids[0].max() % 9)
        assert (tables[0].get(ids) == tables[1].get(ids)).all()
        assert (tables[0].get_state(ids) == tables[1].get_state(ids)).all()


def test_a_copy_catches_up_and_trains_like_the_store(store: Path, tmp_path: Path) -> None:
    with (
        rowmill.open(store, memory="16MiB") as opened,
        rowmill.open(tmp_path / "copy", memory="16MiB", seed=5) as copy,
    ):
        assert opened.changes(0).replay(copy) == (12, 0)
        assert_equal(opened, copy)
        opened.open_table("a").delete([1, 2])
        opened.open_table("a").rmw([3, 700], ones(2))
        last = opened.checkpoint()["epoch"]
        assert rowmill.Changes(store, since=2).replay(copy) == (2, 2)
        assert (rowmill.Changes(store, since=last).replay(copy)) == (0, 0)
        assert_equal(opened, copy)
        for each in (opened, copy):
            each.open_table("a").rmw([3, 5, 9000], ones(3))
        assert_equal(opened, copy)


def test_batches_hold_exactly_the_changed_rows(store: Path) -> None:
    told = rowmill.Changes(store, since=1)
    assert (told.since, told.until) == (1, 2)
    assert [(table.name, table.dim, table.num_rows) for table in told.tables()] == [
        ("a", 3, None),
        ("b", 2, 10),
    ]
    assert [table.optimizer for table in told.tables()] == [ADAM, SGD(lr=1.0)]
    assert [(table.steps, table.rows) for table in told.tables()] == [(2, 11), (0, 1)]
    told.batch_rows = 3
    with rowmill.open(store, memory="16MiB", read_only=True) as opened:
        for _ in range(2):  # A second iteration starts from the beginning.
            written: dict[str, list[int]] = {"a": [], "b": []}
            deleted: list[int] = []
            for batch in told:
                assert len(batch.ids) <= 3
                table = opened.open_table(batch.table)
                assert (batch.weights == table.get(batch.ids)).all()
                assert (batch.state == table.get_state(batch.ids)).all()
                written[batch.table] += batch.ids.tolist()
                deleted += batch.deleted.tolist()
            assert sorted(written["a"]) == [8, 9, 10, 11]
            assert (written["b"], deleted) == ([3], [0])


def test_the_command_counts_and_exports(store: Path, tmp_path: Path) -> None:
    counts = "table a: 4 rows written, 1 deleted\ntable b: 1 rows written, 0 deleted\n"
    assert changes(store, "--since", 1) == (0, f"{counts}changes from checkpoint 1 to 2\n", "")
    out = tmp_path / "changed.parquet"
    code, text, _ = changes(store, "--since", 1, "--out", out, python=sys.executable)
    assert (code, text) == (0, f"{counts}changes from checkpoint 1 to 2; wrote the rows to {out}\n")

    file = pq.read_table(out)
    about = json.loads(file.schema.metadata[b"rowmill"])
    assert (about["since"], about["until"]) == (1, 2)
    assert [table["name"] for table in about["tables"]] == ["a", "b"]
    with rowmill.open(store, memory="16MiB", read_only=True) as opened:
        rows = {(row["table"], row["id"]): row for row in file.to_pylist()}
        assert set(rows) == {("a", id_) for id_ in (0, 8, 9, 10, 11)} | {("b", 3)}
        for (name, id_), row in rows.items():
            assert row["deleted"] == ((name, id_) == ("a", 0))
            table = opened.open_table(name)
            weights, state = table.get([id_])[0].tolist(), table.get_state([id_])[0].tolist()
            expected = (None, None) if row["deleted"] else (weights, state)
            assert (row["weights"], row["state"]) == expected


def test_errors_of_the_command_are_one_line(store: Path, tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidInput, match="since must be at most 2"):
        rowmill.Changes(store, since=3)
    assert changes(store, "--since", 3) == (
        2,
        "",
        "rowmill: since must be at most 2, the number of the last checkpoint, got 3\n",
    )
    code, _, error = changes(tmp_path / "none", "--since", 0)
    assert (code, error.count("\n")) == (2, 1)
    assert not (tmp_path / "none").exists()
    code, _, error = changes(store, "--since", "-1")
    assert code == 2
    assert "must be the number of a checkpoint, got '-1'" in error


def test_the_error_for_removed_changes_names_the_first_kept_checkpoint(tmp_path: Path) -> None:
    with rowmill.open(tmp_path / "s", memory="16MiB", history=0) as opened:
        table = opened.table("t", dim=4, optimizer=Adagrad(lr=0.5))
        for _ in range(20):
            table.rmw(range(2000), ones(2000, 4))
            opened.checkpoint()
        with pytest.raises(errors.ChangesGone, match="since checkpoint 1 are not kept any more"):
            opened.changes(1)
        assert sum(len(batch.ids) for batch in opened.changes(19)) == 2000
    code, _, error = changes(tmp_path / "s", "--since", 1)
    assert code == 1
    assert "larger history" in error
