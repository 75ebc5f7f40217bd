"""Opening and closing stores, creating tables, and the errors of these calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import rowmill
from rowmill import errors
from rowmill.optim import FTRL, SGD, Adagrad, MomentumSGD, RowwiseAdam

if TYPE_CHECKING:
    from pathlib import Path


def test_rows_and_attachments_survive_close_and_open(tmp_path: Path) -> None:
    with rowmill.open(tmp_path / "s", memory="16MiB") as store:
        table = store.table("words", dim=3, optimizer=Adagrad(lr=0.5), staleness_bound=4)
        table.put([-1, 2**62], rows := table.get([5, 6]))
        store.checkpoint(attachments={"position": b"\0\1"})
    with rowmill.open(str(tmp_path / "s"), memory="16MiB") as store:
        assert store.table_names() == ["words"]
        table = store.open_table("words")
        assert (table.dim, table.optimizer, table.staleness_bound) == (3, Adagrad(lr=0.5), 4)
        assert (table.get([-1, 2**62]) == rows).all()
        assert store.attachment("position") == b"\0\1"
        assert store.attachment("other") is None


def test_a_file_uri_names_the_same_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    with rowmill.open(folder, memory="16MiB") as store:
        store.table("t", dim=1, optimizer=SGD(lr=1.0)).put([1], [[2.0]])
        store.checkpoint()
    uri = folder.as_uri()
    assert "%20" in uri
    with rowmill.open(uri, memory="16MiB") as store:
        assert store.open_table("t").get([1]).tolist() == [[2.0]]


@pytest.mark.parametrize("uri", ["s3://bucket/store", "file://elsewhere/store"])
def test_other_uri_schemes_are_refused(uri: str) -> None:
    with pytest.raises(errors.InvalidInput, match=uri):
        rowmill.open(uri)


def test_a_missing_store_is_not_created_implicitly(tmp_path: Path) -> None:
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(errors.StoreMissing, match="none"):
            rowmill.open(tmp_path / "none", memory="16MiB", **options)
    assert not (tmp_path / "none").exists()


def test_a_store_has_one_writer(tmp_path: Path) -> None:
    with (
        rowmill.open(tmp_path / "s", memory="16MiB"),
        pytest.raises(errors.StoreLocked, match="in use by another process"),
    ):
        rowmill.open(tmp_path / "s", memory="16MiB")


def test_readers_see_the_last_checkpoint_while_a_writer_works(tmp_path: Path) -> None:
    with rowmill.open(tmp_path / "s", memory="16MiB") as writer:
        table = writer.table("t", dim=1, optimizer=SGD(lr=1.0))
        table.put([1], [[2.0]])
        writer.checkpoint()
        table.put([1], [[3.0]])
        with rowmill.open(tmp_path / "s", memory="16MiB", read_only=True) as reader:
            seen = reader.open_table("t")
            assert seen.get([1]).tolist() == [[2.0]]
            with pytest.raises(errors.StoreReadOnly):
                seen.put([1], [[4.0]])


def test_the_error_for_too_little_memory_says_how_much_is_needed(tmp_path: Path) -> None:
    with (
        rowmill.open(tmp_path / "s", memory="16MiB", row_memory="4KiB") as store,
        pytest.raises(errors.MemoryTooSmall, match=r"needs at least \d+ bytes"),
    ):
        store.table("wide", dim=16, optimizer=SGD(lr=1.0))


def test_a_table_is_opened_with_its_stored_spec(store: rowmill.Store) -> None:
    store.table("t", dim=4, optimizer=SGD(lr=1.0))
    assert store.table("t", dim=4, optimizer=SGD(lr=1.0)) is store.open_table("t")
    with pytest.raises(errors.SpecMismatch, match=r"\"t\" has dim 4, not 8"):
        store.table("t", dim=8, optimizer=SGD(lr=1.0))
    with pytest.raises(errors.SpecMismatch, match="optimizer"):
        store.table("t", dim=4, optimizer=Adagrad(lr=1.0))
    with pytest.raises(errors.TableMissing, match=r"no table .*u.*\bt\b"):
        store.open_table("u")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dim": 0}, "dim must be between"),
        ({"optimizer": SGD(lr=-1.0)}, "optimizer lr must be a finite number >= 0"),
        ({"optimizer": SGD(lr="a")}, "optimizer lr must be a number, got 'a'"),
        (
            {"optimizer": MomentumSGD(lr=0.1, momentum=0.0)},
            r"optimizer momentum must be above 0 and below 1 \(use SGD for 0\), got 0",
        ),
        ({"optimizer": MomentumSGD(lr=0.1, momentum=1.0)}, "momentum must be .* below 1 .* got 1"),
        (
            {"optimizer": MomentumSGD(lr=0.1, nesterov=1)},
            "optimizer nesterov must be True or False, got 1",
        ),
        ({"optimizer": RowwiseAdam(lr=0.1, beta2=1.5)}, r"beta2 must be in \[0, 1\), got 1.5"),
        ({"optimizer": FTRL(lr=0.1, l1=-1)}, "optimizer l1 must be a finite number >= 0, got -1"),
        (
            {"optimizer": FTRL(lr=0.1, beta=0)},
            "optimizer beta must be > 0 when initial_accumulator is 0, got 0",
        ),
        ({"optimizer": "adam"}, "optimizer must be one of rowmill.optim's SGD"),
        (
            {"initializer": rowmill.init.Uniform(1.0, 0.0)},
            "initializer high must be greater than low",
        ),
        ({"initializer": 0.0}, "initializer must be one of rowmill.init's Zeros"),
        ({"num_rows": 0}, r"between 1 and 2\^31, got 0"),
        ({"staleness_bound": 256}, "staleness_bound"),
    ],
)
def test_invalid_specs_are_named(
    store: rowmill.Store, change: dict[str, object], says: str
) -> None:
    spec = {"dim": 4, "optimizer": SGD(lr=0.1), **change}
    with pytest.raises(errors.InvalidInput, match=says):
        store.table("t", **spec)  # pyright: ignore[reportArgumentType]
    assert store.table_names() == []


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda path: rowmill.open(path / "s", seed=-1), "seed must be a whole number from 0"),
        (lambda path: rowmill.open(path / "s", threads=0), "threads must be .* got 0"),
        (lambda path: rowmill.open(""), "path_or_uri must name a folder"),
        (lambda path: rowmill.open(path / "file"), "path must be a folder .* which is a file"),
        (
            lambda path: rowmill.open(path / "s").table("", dim=1, optimizer=SGD(lr=1)),
            "name must be",
        ),
        (
            lambda path: rowmill.open(path / "s").table("t", dim=2**70, optimizer=SGD(lr=1)),
            "dim must be a whole number",
        ),
        (
            lambda path: rowmill.open(path / "s", row_memory=1024).table(
                "t", dim=8, optimizer=SGD(lr=1)
            ),
            "row_memory=1024 bytes is too small",
        ),
    ],
)
def test_invalid_options_are_named(tmp_path: Path, call: Any, says: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((errors.InvalidInput, errors.MemoryTooSmall), match=says):
        call(tmp_path)


def test_calls_on_a_closed_store_are_errors(tmp_path: Path) -> None:
    store = rowmill.open(tmp_path / "s", memory="16MiB")
    table = store.table("t", dim=1, optimizer=SGD(lr=1.0))
    store.close()
    store.close()
    with pytest.raises(errors.StoreClosed):
        table.get([1])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Make a store at its first checkpoint, with its rows on disk."""
    with rowmill.open(tmp_path / "saved", memory="16MiB") as store:
        table = store.table("t", dim=16, optimizer=SGD(lr=1.0))
        table.put(np.arange(5000), np.ones((5000, 16), np.float32))
        store.checkpoint()
    return tmp_path / "saved"


