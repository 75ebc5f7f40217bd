"""The environment that torchrun sets is checked, and ranks that cannot start together report an error and end.

What could break: an invalid environment gives a traceback; ranks wait half an hour for a rank that never starts, for a program
that uses the port, or for a rank that failed to start; a process ignores SIGTERM.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from python.tests.ports import free_port
from python.tests.warm import warm_python
from rowmill.distributed.torchrun import Launched
from rowmill.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
import torch, torch.distributed as dist
from rowmill.distributed.torchrun import Launched, meet
from rowmill.errors import RowmillError

try:
    here = Launched.here()

    def able():
        if sys.argv[3:] == [str(here.rank)]:
            raise ValueError("no such device")

    meet(here, sys.argv[1], meeting_s=float(sys.argv[2]), wait_s=60, able=able)
    ones = torch.ones(1)
    dist.all_reduce(ones)
    print(f"met {ones.item()}")
    dist.destroy_process_group()
except RowmillError as error:
    print(f"{type(error).__name__}: {error}")
"""


def environment(rank: int, count: int, port: int) -> dict[str, str]:
    """Environment variables of a rank, as torchrun sets them."""
    of_rank = {"RANK": str(rank), "WORLD_SIZE": str(count)}
    return {**os.environ, **of_rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def met(count: int, port: int, backends: list[str], meeting_s: float, *unable: str) -> list[str]:
    """Start one of `count` ranks per backend in the list; returns what each printed."""
    ranks = [
        subprocess.Popen(
            [warm_python(), "-c", PROGRAM, backend, str(meeting_s), *unable],
            env=environment(rank, count, port),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, backend in enumerate(backends)
    ]
    try:
        return [rank.communicate(timeout=120)[0].splitlines()[-1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def test_ranks_connect_at_the_address_of_the_environment() -> None:
    assert met(2, free_port(), ["gloo", "gloo"], 60) == ["met 2.0"] * 2


def test_all_ranks_report_what_one_rank_lacks() -> None:
    said = met(2, free_port(), ["gloo", "gloo"], 60, "1")
    assert said == ["ExchangeFailed: rank 1: ValueError: no such device"] * 2


def test_a_rank_that_never_starts_is_named() -> None:
    for said in met(3, free_port(), ["gloo", "gloo"], 8):
        assert said.startswith(
            "ExchangeFailed: of 3 ranks these did not connect within 8 s: 2; start all ranks again"
        ) or said.startswith(
            "ExchangeFailed: rank 1 could not reach the other ranks at 127.0.0.1:"
        ), said


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        (said,) = met(2, port, ["gloo"], 60)
    assert said.startswith(
        f"ExchangeFailed: rank 0 could not reach the other ranks at 127.0.0.1:{port}:"
    )
    assert said.endswith("and with a MASTER_PORT that is free")


def test_a_port_that_accepts_connections_but_never_answers_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        environ = environment(1, 2, port)
        command = [warm_python(), "-c", PROGRAM, "gloo", "2"]
        run = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=120, check=False
        )
    assert run.stdout.splitlines() == [
        f"ExchangeFailed: rank 1 could not reach the other ranks at 127.0.0.1:{port}: another program seems to use this "
        "port; it accepts connections and does not answer. Start all 2 ranks with a MASTER_PORT that is free"
    ]


def test_all_ranks_name_a_rank_without_its_backend() -> None:
    said = "ExchangeFailed: rank 1: oneCCL is not installed: pip install 'rowmill[oneccl]'"
    assert met(2, free_port(), ["gloo", "oneccl"], 60) == [said, said]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("WORLD_SIZE", "two", "WORLD_SIZE must be a number from 1 to 1048576, and is 'two'"),
        ("WORLD_SIZE", "0", "WORLD_SIZE must be a number from 1 to 1048576, and is '0'"),
        ("RANK", "2", "RANK must be a number from 0 to 1, and is '2'"),
        ("RANK", "-1", "RANK must be a number from 0 to 1, and is '-1'"),
        ("LOCAL_WORLD_SIZE", "0", "LOCAL_WORLD_SIZE must be a number from 1 to 2, and is '0'"),
        ("LOCAL_RANK", "x", "LOCAL_RANK must be a number from 0 to 1, and is 'x'"),
    ],
)
def test_invalid_environment_variables_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    for known, number in (("RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(known, number)
    for known in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(known, raising=False)
    assert Launched.here() == Launched(1, 2, 1, 2)
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInput) as refused:
        Launched.here()
    assert str(refused.value) == f"{message}: start the ranks with torchrun, which sets it"
    monkeypatch.delenv("RANK")
    assert Launched.here() is None


def test_a_rank_reports_and_ends_on_sigterm(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\n"
        "from rowmill.distributed.torchrun import ends_late\n"
        "with ends_late(0.5, 'ended'):\n    Path(sys.argv[1]).touch()\n    time.sleep(60)\n"
    )
    begun = tmp_path / "begun"
    asked = subprocess.Popen(
        [warm_python(), "-c", program, str(begun)], stderr=subprocess.PIPE, text=True
    )
    try:
        while not begun.exists():
            assert asked.poll() is None
            time.sleep(0.02)
        asked.terminate()
        assert asked.communicate(timeout=30)[1] == "ended\n"
        assert asked.returncode == 128 + signal.SIGTERM
    finally:
        asked.kill()
