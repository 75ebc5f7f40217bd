"""Models that need all rows of a batch give the steps of one process on any number of ranks.

DIN and DIEN normalise over the batch (Dice), and DIEN takes the negative of a place from the previous row of the batch. If
each rank did so over its own rows, losses would depend on the number of ranks. The last batch has one row: it has no variance,
it is its own previous row, and all ranks but one have no rows.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from python.tests.ctr.test_ranked import alike, measured
from python.tests.train.ranked import run_ranks
from python.tests.train.runs import ended, fork
from rowmill.ctr.data.sequences import make_sequences
from rowmill.ctr.settings import SequencesConfig

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext
    from pathlib import Path

pytestmark = pytest.mark.slow

LOG = SequencesConfig(users=20, items=60, events=10, places=5, candidates=5, seed=7)
BATCH = 66
"""Of 925 rows: 14 batches and one row."""


def arguments(kind: str, log: Path, out: Path) -> list[str]:
    settings = {
        "--data": log,
        "--out": out,
        "--model": kind,
        "--dim": 4,
        "--memory": "64MiB",
        "--batch": BATCH,
        "--log-every": 5,
        "--epochs": 2,
        "--threads": 1,
    }
    return ["train", *(str(part) for setting in settings.items() for part in setting)]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sequences") / "log"
    make_sequences(folder, LOG)
    return folder


@pytest.mark.parametrize("kind", ["din", "dien"])
def test_ranks_give_the_steps_of_one_process(
    kind: str, log: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    command = partial(arguments, kind, log)
    assert ended(fork(server, command(tmp_path / "alone"), tmp_path / "printed")) == 0
    alone = measured(tmp_path / "alone")
    assert (alone["run"]["train_rows"] - 1) % BATCH == 0
    for count in (2, 3, 4):
        out = tmp_path / str(count)
        run_ranks(server, count, command(out), out)
        alike(measured(out), alone)
