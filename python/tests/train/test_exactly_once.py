"""Exactly-once training: a run that is killed again and again leaves results bit-identical to an uninterrupted run.

A seed chooses the target of each `kill -9`: a training step, a checkpoint that is being written, rows that are flushed to the
log, a segment that is being cleaned. `halt` checks what was hit. The run is resumed with `--resume` and killed again, until
one process reaches the end. Then all its files must be bit-identical: metrics and curves, dense weights and their optimizer,
the random stream, every row with its optimizer state. With row memory for a fraction of the rows, the run includes eviction,
cleaning and lookahead; with row memory for all rows, only checkpoints write. Nothing is simulated: these are processes of
`rowmill train` and their files.

A kill cannot simulate a loss of power; tests of the store in Rust do that with a simulated disk.
"""

from __future__ import annotations

import io
import json
import random
import shutil
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import rowmill
from python.tests.train.halt import INSIDE, Halt, need_system_calls
from python.tests.train.runs import ended, epoch, fork, scalars
from rowmill.train.state import ATTACHMENT

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext
    from pathlib import Path

pytestmark = pytest.mark.slow

SEED = 1
STEP = "step"
"""Target: shortly after a training step has begun, in any phase."""
EACH = ("checkpoint: rows", "checkpoint: manifest", "flush", "compaction", "opening", STEP, STEP)
"""Targets of every variant in `make test`."""
ONCE = ("checkpoint: attachment", "checkpoint: removal", "test", "report")
"""Additional targets of one variant, because they do not depend on optimizer and memory."""
LONG = {
    "checkpoint: attachment": 3,
    "checkpoint: rows": 5,
    "checkpoint: manifest": 4,
    "checkpoint: removal": 2,
    "flush": 6,
    "compaction": 6,
    "opening": 4,
    "test": 2,
    "report": 2,
    STEP: 16,
}
"""Targets of every variant in `make test-long`, with the number of kills for each."""
STEPS_MAX = 24
"""A kill with the target `step` waits for one of the first steps of its process, up to this; a whole run has 110."""
RUNS_MAX = 100
OUTSIDE = ("starting", "opening", "test", "report")
"""Phases in which a run does not train."""

CONFIG = """
[generate]
rows = 2500
seed = 3
tables = 8
rows_per_table = 1500

[data]
path = "{log}"

[model]
dim = 8
bottom = [16]
top = [16]

[rows]
optimizer = "{optimizer}"

{sections}
[store]
memory = "64MiB"
row_memory = "{row_memory}"
lookahead = 4

[train]
threads = 1
batch = 36
epochs = 2
checkpoint_every = 4
log_every = 5
"""


@dataclass(frozen=True)
class Kill:
    """The target of a kill, and the phase that it hit."""

    aim: str
    phases: list[str]
    epoch: int

    @property
    def inside(self) -> bool:
        return any(phase.startswith(INSIDE) for phase in self.phases)

    @property
    def in_training(self) -> bool:
        return not any(phase in OUTSIDE for phase in self.phases)

    def __str__(self) -> str:
        hit = " + ".join(self.phases)
        return f"{hit}, after checkpoint {self.epoch} (aimed at {self.aim})"


