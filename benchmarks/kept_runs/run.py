"""How soon does a large run go on, with new data or after a lost rank, how long does a rollback take, what do versions cost?

A click model whose table has 20 million rows of 512 bytes is trained for one part of its data; the rows come from a file. Then
the log of this part is removed and the system's copies of the run's files are dropped from memory. Each round continues the run
with a new part, as a process of the command, and measures the time from its start until the first step of the part begins.
Rollbacks are between the versions of this run. A run of the same size on four ranks is started by torchrun, and ranks of it are
killed. The versions of a store of rows that change uniformly are measured apart.

    .venv/bin/python benchmarks/kept_runs/run.py --quick
    .venv/bin/python benchmarks/kept_runs/run.py --folder out/kept --out benchmarks/results/kept_runs.json
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import rowmill
from benchmarks import common
from rowmill import NewVersion

DIM = 64
ROW_BYTES = 2 * DIM * 4
"""Weights and the state of Adagrad."""
BATCH = 256
STEPS = 8
"""Training steps of each part."""
CHUNK_ROWS = 100_000
KEPT = 5
SHARES = (0.02, 0.1, 0.4)
"""Shares of the rows that change between two versions."""
BEGINS = "Beginning at step"
RESUMES = "Resuming at step"
RANKS = 4
RANKED_STEPS = 20_000
"""Steps of the run on ranks, which is ended before its last one."""
CHECKPOINT_WAIT_S = 900
"""A first checkpoint takes minutes, because all rows are written."""
SCHEMA = 'label = "clicked"\ndense = ["age"]\nids = ["user"]\n'

if TYPE_CHECKING:
    from collections.abc import Sequence

_arrow: Any = pa
_parquet: Any = pq


@dataclass(frozen=True)
class Sizes:
    """Sizes of a form of the benchmark."""

    rows: int
    """Rows of the run."""
    memory: str
    """Its memory budget."""
    rank_memory: str
    """The memory budget of each rank."""
    rounds: int
    restarts: int
    """How often a rank is killed."""
    version_rows: int
    """Rows of the store whose versions are measured."""
    versions: int
    """Versions that are made of it; the last five are kept."""


FULL = Sizes(20_000_000, "2GiB", "512MiB", 5, 3, 1_000_000, 16)
QUICK = Sizes(2_000_000, "512MiB", "128MiB", 3, 3, 100_000, 12)
TINY = Sizes(20_000, "64MiB", "64MiB", 1, 1, 5_000, 6)


def write_log(path: Path, rng: np.random.Generator, rows: int, steps: int = STEPS) -> None:
    """One part of the data: every user is one of those of the run."""
    count = BATCH * steps
    columns = {
        "clicked": rng.integers(0, 2, count),
        "age": rng.random(count).astype(np.float32),
        "user": rng.integers(0, rows, count),
    }
    _parquet.write_table(_arrow.table(columns), path)


def write_users(path: Path, rng: np.random.Generator, rows: int) -> None:
    """Vectors of all users."""
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=(rows, DIM))
    for first in range(0, rows, CHUNK_ROWS):
        part = array[first : first + CHUNK_ROWS]
        part[:] = rng.standard_normal(part.shape, np.float32).astype(np.float16) * np.float16(0.01)
    array.flush()


def new_run(
    folder: Path, name: str, sizes: Sizes, rng: np.random.Generator, steps: int
) -> list[str]:
    """Write data, schema and rows of a new run in `folder/name`, and return the arguments that train it."""
    (folder / "schema.toml").write_text(SCHEMA)
    log, users = folder / "day-1.parquet", folder / "users.npy"
    write_log(log, rng, sizes.rows, steps)
    write_users(users, rng, sizes.rows)
    arguments = ["--data", str(log), "--out", str(folder / name), "--warm-start", f"user={users}"]
    arguments += ["--schema", str(folder / "schema.toml"), "--ids", "full", "--dim", str(DIM)]
    return [*arguments, "--batch", str(BATCH), "--train-rows", str(BATCH * steps)]


def train(folder: Path, sizes: Sizes, rng: np.random.Generator) -> None:
    """The run in `folder/run`, with its first part complete, and nothing but the run left."""
    arguments = new_run(folder, "run", sizes, rng, STEPS)
    arguments += ["--memory", sizes.memory, "--versions", str(KEPT), "--checkpoint-every", "2"]
    with started(arguments) as process:
        said = process.communicate()[0]
    if process.returncode != 0:
        sys.exit(f"the first part was not trained: {said}")
    (folder / "day-1.parquet").unlink()
    (folder / "users.npy").unlink()


def started(arguments: list[str], launcher: Sequence[str] = ()) -> subprocess.Popen[str]:
    """`rowmill train` with these arguments, as a process whose lines can be read as they are printed."""
    return subprocess.Popen(
        [sys.executable, "-u", "-m", *launcher, "rowmill", "train", *arguments],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def drop_from_memory(folder: Path) -> None:
    """Drop the system's copies of the files of a folder from memory, so that reads reach the device."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cpu_s_of(process: int) -> float:
    """CPU time of a process so far, all threads, user and system."""
    # The name of the program, in parentheses, may have spaces.
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def continue_run(
    folder: Path, number: int, sizes: Sizes, rng: np.random.Generator
) -> dict[str, Any]:
    """Continue the run with a new part; returns seconds and bytes read until its first step."""
    log = folder / f"day-{number}.parquet"
    write_log(log, rng, sizes.rows)
    drop_from_memory(folder / "run")
    since = time.perf_counter()
    said: list[str] = []
    begins_s = cpu_s = read = 0.0
    command = ["--continue", str(folder / "run"), "--data", str(log)]
    with started([*command, "--train-rows", str(BATCH * STEPS)]) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if line.startswith(BEGINS):
                begins_s = time.perf_counter() - since
                read = float(common.device_bytes(process.pid)[0])
                cpu_s = cpu_s_of(process.pid)
    if process.returncode != 0 or not begins_s:
        sys.exit(f"the run was not continued: {''.join(said)}")
    log.unlink()
    return {
        "variant": "continue",
        "round": number - 2,
        "begins_s": begins_s,
        "begins_cpu_s": cpu_s,
        "read_bytes": read,
        "wall_s": time.perf_counter() - since,
    }


