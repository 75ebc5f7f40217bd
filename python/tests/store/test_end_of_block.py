"""The end of a `with` block of a store: it saves changed rows, or warns with their number, and never saves part of a run.

The rows of a run must not run ahead of its dense half, which is attached to its checkpoints, nor of the manifest of all
ranks. A block that ends with an exception may leave rows half changed. In these cases the store warns.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import rowmill
from rowmill import errors
from rowmill.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def words(store: rowmill.Store) -> rowmill.Table:
    return store.table("words", dim=2, optimizer=rowmill.optim.SGD(lr=1.0))


def opened(folder: Path, **options: Any) -> rowmill.Store:
    return rowmill.open(folder, memory="16MiB", **options)


def weights(count: int, value: float) -> NDArray[np.float32]:
    return np.full((count, 2), value, np.float32)


def block(
    folder: Path, ids: list[int], value: float, error: BaseException | None = None, **options: Any
) -> None:
    """A block that puts weights into rows, and then raises an error, if one is given."""
    with opened(folder, **options) as store:
        words(store).put(ids, weights(len(ids), value))
        if error is not None:
            raise error


def saved(folder: Path) -> tuple[int, list[float]]:
    """The number of the last checkpoint, and the first weights of rows 1 to 3 in it."""
    assert main(["fsck", str(folder)]) == 0
    with opened(folder, read_only=True) as store:
        changes = store.changes(0)
        if store.table_names() == []:
            return changes.until, []
        return changes.until, store.open_table("words").get([1, 2, 3])[:, 0].tolist()


def test_a_block_that_changed_rows_saves_them(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        words(store).put([1, 2, 3], weights(3, 1))
    assert saved(tmp_path / "s") == (1, [1, 1, 1])
    with opened(tmp_path / "s") as store:
        words(store).rmw([1, 2], weights(2, 1))
        words(store).delete([3])
        store.checkpoint()
    assert saved(tmp_path / "s")[0] == 2, "nothing changed after the call of checkpoint"
    with opened(tmp_path / "s") as store:
        assert store.stats()["rows_unsaved"] == 0
        words(store).get([1, 2, 9])
    assert saved(tmp_path / "s")[0] == 2, "reading changes nothing"
    with opened(tmp_path / "s") as store:
        words(store).delete([1])
    assert saved(tmp_path / "s")[0] == 3, "a deleted row is a change"


def test_rows_that_left_memory_are_counted_and_saved(tmp_path: Path) -> None:
    with opened(tmp_path / "s", row_memory="256KiB") as store:
        table = store.table("wide", dim=64, optimizer=rowmill.optim.SGD(lr=1.0))
        for first in range(0, 20_000, 1000):
            table.put(np.arange(first, first + 1000), np.ones((1000, 64), np.float32))
        stats = store.stats()
        assert stats["evictions"] > 10_000
        assert stats["rows_unsaved"] == 20_000
    with opened(tmp_path / "s", read_only=True) as store:
        assert store.open_table("wide").get([0, 19_999])[:, 0].tolist() == [1, 1]


def test_gradients_of_a_last_backward_are_saved(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        bags = rowmill.nn.EmbeddingBag(None, 2, table=words(store))
        words(store).put([1, 2, 3], weights(3, 0))
        bags(torch.tensor([[1, 2]])).sum().backward()
    assert saved(tmp_path / "s") == (1, [-0.5, -0.5, 0])


def test_close_saves_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    words(store).put([1], [[1.0, 1.0]])
    store.close()
    with opened(tmp_path / "s") as store:
        assert store.table_names() == []
        words(store).put([1], [[1.0, 1.0]])
        store.close()
    assert not (tmp_path / "s" / "MANIFEST").exists()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_leaves_the_last_checkpoint_and_the_warning_counts_rows(
    tmp_path: Path, error: type[BaseException]
) -> None:
    block(tmp_path / "s", [1, 2, 3], 1.0)
    says = f"2 changed rows of store .* not saved: the block ended with {error.__name__}"
    with pytest.warns(errors.UnsavedRows, match=says) as said, pytest.raises(error):
        block(tmp_path / "s", [1, 2], 0.0, error())
    assert said[0].filename == __file__, "the warning names the line of the block"
    assert saved(tmp_path / "s") == (1, [1, 1, 1])


def test_a_filter_that_makes_warnings_errors_does_not_hide_the_error_of_the_block(
    tmp_path: Path,
) -> None:
    with pytest.raises(ValueError, match="mine") as raised:
        block(tmp_path / "s", [1], 1.0, ValueError("mine"))
    assert raised.value.__notes__ == [
        f"1 changed row of store {tmp_path / 's'} not saved: the block ended with ValueError"
    ]


def test_rows_do_not_run_ahead_of_an_attachment(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        words(store).put([1, 2, 3], weights(3, 1))
        store.checkpoint(attachments={"model": b"weights"})
    with pytest.warns(errors.UnsavedRows, match=r"3 changed rows .* has attachments \(model\)"):
        block(tmp_path / "s", [1, 2, 3], 0.0)
    assert saved(tmp_path / "s") == (1, [1, 1, 1])
    with opened(tmp_path / "s", read_only=True) as store:
        assert store.attachment("model") == b"weights"


def test_rows_do_not_run_ahead_of_a_checkpoint_in_two_phases(tmp_path: Path) -> None:
    with opened(tmp_path / "s", at=0) as store:
        words(store).put([1, 2, 3], weights(3, 1))
        store.prepare()
        store.commit()
    with pytest.warns(errors.UnsavedRows, match=r"1 changed row .* opened with `at`"):
        block(tmp_path / "s", [1], 0.0, at=1)

    def in_doubt() -> None:
        with opened(tmp_path / "s") as store:
            store.prepare()
            words(store).put([2], weights(1, 0))

    with pytest.warns(errors.UnsavedRows, match="prepared and not committed"):
        in_doubt()
    with opened(tmp_path / "s", at=1) as store:
        assert words(store).get([1, 2, 3])[:, 0].tolist() == [1, 1, 1]


def test_a_reader_and_a_forked_child_leave_in_silence(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        words(store).put([1, 2, 3], weights(3, 1))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    store.__exit__(None, None, None)
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert not (tmp_path / "s" / "MANIFEST").exists()
    with opened(tmp_path / "s", read_only=True) as store:
        store.open_table("words").get([1])
    assert saved(tmp_path / "s") == (1, [1, 1, 1])


def test_a_checkpoint_that_fails_is_an_error_of_the_block(tmp_path: Path) -> None:
    def failing() -> None:
        with opened(tmp_path / "s") as store:
            words(store).put([1, 2, 3], weights(3, 1))
            store.checkpoint()
            words(store).put([1, 2, 3], weights(3, 0))
            # The manifest is written beside the old one, where a folder is now.
            (tmp_path / "s/MANIFEST.new").mkdir()

    with pytest.raises(errors.StoreIoError, match=r"MANIFEST\.new"):
        failing()
    (tmp_path / "s/MANIFEST.new").rmdir()
    assert saved(tmp_path / "s") == (1, [1, 1, 1])


PROGRAM = """
import os, signal, sys
import rowmill

with rowmill.open(sys.argv[1], memory="16MiB") as store:
    words = store.table("words", dim=2, optimizer=rowmill.optim.SGD(lr=1.0))
    words.put([1, 2, 3], [[2.0, 2.0]] * 3)
    print("changed", flush=True)
print("saved", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("after", ["changed", "saved"])
def test_a_program_killed_at_the_end_of_its_block_has_the_old_rows_or_the_new(
    tmp_path: Path, after: str
) -> None:
    block(tmp_path / "s", [1, 2, 3], 1.0)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "s")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == after:
            process.send_signal(signal.SIGKILL)
            break
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    found = saved(tmp_path / "s")
    assert found == (2, [2, 2, 2]) or (after == "changed" and found == (1, [1, 1, 1]))