@dataclass
class Run:
    """The command, its folder, and the kills so far."""

    server: ForkServerContext
    config: Path
    out: Path
    kills: list[Kill] = field(default_factory=list)

    @property
    def store(self) -> Path:
        return self.out / "store"

    @property
    def printed(self) -> Path:
        return self.out.with_suffix(".txt")

    def arguments(self) -> list[str]:
        return ["train", "--config", str(self.config), "--out", str(self.out), "--resume"]

    def whole(self) -> None:
        """Run to the end."""
        assert ended(fork(self.server, self.arguments(), self.printed)) == 0, self.last_words()

    def killed(self, aim: str, step: int, checkpoints: int) -> bool:
        """Run until the kill; False if the run ended first. `step` is the number of the step if the target is a step."""
        halt = Halt(self.store, checkpoints)
        begun = self.out.with_suffix(".begun")
        begun.unlink(missing_ok=True)
        process = fork(self.server, self.arguments(), self.printed, tell=(step, begun))
        halt.follow(process.pid)

        def met() -> bool:
            if aim == STEP:
                return begun.exists()
            return any(phase.startswith(aim) for phase in halt.phases())

        try:
            while process.is_alive():
                if met() and halt.stop():
                    if met():
                        self.kills.append(Kill(aim, halt.phases(), epoch(self.store)))
                        process.kill()
                        assert ended(process) == -signal.SIGKILL
                        return True
                    halt.go_on()
                time.sleep(0.0002)
            assert ended(process) == 0, self.last_words()
        finally:
            process.kill()
        return False

    def last_words(self) -> str:
        return "\n".join(self.printed.read_text().splitlines()[-20:])


def outcome(out: Path) -> dict[str, Any]:
    """All files of a run that must not depend on kills; without times and counts of where rows were found."""
    report = json.loads((out / "report.json").read_text())
    figures = (
        "steps",
        "live_rows",
        "live_row_bytes",
        "train_rows",
        "test_rows",
        "lookups",
        "rows_looked_up",
    )
    left: dict[str, Any] = {
        "checkpoints": epoch(out / "store"),
        "test": report["test"],
        "curve": measured(report["curve"]),
        "run": {name: report["run"][name] for name in figures},
    }
    left["events"] = scalars(out / "events", "train/logloss", "train/auc", "test/auc")
    with rowmill.open(out / "store", read_only=True) as store:
        packed = store.attachment(ATTACHMENT)
        assert packed is not None
        content = torch.load(io.BytesIO(packed), weights_only=True)
        state = json.loads(content.pop("state"))
        # These hashes include the settings, which contain the folder of the run.
        del content["files"]
        left["state"] = {
            name: state[name] for name in ("epoch", "row", "step", "looked_up", "test")
        }
        left["saved curve"] = measured(state["curve"])
        left["dense"] = bits(content)
        left["tables"] = store.stats()["tables"]
        left["hottest"] = {name: store.open_table(name).hottest(64) for name in store.table_names()}
        left["rows"] = {name: all_rows(store.open_table(name)) for name in store.table_names()}
    return left


def measured(curve: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: point[name] for name in ("step", "rows", "logloss", "auc", "ne")} for point in curve
    ]


def bits(value: Any) -> Any:
    """Tensors as bytes, at any depth of lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.numpy().tobytes()
    if isinstance(value, dict):
        return {name: bits(item) for name, item in value.items()}
    return [bits(item) for item in value] if isinstance(value, list | tuple) else value


def all_rows(table: rowmill.Table) -> tuple[bytes, bytes, bytes]:
    """Ids in order, weights and optimizer state of a table."""
    ids = np.sort(np.concatenate([ids for ids, _ in table.scan()]))
    return ids.tobytes(), table.get(ids).tobytes(), table.get_state(ids).tobytes()


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """The names of the parts that differ."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [
            part for name in one for part in differences(one[name], other[name], f"{where}/{name}")
        ]
    return [] if one == other else [where]


def table_of(kills: list[Kill], title: str) -> str:
    counts = Counter(" + ".join(kill.phases) for kill in kills)
    return "\n".join(
        [title, *(f"  {count:3}  {phases}" for phases, count in sorted(counts.items()))]
    )


# With eviction and admission: which rows and ids are affected must not depend on kills.
REMOVAL = """
[eviction]
{rule}
every = 7

[admission]
min_count = 2
bytes = "8KiB"
"""


@pytest.mark.parametrize("row_memory", ["96KiB", "32MiB"])
@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
def test_a_killed_run_ends_bit_identical_to_an_uninterrupted_one(
    server: ForkServerContext,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    optimizer: str,
    row_memory: str,
) -> None:
    aims = [*EACH, *(ONCE if (optimizer, row_memory) == ("adagrad", "96KiB") else ())]
    killed_runs(server, tmp_path, capsys, aims, optimizer=optimizer, row_memory=row_memory)


