"""Errors of a store that is damaged, in use or of another version, and of invalid arguments.

Each failure raises one typed exception with the file or argument, its value and the fix. No wrong row is ever returned, and
afterwards the store opens at exactly its last checkpoint. Other tests cover full disks (`test_full_disk.py`), the command line
(`test_bad_command.py`), click logs (`data/test_bad_files.py`) and kills (`train/test_killed.py`).
"""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import rowmill
from python.tests.warm import warm_python
from rowmill import errors
from rowmill.optim import SGD, Adagrad

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 4_000
IDS = np.arange(ROWS)
NOTE = b"a note" * 100


def values(of: int) -> np.ndarray[Any, Any]:
    return (IDS[:, None] * 8 + np.arange(8)).astype(np.float32) + of


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store with every kind of file: snapshot and deltas, two logs, attachments."""
    folder = tmp_path_factory.mktemp("whole") / "store"
    with rowmill.open(folder, memory="32MiB") as store:
        hashed = store.table("hashed", dim=8, optimizer=SGD(lr=1.0))
        direct = store.table("direct", dim=8, optimizer=Adagrad(lr=1.0), num_rows=ROWS)
        for version in range(14):
            for table in (hashed, direct):
                table.put(IDS, values(version))
            if version == 13:
                hashed.put(IDS, values(1))
                direct.put(IDS, values(2))
            store.checkpoint(attachments={"note": NOTE})
    kinds = ("MANIFEST", "group-0.log", "group-1.log", ".snapshot", ".delta", "-note")
    names = [entry.name for entry in folder.iterdir()]
    assert all(any(kind in name for name in names) for kind in kinds), names
    return folder


def check(folder: Path, **options: Any) -> None:
    """Read everything and compare it; raises what the store raises."""
    with rowmill.open(folder, memory="32MiB", **options) as store:
        for name, of in (("hashed", 1), ("direct", 2)):
            table = store.open_table(name)
            assert len(table) == ROWS, name
            np.testing.assert_array_equal(table.get(IDS), values(of), err_msg=name)
            assert sum(len(ids) for ids, _ in table.scan()) == ROWS
        assert store.attachment("note") == NOTE


def refusal(folder: Path, **options: Any) -> errors.RowmillError | None:
    try:
        check(folder, **options)
    except errors.RowmillError as error:
        return error
    return None


def named_in(manifest: Path) -> str:
    """Files that opening reads: all but the lists of past checkpoints, which only fsck and `changes` read."""
    contents = json.loads(manifest.read_text().split("\n", 1)[1])
    contents.pop("history", None)
    return json.dumps(contents)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_flipped_bit_in_any_file_is_an_error_naming_it_or_harmless(
    whole: Path, tmp_path: Path, read_only: bool
) -> None:
    folder = tmp_path / "store"
    shutil.copytree(whole, folder)
    manifest = named_in(folder / "MANIFEST")
    stream = np.random.default_rng(11)
    for path in sorted(folder.iterdir()):
        intact = path.read_bytes()
        is_log = path.suffix == ".log"
        seen = 0
        places = stream.integers(0, max(len(intact), 1), 60 if is_log else 25)
        for place in [0, len(intact) - 1, *places.tolist()]:
            damaged = bytearray(intact)
            damaged[place] ^= 1 << int(stream.integers(8))
            path.write_bytes(damaged)
            error = refusal(folder, read_only=read_only)
            shutil.rmtree(folder)
            shutil.copytree(whole, folder)
            if error is not None:
                seen += 1
                assert isinstance(error, errors.StoreCorrupt), (path.name, place, error)
                named = f"group {path.stem[6:]}" if is_log else path.name
                assert named in str(error), (place, str(error))
        if path.name == "LOCK" or path.name not in manifest + "MANIFEST":
            continue
        assert seen == len(places) + 2 or is_log, f"{path.name}: {seen} of {len(places) + 2}"
        # Most rows in a log were replaced by later checkpoints.
        assert seen > (5 if is_log else 20), path.name
    check(folder)


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_or_missing_file_is_an_error_naming_it(
    whole: Path, tmp_path: Path, keep: float
) -> None:
    folder = tmp_path / "store"
    shutil.copytree(whole, folder)
    manifest = named_in(folder / "MANIFEST")
    for path in sorted(folder.iterdir()):
        intact = path.read_bytes()
        for content in (intact[: int(len(intact) * keep)], None):
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content)
            error = refusal(folder)
            shutil.rmtree(folder)
            shutil.copytree(whole, folder)
            if path.name == "LOCK" or path.name not in manifest + "MANIFEST":
                assert error is None, (path.name, error)
                continue
            if error is None:
                assert path.suffix == ".log", path.name
                assert content is not None
                assert keep > 0.8, "only truncation of the unused end of a log may go unnoticed"
                continue
            if content is None and path.name == "MANIFEST":
                assert isinstance(error, errors.StoreCorrupt), error
                assert "MANIFEST is missing" in str(error)
                continue
            named = (path.name, f"group {path.stem[6:]}") if path.suffix == ".log" else (path.name,)
            assert any(name in str(error) for name in named), str(error)
    check(folder)


def test_a_damaged_block_does_not_affect_rows_of_other_blocks(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, folder := tmp_path / "store")
    log = folder / "group-0.log"
    content = bytearray(log.read_bytes())
    for place in range(0, len(content), 8 * 4096):
        content[place] ^= 1
    log.write_bytes(content)
    right = wrong = 0
    with rowmill.open(folder, memory="32MiB") as store:
        table = store.open_table("hashed")
        for id_ in IDS.tolist():
            try:
                assert table.get([id_]).tolist() == values(1)[id_ : id_ + 1].tolist()
                right += 1
            except errors.StoreCorrupt as error:
                wrong += "group 0" in str(error)
        assert store.stats()["corrupt_blocks"] > 0
    assert right + wrong == ROWS
    assert wrong > 50
    assert right > 5 * wrong


def test_a_read_error_names_file_and_offset_and_is_not_reported_as_damage(
    whole: Path, tmp_path: Path
) -> None:
    """Replace a log by a folder, so that every open and read of it fails with the system's error."""
    shutil.copytree(whole, folder := tmp_path / "store")
    (folder / "group-1.log").unlink()
    (folder / "group-1.log").mkdir()
    error = refusal(folder)
    assert isinstance(error, errors.StoreIoError), error
    assert "group-1.log" in str(error)
    assert "directory" in str(error)
    (folder / "group-1.log").rmdir()
    shutil.copy(whole / "group-1.log", folder / "group-1.log")
    check(folder)