def restart_ranks(folder: Path, sizes: Sizes, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Start a run on ranks by torchrun and kill a rank after a checkpoint, again and again.

    Returns:
        For each killed rank, the seconds until the training of all ranks has resumed.
    """
    arguments = new_run(folder, "ranked", sizes, rng, RANKED_STEPS)
    arguments += ["--memory", sizes.rank_memory, "--checkpoint-every", "20"]
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    launcher += [f"--max-restarts={sizes.restarts}", "-m"]
    found: list[dict[str, Any]] = []
    said: list[str] = []
    checkpoint = folder / "ranked/store/CHECKPOINT"
    with started(arguments, launcher) as process:
        assert process.stdout is not None
        try:
            for number in range(sizes.restarts):
                wait_for_new(checkpoint, process)
                killed_at = time.perf_counter()
                kill_rank(process.pid, 1 + number % (RANKS - 1))
                for line in process.stdout:
                    said.append(line)
                    if line.startswith(RESUMES):
                        break
                else:
                    sys.exit(f"the run did not resume: {''.join(said)}")
                wall_s = time.perf_counter() - killed_at
                found.append({"variant": "restart", "round": number, "wall_s": wall_s})
        finally:
            process.terminate()
            process.communicate()
    return found


def wait_for_new(file: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a file is written, or written anew."""
    before = file.stat().st_mtime_ns if file.exists() else 0
    until = time.monotonic() + CHECKPOINT_WAIT_S
    while not file.exists() or file.stat().st_mtime_ns == before:
        if process.poll() is not None or time.monotonic() > until:
            assert process.stdout is not None
            process.kill()
            sys.exit(f"the run on ranks has no new checkpoint: {process.stdout.read()}")
        time.sleep(0.05)


def kill_rank(launcher: int, rank: int) -> None:
    """Kill a rank that a launcher has started."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    for child in children:
        if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            os.kill(int(child), signal.SIGKILL)
            return
    sys.exit(f"no process is rank {rank}")


def roll_back(folder: Path, number: int) -> dict[str, Any]:
    """Make the oldest version the last checkpoint; by turns the newest one."""
    store = folder / "run/store"
    names = [version["name"] for version in rowmill.versions(store)]
    drop_from_memory(folder / "run")
    since = time.perf_counter()
    rowmill.rollback(store, names[0 if number % 2 == 0 else -1])
    wall_s = time.perf_counter() - since
    return {"variant": "rollback", "round": number, "wall_s": wall_s, "versions": len(names)}


def allocated(folder: Path) -> int:
    """Bytes that the file system allocated to the files of a folder."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def versions_cost(
    folder: Path, share: float, sizes: Sizes, rng: np.random.Generator
) -> list[float]:
    """Device bytes over those of the newest version's rows and of the rows that differ between neighbours, for each version."""
    rows, dim = sizes.version_rows, ROW_BYTES // 4
    memory = max(rows * ROW_BYTES // 10, 24 << 20) + (8 << 20)
    ratios: list[float] = []
    differ: list[int] = []
    with rowmill.open(folder, memory=memory) as store:
        table = store.table("t", dim=dim, optimizer=rowmill.optim.SGD(lr=0.01))
        for first in range(0, rows, CHUNK_ROWS):
            ids = np.arange(first, min(first + CHUNK_ROWS, rows))
            table.put(ids, np.ones((len(ids), dim), np.float32))
        for number in range(sizes.versions):
            changed = rng.permutation(rows)[: int(share * rows)]
            for ids in np.array_split(changed, -(-len(changed) // 4096)):
                table.put(ids, np.full((len(ids), dim), number, np.float32))
            differ.append(len(changed))
            store.checkpoint(version=NewVersion(name=f"v{number}", keep=KEPT))
            between = sum(differ[max(number - KEPT + 2, 1) : number + 1])
            ratios.append(allocated(folder) / ((rows + between) * ROW_BYTES))
    return ratios


def measure(benchmark: common.Benchmark, sizes: Sizes, folder: Path) -> None:
    """Measure all parts, with runs and stores in this folder."""
    rng = np.random.default_rng(benchmark.settings.seed)
    train(folder, sizes, rng)
    benchmark.summary["run_bytes"] = allocated(folder / "run/store")
    begun = [continue_run(folder, number + 2, sizes, rng) for number in range(sizes.rounds)]
    back = [roll_back(folder, number) for number in range(sizes.rounds)]
    shutil.rmtree(folder / "run")
    restarted = restart_ranks(folder, sizes, rng)
    benchmark.summary["ranked_bytes"] = allocated(folder / "ranked/store")
    shutil.rmtree(folder / "ranked")
    (folder / "users.npy").unlink()
    benchmark.cells += [*begun, *back, *restarted]
    for name in ("begins_s", "begins_cpu_s", "read_bytes"):
        benchmark.summarize(f"continue_{name}", common.Median.of(cell[name] for cell in begun))
    benchmark.summarize("rollback_s", common.Median.of(cell["wall_s"] for cell in back))
    benchmark.summarize("restart_s", common.Median.of(cell["wall_s"] for cell in restarted))
    benchmark.keep()
    for share in SHARES:
        place = folder / f"versions-{share}"
        ratios = versions_cost(place, share, sizes, rng)
        shutil.rmtree(place)
        benchmark.cells.append({"variant": "versions", "share": share, "over_needed": ratios})
        # From here on, as many versions are kept as at most.
        benchmark.summary[f"versions_{share:g}_over_needed_worst"] = max(ratios[KEPT - 1 :])
        benchmark.keep()


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument("--tiny", action="store_true", help="seconds: shows that the parts work")
    parser.add_argument(
        "--folder", type=Path, help="where the runs are made; the full form takes 25 GB there"
    )
    parsed = parser.parse_args()
    if parsed.tiny and parsed.out is not None:
        parser.error("--tiny measures nothing that is worth --out: leave one of them out")
    benchmark = common.Benchmark(common.settings(parsed))
    sizes = TINY if parsed.tiny else QUICK if benchmark.settings.quick else FULL
    if parsed.folder is not None:
        parsed.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rowmill-", dir=parsed.folder) as folder:
        measure(benchmark, sizes, Path(folder))
    benchmark.write()


if __name__ == "__main__":
    main()
