"""The command `rowmill fsck`: exit codes, output, and the store after a repair."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rowmill
from python.tests.warm import warm_python

_ROWS = 3000


def fsck(*arguments: str | Path, python: str = "") -> tuple[int, str, str]:
    done = subprocess.run(
        [python or warm_python(), "-m", "rowmill", "fsck", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def values(ids: np.ndarray) -> np.ndarray:
    return np.repeat(ids[:, None], 16, axis=1).astype(np.float32)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    with rowmill.open(folder, memory="16MiB") as opened:
        table = opened.table("t", dim=16, optimizer=rowmill.optim.SGD(lr=0.5))
        ids = np.arange(_ROWS)
        table.put(ids, values(ids))
        opened.checkpoint()
    return folder


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_clean_store_is_clean_and_a_repair_changes_nothing(store: Path) -> None:
    before = {path.name: path.read_bytes() for path in store.iterdir() if path.name != "LOCK"}
    for flags in ([], ["--repair"]):
        code, out, error = fsck(store, *flags, python="" if flags else sys.executable)
        assert (code, error) == (0, "")
        assert out.startswith("clean: checkpoint 1: ")
        assert f"{_ROWS:,} rows are intact" in out
    after = {path.name: path.read_bytes() for path in store.iterdir() if path.name != "LOCK"}
    assert after == before


def test_a_damaged_block_is_repaired_around_and_its_rows_are_listed(
    store: Path, tmp_path: Path
) -> None:
    flip(store / "group-0.log", 5000)
    code, out, _ = fsck(store)
    assert code == 1
    assert "DAMAGED: checkpoint 1" in out
    assert "damaged: table t id " in out
    code, _, error = fsck(store, "--repair", "--dropped", tmp_path / "absent" / "dropped")
    assert (code, fsck(store)[0]) == (1, 1), "the list cannot be written, so nothing is repaired"
    assert "absent/dropped" in error
    listed = tmp_path / "dropped"
    code, out, _ = fsck(store, "--repair", "--dropped", listed)
    assert code == 1
    assert "repaired: " in out
    lost: set[int] = set()
    for line in listed.read_text().splitlines():
        first, _, last = line.removeprefix("table t id ").partition("..")
        lost |= set(range(int(first), int(last or first) + 1))
    assert 0 < len(lost) <= 64, "one block of 64 rows is damaged"
    assert fsck(store)[0] == 0
    assert (store / "MANIFEST-1.damaged").exists()
    with rowmill.open(store, memory="16MiB", read_only=True) as opened:
        table = opened.open_table("t")
        kept = np.array(sorted(set(range(_ROWS)) - lost))
        assert len(table) == len(kept)
        assert (table.get(kept) == values(kept)).all()
        assert not table.contains(np.array(sorted(lost))).any()


def test_missing_and_unreadable_stores_give_exit_code_2(store: Path, tmp_path: Path) -> None:
    assert fsck(tmp_path / "nowhere")[0] == 2
    assert fsck(tmp_path)[0] == 2
    with rowmill.open(store, memory="16MiB"):
        code, _, error = fsck(store, "--repair")
        assert code == 2
        assert "in use by another process" in error
        assert fsck(store)[0] == 0
    flip(store / "MANIFEST", 200)
    code, _, error = fsck(store, "--repair")
    assert code == 2
    assert "MANIFEST" in error
