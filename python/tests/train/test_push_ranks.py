"""Checkpoints of many ranks are pushed to an object store during training, and restored.

What could break: parts of different checkpoints are at the URL under one number; a part that a visible checkpoint needs is
removed; a failed push of one rank ends or hangs the others. The object store is a folder here.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

import pytest

from python.tests.train.ranked import kill_second, printed, run_ranks, start
from python.tests.train.runs import ended
from python.tests.train.test_feed_ranks import LAST, PLACED, Rows, arguments, saved
from rowmill.cli import main
from rowmill.ctr.settings import GenerateConfig
from rowmill.distributed import checkpoints_of_ranks, restore_ranks
from rowmill.errors import CheckpointMissing, InvalidInput, StoreCorrupt

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

pytestmark = pytest.mark.slow

LOG = GenerateConfig(rows=2_500, seed=3, tables=4, rows_per_table=300)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "place").as_uri()


def told(log: Path, out: Path, url: str, *more: str) -> list[str]:
    return arguments(log, out, "--placement", PLACED, "--push", url, *more)


def place(url: str) -> Path:
    return Path(urlparse(url).path)


def numbers(url: str) -> list[int]:
    return [checkpoint["epoch"] for checkpoint in checkpoints_of_ranks(url)]


def restored(url: str, folder: Path, number: int | None = None) -> Rows:
    """The rows of a checkpoint at a URL."""
    restore_ranks(url, folder / "store", checkpoint=number)
    return saved(folder)


def test_a_restored_run_goes_on_with_the_same_bits(
    log: Path,
    server: ForkServerContext,
    tmp_path: Path,
    url: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, other = tmp_path / "run", tmp_path / "other"
    kill_second(server, told(log, out, url), out)
    if not numbers(url):
        # The run was killed before its first push was complete.
        assert main(["push", str(out / "store"), url]) == 0
    # As if the machines of the run were lost.
    assert main(["restore", url, str(other / "store")]) == 0
    for run in (out, other):
        run_ranks(server, 2, arguments(log, run, "--placement", PLACED, "--resume"), run)
    assert saved(other) == saved(out)


def test_only_so_many_checkpoints_stay(
    log: Path,
    server: ForkServerContext,
    tmp_path: Path,
    url: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "run"
    kill_second(server, told(log, out, url, "--keep", "2"), out)
    assert len(numbers(url)) <= 2
    # On three ranks all parts are new, and the old ones leave with their last checkpoint.
    run_ranks(server, 3, told(log, out, url, "--resume", "--keep", "1"), out)
    assert numbers(url) == [LAST]
    # A local folder keeps the empty folders of removed objects.
    folder = place(url) / "ranks"
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    assert {path.parts[0] for path in files} - {"checkpoints", "files"} == {"parts-2"}
    assert restored(url, tmp_path / "last", LAST) == saved(out)
    assert main(["checkpoints", url]) == 0
    # Each of the three ranks has the rows of C1.
    rows = saved(out)
    stored = len(rows) + 2 * sum(name == "C1" for name, _ in rows)
    assert f"{stored:,} rows" in capsys.readouterr().out.splitlines()[-1]


def test_a_failed_push_of_one_rank_is_a_message(
    log: Path, server: ForkServerContext, tmp_path: Path, url: str
) -> None:
    # The URL of rank 1 cannot be written to.
    blocked = place(url) / "ranks/parts-1/1"
    blocked.parent.mkdir(parents=True)
    blocked.write_text("no folder")
    out = tmp_path / "run"
    ranks = start(server, 2, [told(log, out, url)] * 2, out)
    assert [ended(rank) for rank in ranks] == [1, 1]
    said = printed(out, 2)
    assert "Warning: the checkpoint was not pushed; training continues: rank 1: " in said[0]
    assert all("rank 1: " in of_rank for of_rank in said)
    assert numbers(url) == []
    assert (out / "report.json").exists()
    blocked.unlink()
    run_ranks(server, 2, told(log, out, url, "--resume"), out)
    assert restored(url, tmp_path / "copy") == saved(out)


def test_a_folder_of_ranks_is_pushed_and_errors_name_the_url(
    log: Path,
    server: ForkServerContext,
    tmp_path: Path,
    url: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "run"
    run_ranks(server, 2, arguments(log, out), out)
    assert main(["push", str(out / "store"), url]) == 0
    assert f"checkpoint {LAST} is at {url}" in capsys.readouterr().out
    assert restored(url, tmp_path / "copy") == saved(out)
    # Nothing is left to do.
    assert main(["push", str(out / "store"), url]) == 0
    assert main(["push", str(out / "store"), url, "--version", "step-5"]) == 2
    with pytest.raises(CheckpointMissing, match=f"has no checkpoint 9: it has {LAST}"):
        restore_ranks(url, tmp_path / "none", checkpoint=9)
    with pytest.raises(InvalidInput, match="has a checkpoint already"):
        restore_ranks(url, tmp_path / "copy/store")
    # Another run must not write there.
    shutil.rmtree(out)
    run_ranks(server, 2, arguments(log, out, "--train-rows", "700"), out)
    capsys.readouterr()
    assert main(["push", str(out / "store"), url]) == 1
    assert "of another run" in capsys.readouterr().err
    (state,) = (place(url) / "ranks/checkpoints").glob("*/state")
    state.write_bytes(b"damaged")
    with pytest.raises(StoreCorrupt, match="state is damaged"):
        restore_ranks(url, tmp_path / "damaged")
    assert not (tmp_path / "damaged/CHECKPOINT").exists()
