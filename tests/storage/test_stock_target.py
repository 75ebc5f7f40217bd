"""Our host on a target that is not ours: nvmet-tcp of Debian's kernel 6.1, in a virtual machine.

What could break: what our node does and another target does not: other limits (nvmet has none for transfers, and takes data
in capsules up to 16 KiB), blocks of 512 bytes, memory that it does not zero. A volume on the guest's disk must pass the checks
of every volume. Random blocks are compared in our host, and by the checksum of the guest's file.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from python.tests.programs import built_example

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.storage.guest import Guest

NAME = "nqn.2014-08.org.nvmexpress:uuid:6a4b2f0e-0000-4000-8000-000000000001"
NVMET = "/sys/kernel/config/nvmet"
SUBSYSTEM = f"{NVMET}/subsystems/{NAME}"

BACKINGS = {
    # Blocks of 4 KiB. A file in memory needs buffered I/O.
    "file": "echo 1 > $namespace/buffered_io; echo -n /tmp/disk > $namespace/device_path",
    # Blocks of 512 bytes.
    "device": "losetup /dev/loop0 /tmp/disk; echo -n /dev/loop0 > $namespace/device_path",
}


@pytest.fixture(scope="session")
def check_target() -> Path:
    """The program that checks volumes and blocks."""
    return built_example("check_target")


@pytest.fixture
def target(request: pytest.FixtureRequest, guest: Guest) -> Iterator[Guest]:
    """The guest, which exports a file of 64 MiB on its port 4420."""
    guest.run("truncate -s 64M /tmp/disk")
    guest.run(
        f"mkdir {SUBSYSTEM}; echo 1 > {SUBSYSTEM}/attr_allow_any_host; "
        f"namespace={SUBSYSTEM}/namespaces/1; mkdir $namespace; {BACKINGS[request.param]}; echo 1 > $namespace/enable"
    )
    guest.run(
        f"mkdir {NVMET}/ports/1; cd {NVMET}/ports/1; echo tcp > addr_trtype; echo ipv4 > addr_adrfam; "
        f"echo 0.0.0.0 > addr_traddr; echo 4420 > addr_trsvcid; ln -s {SUBSYSTEM} subsystems/"
    )
    yield guest
    guest.run(f"rm {NVMET}/ports/1/subsystems/{NAME}; rmdir {NVMET}/ports/1")
    guest.run(
        f"rmdir {SUBSYSTEM}/namespaces/1 {SUBSYSTEM}; losetup -d /dev/loop0 2>/dev/null; rm /tmp/disk"
    )


@pytest.mark.parametrize(
    ("target", "form"), [("file", "plain"), ("device", "digests")], indirect=["target"]
)
def test_our_volume_works_and_blocks_are_equal_on_both_sides(
    target: Guest, check_target: Path, form: str
) -> None:
    url = f"nvme+tcp://127.0.0.1:{target.target_port}/{NAME}"
    ran = subprocess.run(
        [check_target, url, form, "1"], capture_output=True, text=True, timeout=200
    )
    assert ran.returncode == 0, f"{ran.stderr}\n{target.messages()}"
    assert target.run("sync; sha256sum /tmp/disk").split()[0] == ran.stdout.strip()
