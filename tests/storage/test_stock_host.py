"""Stock Linux as a host of a storage node: Debian's kernel 6.1 and nvme-cli, in a virtual machine.

What could break: anything that the kernel or nvme-cli does and our own host does not. The guest discovers and connects, with
digests and without, reads identify data and logs, writes blocks through all its queues, frees some, and goes on after the
node was killed. Content is compared by checksums of the guest and of the node's disk. Nothing is simulated but the guest's
processor.
"""

from __future__ import annotations

import hashlib
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.storage.guest import HOST, Guest
from tests.storage.node import BLOCK_BYTES, Node, serving_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCKS = 65536
"""256 MiB, of which few are written."""
WRITTEN = 1024
"""Blocks that were there before the guest came."""
DEVICE = "/dev/nvme0n1"

FORMS = {"plain": "", "digests": "--hdr-digest --data-digest"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    content = random.Random(1).randbytes(WRITTEN * BLOCK_BYTES)
    with serving_blocks(tmp_path, blocks=BLOCKS, content=content) as started:
        yield started


@pytest.fixture(params=FORMS)
def disk(request: pytest.FixtureRequest, guest: Guest, node: Node) -> Iterator[Guest]:
    """The guest, connected with six queues: admin, two for reads, two for writes, one that is polled."""
    guest.run(
        f"nvme connect --transport=tcp --traddr={HOST} --trsvcid={node.port} --nqn={node.name} --reconnect-delay=1 "
        f"--nr-io-queues=2 --nr-write-queues=2 --nr-poll-queues=1 {FORMS[request.param]}"
    )
    guest.wait_for(f"test -b {DEVICE}")
    yield guest
    guest.run("grep -q /mnt /proc/mounts && umount /mnt; true")
    gone = guest.run(f"nvme disconnect --nqn={node.name}")
    assert "disconnected 1 controller(s)" in gone
    assert not guest.run("ls /sys/class/nvme"), guest.messages()


def ask(guest: Guest, command: str) -> Any:
    return json.loads(guest.run(f"nvme {command} --output-format=json"))


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_checksum(guest: Guest, first: int, count: int, block_bytes: int = BLOCK_BYTES) -> str:
    """Checksum of blocks as the guest reads them from the node, not from its memory."""
    read = f"dd if={DEVICE} bs={block_bytes} skip={first} count={count} iflag=direct 2>/dev/null"
    return guest.run(f"{read} | sha256sum").split()[0]


def test_discovery_names_the_node(guest: Guest, node: Node) -> None:
    found = ask(guest, f"discover --transport=tcp --traddr={HOST} --trsvcid={node.port}")
    (record,) = found["records"]
    assert record["subnqn"] == node.name
    assert (record["trtype"], record["adrfam"], record["subtype"]) == (
        "tcp",
        "ipv4",
        "nvme subsystem",
    )
    assert (record["traddr"], record["trsvcid"]) == ("127.0.0.1", str(node.port))
    assert not guest.run("ls /sys/class/nvme"), "the discovery controller is gone"


def test_identify_and_logs(disk: Guest, node: Node) -> None:
    controller = ask(disk, "id-ctrl /dev/nvme0")
    assert controller["mn"].strip() == "rowmill-storage-node"
    assert (controller["subnqn"], controller["cmic"], controller["nn"]) == (node.name, 0, 1)
    namespace = ask(disk, f"id-ns {DEVICE}")
    assert (namespace["nsze"], namespace["lbafs"][0]["ds"]) == (BLOCKS, 12)
    assert disk.run("cat /sys/block/nvme0n1/nguid").replace("-", "").strip() == namespace["nguid"]
    # The kernel takes the limits that the node gives: transfers of 512 KiB, and that freed blocks are zeros.
    assert disk.run("cat /sys/block/nvme0n1/queue/max_hw_sectors_kb").strip() == "512"
    assert disk.run("cat /sys/block/nvme0n1/queue/write_cache").strip() == "write back"
    assert disk.run("cat /sys/class/nvme/nvme0/queue_count").strip() == "6"
    assert int(ask(disk, "smart-log /dev/nvme0")["host_read_commands"]) > 0
    (effects,) = ask(disk, "effects-log /dev/nvme0 --csi=0")
    assert effects["io_cmd_set"].keys() >= {"IOCS_0 (Flush)", "IOCS_1 (Write)", "IOCS_2 (Read)"}
    for page in ("error-log", "fw-log", "changed-ns-list-log", "supported-log-pages"):
        disk.run(f"nvme {page} /dev/nvme0")
    assert "Number of Queues" in disk.run("nvme get-feature /dev/nvme0 --feature-id=7")
    assert "value: 460001" in disk.run("nvme get-property /dev/nvme0 --offset=0x14")


def test_blocks_are_equal_on_both_sides(disk: Guest, node: Node) -> None:
    old = node.content(0, WRITTEN)
    assert read_checksum(disk, 0, WRITTEN // 64, 64 * BLOCK_BYTES) == checksum(old)
    assert read_checksum(disk, 5, 3) == checksum(old[5 * BLOCK_BYTES : 8 * BLOCK_BYTES])
    # In capsules (4 KiB), by R2T (64 KiB), and larger than a transfer (1 MiB).
    for number, size in enumerate((4096, 65536, 1 << 20)):
        total = min(128 * size, 8 << 20)
        disk.run(f"head -c {total} /dev/urandom > new")
        new = disk.run("sha256sum new").split()[0]
        first = 4096 * (number + 1)
        seek = first * BLOCK_BYTES // size
        disk.run(f"dd if=new of={DEVICE} bs={size} seek={seek} oflag=direct conv=fsync,notrunc")
        assert checksum(node.content(first, total // BLOCK_BYTES)) == new
        assert read_checksum(disk, seek, total // size, size) == new
    assert checksum(node.content(0, WRITTEN)) == checksum(old), "nothing else was written"


def test_discarded_blocks_are_zeros(disk: Guest, node: Node) -> None:
    old = node.content(0, WRITTEN)
    disk.run(f"blkdiscard -o {10 * BLOCK_BYTES} -l {20 * BLOCK_BYTES} {DEVICE}")
    new = old[: 10 * BLOCK_BYTES] + bytes(20 * BLOCK_BYTES) + old[30 * BLOCK_BYTES :]
    assert checksum(node.content(0, WRITTEN)) == checksum(new)
    assert read_checksum(disk, 0, 40) == checksum(new[: 40 * BLOCK_BYTES])
    disk.run(f"blkdiscard {DEVICE}")
    assert not any(node.content(0, WRITTEN))


def test_many_processes_write_through_all_queues(disk: Guest, node: Node) -> None:
    writers = range(8)
    disk.run("for i in $(seq 8); do head -c 1048576 /dev/urandom > part$i; done")
    parallel = "; ".join(
        f"taskset {1 << writer % 2} dd if=part{writer + 1} of={DEVICE} bs={8192 << writer % 4} "
        f"seek={(writer << 20) // (8192 << writer % 4)} oflag=direct conv=notrunc &"
        for writer in writers
    ).replace("&;", "&")
    disk.run(f"{parallel} wait")
    expected = [line.split()[0] for line in disk.run("sha256sum part?").splitlines()]
    parts = [node.content(256 * writer, 256) for writer in writers]
    assert [checksum(part) for part in parts] == expected
    assert [read_checksum(disk, writer, 1, 1 << 20) for writer in writers] == expected


def test_refused_commands_have_their_status(disk: Guest, node: Node) -> None:
    status, output = disk.try_run(
        f"nvme read {DEVICE} -s {BLOCKS} -c 0 -z {BLOCK_BYTES} -d /tmp/read"
    )
    assert status != 0
    assert "LBA Out of Range" in output
    status, output = disk.try_run("nvme io-passthru /dev/nvme0n1 --namespace-id=1 --opcode=0x93")
    assert status != 0
    assert "Invalid Command Opcode" in output
    status, output = disk.try_run("nvme get-log /dev/nvme0 --log-id=0x70 --log-len=512")
    assert status != 0
    assert "Invalid Log Page" in output
    other = node.name.replace("uuid:", "uuid:f")[:-1]
    connect = f"nvme connect --transport=tcp --traddr={HOST} --trsvcid={node.port} --nqn={other}"
    assert disk.try_run(connect)[0] != 0
    # None of them hurt the connection, and a reset makes a new one.
    assert read_checksum(disk, 0, 8) == checksum(node.content(0, 8))
    disk.run("nvme reset /dev/nvme0")
    assert read_checksum(disk, 0, 8) == checksum(node.content(0, 8))
    assert "creating 5 I/O queues" in disk.run("dmesg | tail -n 5")


def test_acknowledged_writes_outlive_killed_nodes(disk: Guest, node: Node) -> None:
    # Each part is written until the node acknowledges it. While the connection is lost, the kernel lets most commands wait;
    # a few fail, as it sends a command five more times at most, without pauses, on a socket that is closed already.
    disk.run("head -c 8388608 /dev/urandom > new; echo 0 > progress")
    copy = f"dd if=new of={DEVICE} bs=65536 skip=$i seek=$i count=1 oflag=direct conv=notrunc"
    again = f"until {copy} 2>/dev/null; do sleep 0.1; done"
    disk.run(
        f"(for i in $(seq 0 127); do {again}; echo $i > progress; done; echo done >> progress) &"
    )
    for reached in (20, 60):
        disk.wait_for(f"test $(head -n 1 progress) -ge {reached}")
        node.kill()
        disk.wait_for("grep -q connecting /sys/class/nvme/nvme0/state")
        node.start()
        disk.wait_for("grep -q live /sys/class/nvme/nvme0/state")
    disk.wait_for("grep -q done progress")
    new = disk.run("sha256sum new").split()[0]
    assert checksum(node.content(0, 2048)) == new
    assert read_checksum(disk, 0, 128, 65536) == new


def test_a_file_system_keeps_its_files(disk: Guest, node: Node) -> None:
    disk.run(f"mke2fs -b 4096 {DEVICE} && mkdir -p /mnt && mount {DEVICE} /mnt")
    disk.run("for i in $(seq 20); do head -c 300000 /dev/urandom > /mnt/$i; done; sync")
    expected = disk.run("cat /mnt/? /mnt/1? | sha256sum")
    disk.run("rm /mnt/20; fstrim /mnt; umount /mnt")
    node.kill()
    disk.wait_for("grep -q connecting /sys/class/nvme/nvme0/state")
    node.start()
    disk.run(f"mount {DEVICE} /mnt")
    assert disk.run("cat /mnt/? /mnt/1? | sha256sum") == expected
