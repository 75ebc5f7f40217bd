"""`rowmill alter` of a run of many ranks: the new run has a part for each rank, with the rows of this rank.

What could break: a replicated table whose copies differ, a part that does not belong to the checkpoint, random streams or step
counts that are lost. Altering a run back and forth shows all of this: the result trains on to the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import rowmill
from python.tests.small_disk import small_disk
from python.tests.train.kept import check_whole, contents
from python.tests.train.parts import left
from python.tests.train.ranked import run_ranks
from python.tests.train.test_exactly_once import differences
from rowmill.cli import main
from rowmill.ctr.settings import GenerateConfig
from rowmill.distributed import Manifest, take_lock

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext
    from pathlib import Path

pytestmark = pytest.mark.slow

LOG = GenerateConfig(rows=1_000, seed=3, tables=4, rows_per_table=200)
SETTINGS = """
[model]
dim = 8
bottom = [16]
top = [16]

[rows]
optimizer = "adam"
lr = 0.001
initial_width = 1e-9

[store]
memory = "64MiB"

[train]
threads = 1
batch = 100
dense_decay_from = 1
placement = "rows,C3=replicated,C4=replicated"
"""


@pytest.fixture(scope="module")
def given(log: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The arguments of the run, but for its folder."""
    config = tmp_path_factory.mktemp("config") / "config.toml"
    config.write_text(SETTINGS)
    schema = config.with_name("schema.toml")
    dense = [f"I{n}" for n in range(1, 14)]
    schema.write_text(f'label = "label"\ndense = {dense}\nids = ["C1", "C2", "C3", "C4"]\n')
    return ["train", "--config", str(config), "--data", str(log), "--schema", str(schema)]


@pytest.fixture(scope="module")
def run(
    given: list[str], server: ForkServerContext, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run of two ranks."""
    out = tmp_path_factory.mktemp("ranks") / "run"
    run_ranks(server, 2, [*given, "--out", str(out)], out)
    return out


def test_a_run_goes_on_as_if_it_had_not_been_altered(
    given: list[str], run: Path, log: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    new, back = tmp_path / "new", tmp_path / "back"
    untouched = contents(run)
    assert main(["alter", str(run), "--out", str(new), "--dim", "12"]) == 0
    assert main(["alter", str(new), "--out", str(back), "--dim", "8"]) == 0
    assert contents(run) == untouched
    for altered in (new, back):
        check_whole(altered / "store")
    manifest, of_new = Manifest.load(run / "store"), Manifest.load(new / "store")
    assert manifest is not None
    assert of_new is not None
    assert of_new.placements == manifest.placements == {"C3": "replicated", "C4": "replicated"}
    assert differences(_parts(run), _parts(back)) == []
    with rowmill.load(run) as old, rowmill.load(new) as loaded:
        torch.testing.assert_close(loaded.predict(log), old.predict(log), rtol=0, atol=2e-6)

    # The next steps of Adam depend on the count of steps, and dropout on the random streams.
    for out in (run, back):
        run_ranks(server, 2, [*given, "--out", str(out), "--resume", "--epochs", "2"], out)
    assert differences(_parts(run), _parts(back)) == []
    # Another number of ranks.
    longer = [*given, "--out", str(new), "--resume", "--epochs", "2", "--dim", "12"]
    assert "Resuming at step 8" in run_ranks(server, 3, longer, new)[0]


def _parts(out: Path) -> dict[str, Any]:
    """What is left of a run, but counts of accesses, which begin anew."""
    found = left(out)
    for name, tables in found.items():
        if name.startswith("tables"):
            for table, (counted, rows) in tables.items():
                tables[table] = ({"steps": counted["steps"], "rows": counted["rows"]}, rows)
    return found


def test_the_optimizer_of_a_table_is_altered(run: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    assert main(["alter", str(run), "--out", str(new), "--table", "C1:optimizer=sgd"]) == 0
    for rank in (0, 1):
        with rowmill.open(new / "store" / "parts-1" / str(rank), read_only=True) as store:
            assert store.open_table("C1").optimizer == rowmill.optim.SGD(lr=0.001)
            assert store.open_table("C2").optimizer == rowmill.optim.Adam(lr=0.001)


def test_an_optimizer_of_all_ranks_is_altered(run: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    assert main(["alter", str(run), "--out", str(new), "--row-optimizer", "adagrad"]) == 0
    rows: list[dict[str, int]] = []
    for rank in (0, 1):
        with rowmill.open(new / "store" / "parts-1" / str(rank), read_only=True) as store:
            rows.append({name: len(store.open_table(name)) for name in store.table_names()})
            table = store.open_table("C3")
            assert table.optimizer == rowmill.optim.Adagrad(lr=0.001)
            ids = np.concatenate([ids for ids, _ in table.scan()])
            assert not table.get_state(ids).any()
    assert rows[0]["C3"] == rows[1]["C3"] > 0
    assert rows[0]["C1"] > 0


def test_what_cannot_be_altered_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new"
    command = ["alter", str(run), "--out", str(new)]
    lock = take_lock(run / "store")
    assert main([*command, "--dim", "4"]) == 1
    assert "is open for writing in another process: stop the run" in capsys.readouterr().err
    lock.release()
    assert not new.exists()
    with small_disk("tmpfs", tmp_path, 4) as disk:
        assert main(["alter", str(run), "--out", str(disk / "new"), "--dim", "4096"]) == 1
        assert f"no space left for {disk / 'new'} on the disk of {disk}" in capsys.readouterr().err
        assert not list(disk.iterdir())
    check_whole(run / "store")