@pytest.mark.long
@pytest.mark.parametrize("row_memory", ["96KiB", "32MiB"])
@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
def test_a_run_killed_50_times_ends_bit_identical_to_an_uninterrupted_one(
    server: ForkServerContext,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    optimizer: str,
    row_memory: str,
) -> None:
    aims = [aim for aim, count in LONG.items() for _ in range(count)]
    killed_runs(server, tmp_path, capsys, aims, optimizer=optimizer, row_memory=row_memory)


@pytest.mark.parametrize(
    "rule",
    ['rule = "ttl"\nsteps = 20', 'rule = "least_frequent"\nmax_rows = 90'],
    ids=["ttl", "least_frequent"],
)
def test_kills_do_not_change_eviction_and_admission(
    server: ForkServerContext, tmp_path: Path, capsys: pytest.CaptureFixture[str], rule: str
) -> None:
    killed_runs(
        server,
        tmp_path,
        capsys,
        list(EACH),
        optimizer="adagrad",
        row_memory="96KiB",
        sections=REMOVAL.format(rule=rule),
    )
    with rowmill.open(tmp_path / "whole" / "store", read_only=True) as store:
        tables = store.stats()["tables"].values()
        assert sum(table["evicted"] for table in tables) > 100
        # Some requested ids were never admitted, and some were created more than once.
        assert all(table["births"] < table["accesses"] for table in tables)


def test_kills_change_no_bit_with_stochastic_rounding(
    server: ForkServerContext, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed_runs(
        server,
        tmp_path,
        capsys,
        list(EACH),
        optimizer="adagrad",
        row_memory="96KiB",
        sections='dtype = "bf16"\n',
    )
    with rowmill.open(tmp_path / "whole" / "store", read_only=True) as store:
        assert {store.open_table(name).dtype for name in store.table_names()} == {"bf16"}


def killed_runs(
    server: ForkServerContext,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    aims: list[str],
    *,
    optimizer: str,
    row_memory: str,
    sections: str = "",
) -> None:
    """Kill runs at all targets, and compare their results with those of an uninterrupted run."""
    need_system_calls()
    config = tmp_path / "config.toml"
    config.write_text(
        CONFIG.format(
            log=tmp_path / "log", optimizer=optimizer, row_memory=row_memory, sections=sections
        )
    )
    Run(server, config, tmp_path / "whole").whole()
    expected = outcome(tmp_path / "whole")
    checkpoints = expected["checkpoints"]
    draw = random.Random(f"{SEED} {optimizer} {row_memory}")
    draw.shuffle(aims)
    inside_wanted = sum(aim.startswith(INSIDE) for aim in aims)
    kills: list[Kill] = []
    runs = 0
    while aims:
        assert runs < RUNS_MAX, f"no run reached a kill with the target {aims[-1]}"
        run = Run(server, config, tmp_path / f"killed {runs}")
        try:
            while aims and run.killed(aims[-1], draw.randint(1, STEPS_MAX), checkpoints):
                aims.pop()
            run.whole()
            assert differences(expected, outcome(run.out)) == []
        except AssertionError as error:
            error.add_note(f"seed {SEED}, run {runs} of {optimizer}, {row_memory}")
            for kill in run.kills:
                error.add_note(str(kill))
            raise
        kills += run.kills
        shutil.rmtree(run.out)
        runs += 1
    at_steps = [kill for kill in kills if kill.aim == STEP]
    assert 2 * sum(kill.in_training for kill in at_steps) >= len(at_steps) > 0
    inside = sum(kill.inside for kill in kills)
    assert inside >= inside_wanted
    title = f"\n{optimizer}, {row_memory}: {len(kills)} kills of {runs} runs, {inside} inside {', '.join(INSIDE)}"
    with capsys.disabled():
        print(table_of(kills, title))
