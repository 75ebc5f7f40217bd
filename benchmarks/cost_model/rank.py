"""One rank of the benchmark: times messages alone, or training steps with strategy `packed` over some cells.

Started by `run.py` with a JSON object as argument. Rank 0 prints one JSON object per line. With `apart`, every process
trains alone at the same time as the others, which shows what kernels take when other cores are busy.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from benchmarks.exchange.cells import Cell
from benchmarks.exchange.rank import Stopwatch, Trained, say
from rowmill.distributed import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable

WORK_WIDTH = 384
"""Width of two square matrices whose product takes about a millisecond."""
WORK_REPEATS = 100
"""Repeats of work without messages, at least."""


def messages(ranks: Ranks, collective: str, size: int, repeats: int) -> None:
    """Time that a collective adds to a piece of work when they alternate: wall time, and CPU time per rank.

    Work in between makes it like a training step: threads sleep before a message, and ranks are not ready at the same time.
    """
    out = torch.zeros(size, dtype=torch.float32)
    back = torch.empty_like(out)
    calls: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "exchange": lambda: dist.all_to_all_single(back, out, group=ranks.group),
        "allreduce": lambda: dist.all_reduce(out, group=ranks.group),
    }
    without, with_it = (
        timed(ranks, calls[of], max(repeats, least))
        for of, least in (("nothing", WORK_REPEATS), (collective, 0))
    )
    if ranks.rank == 0:
        say(
            kind="message",
            collective=collective,
            # Half of an all-to-all between two ranks stays on the rank.
            bytes=out.nbytes // (2 if collective == "exchange" else 1),
            wall_s=max(0.0, with_it[0] - without[0]),
            cpu_s=max(0.0, with_it[1] - without[1]),
        )


def timed(ranks: Ranks, call: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Seconds of a piece of work plus a call: wall time of the slowest rank, and mean CPU time of a rank."""
    piece = torch.ones(WORK_WIDTH, WORK_WIDTH)
    call()
    dist.barrier()
    cpu, begin = common.cpu_s(), time.perf_counter()
    for _ in range(repeats):
        torch.mm(piece, piece)
        call()
    seen = (time.perf_counter() - begin) / repeats, (common.cpu_s() - cpu) / repeats
    walls, cpus = zip(*ranks.gather(seen), strict=True)
    return max(walls), sum(cpus) / len(cpus)


def steps(ranks: Ranks, cell: Cell, placement: str, folder: Path, seed: int, rounds: int) -> None:
    """Measure training steps of a cell with one placement for all tables, round by round."""
    trained = Trained(ranks, cell, folder, seed, {placement: {"placement": placement}})
    for number in range(-1, rounds):
        seen = trained.measure(placement, Stopwatch())
        if ranks.rank == 0 and number >= 0:
            step_s = max(of["wall_s"] for of in seen) / cell.steps
            sent = sum(sum(of["bytes_sent"].values()) for of in seen) / len(seen) / cell.steps
            say(kind="step", cell=cell.as_json(), placement=placement, step_s=step_s, bytes=sent)
    trained.store.close()


def main() -> None:
    """Measure messages, then cells."""
    job = json.loads(sys.argv[1])
    process, folder, apart = job["rank"], Path(job["folder"]), job["apart"]
    rank, count = (0, 1) if apart else (process, job["ranks"])
    torch.set_num_threads(1)
    meeting = (folder / f"meeting-{process if apart else 'all'}").as_uri()
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=count)
    ranks = Ranks()
    for collective, size, repeats in job["messages"]:
        messages(ranks, collective, size, repeats)
    for number, (fields, placement) in enumerate(job["cells"]):
        place = folder / f"store-{number}-{process}"
        steps(ranks, Cell.from_json(fields), placement, place, job["seed"], job["rounds"])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