def test_a_newer_format_is_refused_and_not_changed(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, folder := tmp_path / "store")
    manifest = folder / "MANIFEST"
    manifest.write_bytes(b"rowmill-manifest 6 00000000 0\n")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "LOCK"}
    for read_only in (True, False):
        error = refusal(folder, read_only=read_only)
        assert isinstance(error, errors.StoreNewer)
        for part in ("format version 6", "reads up to 5", "upgrade rowmill", str(folder)):
            assert part in str(error)
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "LOCK"}
    assert after == before


def test_a_second_writer_is_told_the_process_of_the_first(tmp_path: Path) -> None:
    program = (
        "import sys, rowmill\n"
        "try: rowmill.open(sys.argv[1], memory='16MiB')\n"
        "except rowmill.errors.StoreLocked as error: print(error)\n"
        "with rowmill.open(sys.argv[1], memory='16MiB', read_only=True) as store:\n"
        "    print(store.open_table('t').get([1]).tolist())\n"
    )
    with rowmill.open(tmp_path / "s", memory="16MiB") as store:
        store.table("t", dim=1, optimizer=SGD(lr=1.0)).put([1], [[2.0]])
        store.checkpoint()
        done = subprocess.run(
            [warm_python(), "-c", program, str(tmp_path / "s")],
            capture_output=True,
            text=True,
            check=True,
        )
        store.open_table("t").put([1], [[3.0]])
        store.checkpoint()
    refused, read = done.stdout.splitlines()
    assert "in use by another process (pid " in refused
    assert "close it there or open read-only" in refused
    assert read == "[[2.0]]"


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        (np.array([1.0]), "ids must be int64 or uint64, got float64"),
        (np.array([1], np.int32), "ids must be int64 or uint64, got int32"),
        (np.array([True]), "ids must be int64 or uint64, got bool"),
        (["7"], "ids must be int64 or uint64, got <U1"),
        ([None], "ids must be int64 or uint64, got object"),
        ([1 << 64], "ids must be int64 or uint64, got object"),
        ([1.5], "ids must be int64 or uint64, got float64"),
    ],
)
def test_ids_of_a_wrong_type_are_refused_by_every_call_and_insert_nothing(
    store: rowmill.Store, ids: Any, says: str
) -> None:
    table = store.table("t", dim=2, optimizer=SGD(lr=1.0))
    one = np.ones((1, 2), np.float32)
    calls = (
        lambda: table.get(ids),
        lambda: table.get_or_init(ids),
        lambda: table.contains(ids),
        lambda: table.put(ids, one),
        lambda: table.rmw(ids, one),
        lambda: table.delete(ids),
        lambda: table.lookahead(ids),
    )
    for call in calls:
        with pytest.raises(errors.InvalidInput, match=says):
            call()
    assert len(table) == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_nan_gradient_changes_neither_rows_nor_optimizer_state(
    store: rowmill.Store, bad: float
) -> None:
    table = store.table("t", dim=8, optimizer=Adagrad(lr=1.0))
    table.put(IDS, values(1))
    before, state = table.get(IDS), table.get_state(IDS)
    gradients = np.ones((ROWS, 8), np.float32)
    gradients[ROWS - 1, 7] = bad
    place = ROWS * 8 - 1
    with pytest.raises(
        errors.InvalidInput, match=rf'gradients of table "t" .* at position {place}, .*no row was'
    ):
        table.rmw(IDS, gradients)
    np.testing.assert_array_equal(table.get(IDS), before)
    np.testing.assert_array_equal(table.get_state(IDS), state)


def test_the_error_for_a_different_dim_names_both_dims(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, folder := tmp_path / "store")
    with rowmill.open(folder, memory="32MiB") as store:
        with pytest.raises(errors.SpecMismatch, match=r'"hashed" has dim 8, not 16: open it with'):
            store.table("hashed", dim=16, optimizer=SGD(lr=1.0))
        with pytest.raises(errors.SpecMismatch, match=r'"direct" has .*4000.*not .*5000'):
            store.table("direct", dim=8, optimizer=Adagrad(lr=1.0), num_rows=5000)
        with pytest.raises(errors.InvalidInput, match="dim"):
            rowmill.nn.EmbeddingBag(None, 16, table=store.open_table("hashed"))
    check(folder)