def test_damaged_rows_are_an_error_and_never_returned(saved: Path) -> None:
    log = saved / "group-0.log"
    content = bytearray(log.read_bytes())
    # Damage the third byte of every weight in every block, so that every row is affected.
    content[2::4096] = bytes(byte ^ 1 for byte in content[2::4096])
    log.write_bytes(content)
    with rowmill.open(saved, memory="16MiB") as store:
        table = store.open_table("t")
        with pytest.raises(errors.StoreCorrupt, match=r"group 0.*damaged"):
            table.get(np.arange(5000))
        assert table.contains([0, 4999, 5000]).tolist() == [True, True, False]


def test_a_store_of_a_newer_version_is_not_changed(saved: Path) -> None:
    manifest = saved / "MANIFEST"
    newer = b"rowmill-manifest 9 00000000 0\n"
    manifest.write_bytes(newer)
    with pytest.raises(errors.StoreNewer, match=r"format version 9.* reads up to 5"):
        rowmill.open(saved, memory="16MiB")
    assert manifest.read_bytes() == newer


def test_a_damaged_manifest_is_named(saved: Path) -> None:
    manifest = saved / "MANIFEST"
    manifest.write_bytes(manifest.read_bytes().replace(b'"seed":0', b'"seed":1'))
    with pytest.raises(errors.StoreCorrupt, match="MANIFEST"):
        rowmill.open(saved, memory="16MiB")


