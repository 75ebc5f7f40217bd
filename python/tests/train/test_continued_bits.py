"""`--continue`, bit by bit: a run that is continued with one part of a log after the other, and killed all the time, leaves
what one undisturbed run over all parts leaves."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from python.tests.ports import free_port
from python.tests.train.kept import check_whole
from python.tests.train.parts import left, split, train_on_all
from python.tests.train.runs import ended, fork
from python.tests.train.test_exactly_once import differences
from rowmill.ctr.settings import GenerateConfig

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext
    from multiprocessing.process import BaseProcess
    from pathlib import Path

pytestmark = pytest.mark.slow

LOG = GenerateConfig(rows=6_000, seed=3, tables=8, rows_per_table=800)
BATCH = 36
SEED = 7
SCHEMA = f"""
label = "label"
dense = {[f"I{n}" for n in range(1, 14)]}
ids = {[f"C{n}" for n in range(1, 9)]}
"""
CONFIG = """
[data]
schema = "{schema}"

[model]
dim = 8
bottom = [16]
top = [16]

[store]
memory = "64MiB"
row_memory = "{row_memory}"
lookahead = 4

[train]
threads = {threads}
batch = 36
dense_decay_from = 1
checkpoint_every = 2
log_every = 3
"""


class Ranks:
    """Starts a command as one process, or as ranks."""

    def __init__(self, server: ForkServerContext, count: int, printed: Path) -> None:
        self._server = server
        self._count = count
        self._printed = printed

    def environments(self) -> list[dict[str, str]]:
        if self._count == 1:
            return [{}]
        common = {
            "WORLD_SIZE": str(self._count),
            "LOCAL_WORLD_SIZE": str(self._count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }
        return [{"RANK": str(rank), **common} for rank in range(self._count)]

    def whole(self, arguments: list[str], sizes: list[int]) -> None:
        """Train on all parts in one run."""
        processes: list[BaseProcess] = []
        for environment in self.environments():
            given = (arguments, self._printed, environment, sizes)
            processes.append(self._server.Process(target=train_on_all, args=given))
            processes[-1].start()
        self._end(processes)

    def killed(self, arguments: list[str], step: int, begun: Path) -> bool:
        """Run until this step begins, and kill; False if the command ended before."""
        begun.unlink(missing_ok=True)
        processes = [
            fork(self._server, arguments, self._printed, environment, (step, begun))
            for environment in self.environments()
        ]
        while not begun.exists():
            if not any(process.is_alive() for process in processes):
                break
            processes[0].join(0.002)
        if not begun.exists():
            self._end(processes)
            return False
        for process in processes:
            process.kill()
        for process in processes:
            ended(process)
        return True

    def _end(self, processes: list[BaseProcess]) -> None:
        codes = [ended(process) for process in processes]
        assert set(codes) == {0}, self._printed.read_text()[-2000:]


@pytest.mark.parametrize("threads", [1, 16])
@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_and_continued_runs_leave_the_bits_of_one_run(
    server: ForkServerContext, log: Path, tmp_path: Path, ranks: int, threads: int
) -> None:
    if (ranks, threads) == (2, 16):
        pytest.skip("in the long form")
    some = 3 if ranks == threads == 1 else 2
    check_bits(server, log, tmp_path, ranks=ranks, threads=threads, parts=some, kills=some)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("threads", [1, 16])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_of_30_parts_killed_50_times_leaves_the_bits_of_one_run(
    server: ForkServerContext, log: Path, tmp_path: Path, ranks: int, threads: int
) -> None:
    check_bits(server, log, tmp_path, ranks=ranks, threads=threads, parts=30, kills=50)


def check_bits(
    server: ForkServerContext,
    log: Path,
    folder: Path,
    *,
    ranks: int,
    threads: int,
    parts: int,
    kills: int,
) -> None:
    draw = random.Random(f"{SEED} {ranks} {threads} {parts}")
    # A part of 1 to 7 batches; most end with a short one.
    sizes = [draw.randint(20, 190) for _ in range(parts)]
    files = split(log, folder / "log", sizes)
    config = folder / "config.toml"
    # In one process, rows leave memory.
    row_memory = "96KiB" if ranks == 1 else "32MiB"
    schema = folder / "schema.toml"
    schema.write_text(SCHEMA)
    config.write_text(CONFIG.format(schema=schema, threads=threads, row_memory=row_memory))
    start = Ranks(server, ranks, folder / "printed")
    given = ["train", "--config", str(config)]
    everything = ["--data", str(folder / "log"), "--train-rows", str(sum(sizes))]
    start.whole([*given, *everything, "--out", str(folder / "whole")], sizes)

    run = folder / "run"
    killed = 0
    for number, (file, size) in enumerate(zip(files, sizes, strict=True)):
        data = ["--data", str(file), "--train-rows", str(size)]
        command = ["train", "--continue", str(run), *data]
        if number == 0:
            command = [*given, *data, "--out", str(run), "--resume"]
        steps = -(-size // BATCH)
        # The rest of the kills, spread over the rest of the parts.
        for _ in range(-(-(kills - killed) // (parts - number))):
            if not start.killed(command, draw.randint(1, steps), folder / "begun"):
                break
            killed += 1
        assert not start.killed(command, steps + 1, folder / "begun")
        # Nothing of it is read again.
        file.unlink()
    assert killed >= kills // 2
    assert differences(left(folder / "whole"), left(run)) == []
    check_whole(run / "store")
