"""Connections to a storage node as tshark decodes them: a second reader of the protocol, which shares no code with ours.

What could break: PDUs that Linux accepts although the standard says otherwise, digests, and PDUs that Linux never sends or
gets. A guest makes those of normal use, twice: with digests and without. Two connections of the test end by termination
requests, one of each side.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.storage.guest import HOST, Guest
from tests.storage.node import serving_blocks

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

DEVICE = "/dev/nvme0n1"
ICREQ = bytes.fromhex("00008000 80000000") + bytes(120)
"""Initialize connection request: version 0, no digests."""
KINDS = {0, 1, 2, 3, 4, 5, 6, 7, 9}
"""All types of PDUs that the standard defines."""
OPCODES = {0x00, 0x01, 0x02, 0x09}
"""Flush, Write, Read, Dataset Management; Get Log Page has the number of Read."""
IS_ERROR = 0x800000
"""Severity of an error in tshark; such as a window that is full are warnings."""
GOOD = 1
"""Status of a checksum in tshark."""


def test_every_pdu_is_well_formed(guest: Guest, tmp_path: Path) -> None:
    packets = tmp_path / "packets.pcapng"
    with serving_blocks(tmp_path, blocks=4096) as node, captured(packets, node.port):
        for digests in ("--hdr-digest --data-digest", ""):
            exercise(guest, node.port, node.name, digests)
        terminate_as_host(node.port)
        terminate_as_node(node.port)
    field = decoded(packets, node.port)
    assert set(field["nvme-tcp.type"]) == KINDS
    assert set(field["nvme.cmd.opc"]) >= OPCODES
    assert set(field["nvme-tcp.hdgst.status"]) == {GOOD}
    assert set(field["nvme-tcp.ddgst.status"]) == {GOOD}
    assert not field["_ws.malformed"]
    assert not field["nvme-tcp.unknown_data"]
    assert max(field["_ws.expert.severity"]) < IS_ERROR


def exercise(guest: Guest, port: int, name: str, digests: str) -> None:
    """Normal use: discovery, set-up, data of all sizes both ways, flushes, freed blocks, an error, the end."""
    guest.run(f"nvme discover --transport=tcp --traddr={HOST} --trsvcid={port}")
    guest.run(
        f"nvme connect --transport=tcp --traddr={HOST} --trsvcid={port} --nqn={name} {digests}"
    )
    guest.wait_for(f"test -b {DEVICE}")
    guest.run("nvme smart-log /dev/nvme0; nvme id-ctrl /dev/nvme0; nvme list")
    for size in (4096, 65536, 1 << 20):
        guest.run(f"dd if=/dev/urandom of={DEVICE} bs={size} count=2 oflag=direct conv=fsync")
        guest.run(f"dd if={DEVICE} of=/dev/null bs={size} count=2 iflag=direct")
    guest.run(f"blkdiscard -o 0 -l 65536 {DEVICE}")
    assert guest.try_run(f"nvme read {DEVICE} -s 4096 -c 0 -z 4096 -d read")[0] != 0
    guest.run(f"nvme disconnect --nqn={name}")


def terminate_as_host(port: int) -> None:
    """The host ends a connection, as if the node had sent its ICResp twice (a sequence error: 2)."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(ICREQ)
        response = read_exactly(connection, 128)
        assert response[0] == 1
        connection.sendall(bytes.fromhex("02001800 20000000 0200") + bytes(14) + response[:8])
        assert connection.recv(1) == b"", "the node closed the connection"


def terminate_as_node(port: int) -> None:
    """The node ends a connection on which the host initializes twice."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(2 * ICREQ)
        assert read_exactly(connection, 128)[0] == 1
        request = read_exactly(connection, 32)
        assert (request[0], request[8], request[24:]) == (3, 2, ICREQ[:8])
        assert connection.recv(1) == b"", "the node closed the connection"


def read_exactly(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        part = connection.recv(count - len(received))
        assert part, f"closed after {received.hex()}"
        received += part
    return received


@contextmanager
def captured(packets: Path, port: int) -> Generator[None]:
    """Capture what passes a port of loopback."""
    assert shutil.which("dumpcap"), "dumpcap is missing: run tools/storage.sh"
    command = ["dumpcap", "-q", "-i", "lo", "-B", "64", "-f", f"tcp port {port}", "-w", packets]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as capture:
        assert capture.stderr is not None
        lines: list[str] = []
        for line in capture.stderr:
            lines.append(line)
            if line.startswith("File:"):
                break
        else:
            raise AssertionError(f"dumpcap captures nothing: {lines}")
        yield
        # What dumpcap has not read when it ends is lost: wait for the last packet, which has a mark in reserved bytes.
        mark = b"the last packet"
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(ICREQ[: -len(mark)] + mark)
            deadline = time.monotonic() + 60
            while mark not in packets.read_bytes():
                assert time.monotonic() < deadline, "dumpcap does not write what it captured"
                time.sleep(0.2)
        capture.send_signal(signal.SIGINT)
        counts = capture.stderr.read()
        assert "(100.0%)" in counts, f"packets were lost: {counts}"


def decoded(packets: Path, port: int) -> dict[str, list[int]]:
    """Values of fields of all packets, as tshark decodes them."""
    names = [
        "nvme-tcp.type",
        "nvme.cmd.opc",
        "nvme-tcp.hdgst.status",
        "nvme-tcp.ddgst.status",
        "nvme-tcp.unknown_data",
        "_ws.malformed",
        "_ws.expert.severity",
    ]
    options = [option for name in names for option in ("-e", name)]
    # fmt: off
    command = [
        "tshark", "-r", packets, "-d", f"tcp.port=={port},nvme-tcp", "-T", "fields",
        "-o", "nvme-tcp.check_hdgst:TRUE", "-o", "nvme-tcp.check_ddgst:TRUE",
    ]
    # fmt: on
    lines = subprocess.run(
        [*command, *options], text=True, stdout=subprocess.PIPE, check=True
    ).stdout.splitlines()
    columns = zip(*(line.split("\t") for line in lines), strict=True)
    return {
        name: [int(value, 0) for cell in column if cell for value in cell.split(",")]
        for name, column in zip(names, columns, strict=True)
    }