def test_an_unreferenced_store_is_closed(tmp_path: Path) -> None:
    store = rowmill.open(tmp_path / "s", memory="16MiB")
    table = store.table("t", dim=1, optimizer=SGD(lr=1.0))
    assert store.open_table("t") is table
    del store, table
    rowmill.open(tmp_path / "s", memory="16MiB").close()


def test_stats_and_metrics_cover_the_tables(store: rowmill.Store) -> None:
    table = store.table("clicks", dim=2, optimizer=SGD(lr=1.0))
    table.get_or_init([1, 2, 2])
    stats = store.stats()
    assert (stats["calls"], stats["lookups"], stats["rows_looked_up"]) == (1, 3, 2)
    assert stats["tables"]["clicks"]["rows"] == 2
    assert 'rowmill_table_rows{table="clicks"} 2' in store.metrics()
    assert 'rowmill_group_row_places_used{group="0"} 0' in store.metrics()
    assert "rowmill_feed_rows_total 0" in store.metrics()


def test_a_prepared_checkpoint_becomes_valid_when_it_is_chosen(tmp_path: Path) -> None:
    for chosen, weight in [(1, 1.0), (2, 2.0)]:
        folder = tmp_path / str(chosen)
        with rowmill.open(folder, memory="16MiB", at=0) as store:
            table = store.table("t", dim=2, optimizer=rowmill.optim.SGD(lr=0.5))
            table.put([7], [[1.0, 1.0]])
            assert store.prepare()["epoch"] == 1
            assert store.commit()["epoch"] == 1
            table.put([7], [[2.0, 2.0]])
            assert store.prepare(attachments={"step": b"2"})["epoch"] == 2
            with pytest.raises(rowmill.errors.CheckpointInDoubt, match=r"at=1 or at=2"):
                store.checkpoint()
        with pytest.raises(
            rowmill.errors.CheckpointInDoubt, match=r"checkpoint 2 prepared .* its last one, 1"
        ):
            rowmill.open(folder)
        with pytest.raises(
            rowmill.errors.CheckpointMissing, match=r"has checkpoint 1 \(and 2, prepared\), not 3"
        ):
            rowmill.open(folder, at=3)
        with pytest.raises(rowmill.errors.InvalidInput, match="at must be"):
            rowmill.open(folder, at=-1)
        with rowmill.open(folder, at=chosen) as store:
            assert store.open_table("t").get([7]).tolist() == [[weight, weight]]
            assert store.attachment_names() == (["step"] if chosen == 2 else [])
