"""Stock Linux pools rows of a node through the kernel, by ioctl and by io_uring.

What could break: the vendor commands as Linux passes them on, such as data both ways, several at a time, and statuses of ours;
the list of tables as the only thing that a program needs to know; rows that are read as blocks. The program in the guest is
plain C (`pool.c`) without code of ours. It adds up what it reads as blocks and compares every bit.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

import rowmill
from tests.storage.guest import HOST, Guest
from tests.storage.node import serving_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rowmill.store.tables import Dtype

ROWS = {"users": 3000, "items": 700, "words": 65}
DIM = 24


@pytest.fixture(params=["fp32", "bf16"])
def connected(request: pytest.FixtureRequest, guest: Guest, tmp_path: Path) -> Iterator[Guest]:
    """The guest, connected to a node with trained rows of three tables."""
    make_store(tmp_path / "store", request.param)
    with serving_rows(tmp_path, store=tmp_path / "store") as node:
        guest.run(
            f"nvme connect --transport=tcp --traddr={HOST} --trsvcid={node.port} --nqn={node.name} "
            "--hdr-digest --data-digest"
        )
        guest.wait_for("test -b /dev/nvme0n1")
        yield guest
        guest.run(f"nvme disconnect --nqn={node.name}")


def make_store(folder: Path, dtype: Dtype) -> None:
    with rowmill.open(folder, memory="32MiB", seed=5) as store:
        for name, rows in ROWS.items():
            table = store.table(
                name, dim=DIM, num_rows=rows, dtype=dtype, optimizer=rowmill.optim.SGD(lr=0.1)
            )
            # Half of the rows; the others read as a trainer would initialize them.
            ids = np.arange(0, rows, 2)
            weights = np.random.default_rng(rows).standard_normal((len(ids), DIM), np.float32)
            table.put(ids, weights)
        store.checkpoint()


@pytest.mark.parametrize(("by", "commands", "rounds"), [("ioctl", 1, 40), ("uring", 32, 4)])
def test_pooled_rows_equal_sums_of_blocks(
    connected: Guest, by: str, commands: int, rounds: int
) -> None:
    output = connected.run(f"pool {by} {commands} {rounds}")
    batches, rows, nonzero = (int(number) for number in re.findall(r"\d+", output)[:3])
    assert batches == commands * rounds
    # Three tables of 16 bags each, with ten ids on average; one bag of 21 is empty.
    assert rows > batches * 3 * 16 * 8
    assert nonzero > batches * 3 * 16 * DIM * 0.8


def test_blocks_of_rows_cannot_be_written(connected: Guest) -> None:
    assert connected.run("cat /sys/block/nvme0n1/ro").strip() == "1"
    status, output = connected.try_run(
        "nvme write /dev/nvme0n1 --start-block=0 --block-count=0 --data-size=4096 --data=/bin/pool"
    )
    assert status != 0
    assert "Write Protected" in output
