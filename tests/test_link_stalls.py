"""A link between ranks that carries nothing for some time, in network namespaces.

What could break: a stall that ends within the allowed silence ends a run; one that never ends leaves ranks waiting, or each of
them blames another one.
"""

import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.slow_links import links

RANKS = 3
STALLED = 2
STALL_S = 5.0
STEPS = 60
# Each step is a collective of all ranks and a pause.
PROGRAM = f"""
import os, sys, time
import torch
import torch.distributed as dist
from rowmill.distributed import Ranks, Watch
dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size={RANKS})
ranks = Ranks()
total = torch.ones(1)
with Watch(ranks, silence_s=float(sys.argv[1]), grace_s=2.0) as watch:
    for step in range({STEPS}):
        watch.step(step)
        dist.all_reduce(total.fill_(1.0))
        if step == 5 and ranks.rank == 0:
            print("running", flush=True)
        time.sleep(0.1)
print("sum", int(total), flush=True)
"""


@contextmanager
def running(silence_s: float) -> Generator[tuple[links.Network, list[subprocess.Popen[str]]]]:
    """All ranks, past their first steps."""
    if reason := links.missing():
        pytest.skip(reason)
    with links.network(RANKS, "1gbit") as made:
        ranks = [
            subprocess.Popen(
                made.command(
                    rank,
                    [
                        "env",
                        f"RANK={rank}",
                        f"MASTER_ADDR={made.addresses[0]}",
                        "MASTER_PORT=7000",
                        f"GLOO_SOCKET_IFNAME={made.interface}",
                        "OMP_NUM_THREADS=1",
                        sys.executable,
                        "-c",
                        PROGRAM,
                        str(silence_s),
                    ],
                ),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).parents[1],
            )
            for rank in range(RANKS)
        ]
        try:
            first = ranks[0].stdout
            assert first is not None
            assert first.readline() == "running\n"
            yield made, ranks
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()


def test_a_stall_of_seconds_is_waited_out() -> None:
    with running(silence_s=30.0) as (made, ranks):
        made.cut(STALLED)
        time.sleep(STALL_S)
        assert all(rank.poll() is None for rank in ranks)
        made.mend(STALLED)
        for rank in ranks:
            said, errors = rank.communicate(timeout=60)
            assert (rank.returncode, said.split()[-2:]) == (0, ["sum", str(RANKS)]), errors


def test_a_stall_without_end_ends_all_ranks_with_one_message() -> None:
    with running(silence_s=3.0) as (made, ranks):
        made.cut(STALLED)
        for rank in ranks:
            _, errors = rank.communicate(timeout=60)
            assert rank.returncode in (1, 70), errors
            said = f"no message passed between ranks 0 and {STALLED} for 3 s: the link between them is down"
            assert said in errors
