"""A run of many ranks begins with rows of files: each rank writes those that it keeps, with any placement, and once.

What could break: a row missing, on two ranks or on the wrong one; ranks that disagree about a damaged file; files read again
by a run that resumes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import rowmill
from python.tests.train.ranked import printed, run_ranks, start
from python.tests.train.runs import ended
from python.tests.train.test_warm_start import schema_of
from rowmill.ctr.settings import GenerateConfig

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext
    from pathlib import Path

LOG = GenerateConfig(rows=600, seed=1, tables=3, rows_per_table=100)
BUCKETS = 200
PLACEMENTS = {
    "rows": "rows",
    "pooled": "pooled",
    "mixed": "rows,C1=whole:1,C2=replicated",
}


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    """Vectors of the buckets of C1, and of every third one of C2 beside their ids."""
    ids = np.arange(0, BUCKETS, 3)
    np.save(tmp_path / "c1.npy", np.arange(BUCKETS * 4, dtype=np.float32).reshape(-1, 4))
    np.save(tmp_path / "c2.npy", np.repeat(ids[:, None].astype(np.float32), 4, axis=1) / 8)
    np.save(tmp_path / "c2.ids.npy", ids)
    return tmp_path


def arguments(log: Path, vectors: Path, out: Path, *more: str) -> list[str]:
    flags = ["--model", "ffnn", "--dim", "4", "--ids", "hash", "--buckets", str(BUCKETS)]
    flags += ["--memory", "32MiB", "--threads", "1", "--batch", "50", "--out", str(out), *more]
    tables = [f"--warm-start=C{n}={vectors / f'c{n}.npy'}" for n in (1, 2)]
    return ["train", "--data", str(log), "--schema", str(schema_of(vectors)), *flags, *tables]


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
def test_each_rank_has_the_rows_that_it_keeps(
    log: Path, vectors: Path, tmp_path: Path, server: ForkServerContext, placement: str
) -> None:
    out = tmp_path / "run"
    command = arguments(log, vectors, out, "--placement", placement, "--epochs", "0")
    said = run_ranks(server, 2, command, tmp_path / "first")
    assert f"Warm start: {BUCKETS} rows of table C1 from {vectors / 'c1.npy'}" in said[0]
    assert "Warm start" not in said[1]
    first, second = np.load(vectors / "c1.npy"), np.load(vectors / "c2.npy")
    ids = np.load(vectors / "c2.ids.npy")
    with rowmill.load(out) as loaded:
        tables = loaded.tables
        assert {name: len(table) for name, table in tables.items()} == {
            "C1": BUCKETS,
            "C2": len(ids),
            "C3": 0,
        }
        np.testing.assert_array_equal(tables["C1"].get(np.arange(BUCKETS)), first)
        np.testing.assert_array_equal(tables["C2"].get(ids), second)
    for file in vectors.glob("*.npy"):
        file.unlink()
    (said, _) = run_ranks(server, 2, [*command, "--resume"], tmp_path / "second")
    assert "Warm start" not in said


def test_all_ranks_name_a_file_that_does_not_fit(
    log: Path, vectors: Path, tmp_path: Path, server: ForkServerContext
) -> None:
    bad = np.load(vectors / "c2.npy")
    bad[7, 2] = np.nan
    np.save(vectors / "c2.npy", bad)
    command = arguments(log, vectors, tmp_path / "run", "--placement", "rows,C2=whole:0")
    ranks = start(server, 2, [command, command], tmp_path / "said")
    assert [ended(rank) for rank in ranks] == [2, 2]
    assert "c2.npy, row 7: weight 2 is nan as float32" in printed(tmp_path / "said", 2)[0]
