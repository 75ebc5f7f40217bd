"""The root file system of the guest: BusyBox, nvme-cli, modules of Debian's kernel, and programs of a test.

It is an archive in the format `newc` of cpio (Linux, Documentation/driver-api/early-userspace/buffer-format.rst), which
the kernel unpacks into memory. All parts are unpacked Debian packages (`tools/storage.sh`).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

UNPACKED = Path(__file__).parents[2] / ".tools/guest"
"""Debian packages of the guest, unpacked."""

# fmt: off
MODULES = [
    "virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci",
    "failover", "net_failover", "virtio_net",
    "nvme-fabrics", "nvme-tcp",
    "configfs", "nvmet", "nvmet-tcp", "loop",
]
# fmt: on
"""Modules in the order of their dependencies, which the package does not list."""

ADDRESS = "10.0.2.15"
"""Of the guest. QEMU's user network answers at 10.0.2.2 for loopback of this machine."""

INIT = f"""#!/bin/busybox sh
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /tmp /etc/nvme
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mount -t tmpfs none /tmp
for module in {" ".join(MODULES)}; do
    insmod /modules/$module.ko || echo "no module $module" > /dev/ttyS1
done
mount -t configfs none /sys/kernel/config
ip link set lo up
ip link set eth0 up
ip address add {ADDRESS}/24 dev eth0
ip route add default via 10.0.2.2
cd /tmp
# One command per line. Its output ends with a separator and the exit status.
stty -F /dev/ttyS1 raw -echo
exec < /dev/ttyS1 > /dev/ttyS1 2>&1
printf 'ready\\n'
while IFS= read -r line; do
    (eval "$line") < /dev/null
    printf '\\036%d\\n' $?
done
"""


def kernel() -> Path:
    """Debian's kernel for virtual machines."""
    return _only("boot/vmlinuz-*")


def initramfs(programs: dict[str, Path]) -> bytes:
    """The archive, with `programs` in `/bin`, by name. They are linked statically."""
    modules = {path.name: path for path in _only("lib/modules/*").rglob("*.ko")}
    nvme = UNPACKED / "usr/sbin/nvme"
    files = {"bin/busybox": _only("bin/busybox"), "bin/nvme": nvme}
    files |= {f"modules/{name}.ko": modules[f"{name}.ko"] for name in MODULES}
    files |= _libraries(nvme)
    files |= {f"bin/{name}": path for name, path in programs.items()}
    entries = [("init", 0o100755, INIT.encode())]
    folders = {str(parent) for name in files for parent in Path(name).parents} - {"."}
    entries = [(folder, 0o040755, b"") for folder in sorted(folders)] + entries
    entries += [(name, 0o100755, path.read_bytes()) for name, path in files.items()]
    return b"".join(_entry(*entry) for entry in [*entries, ("TRAILER!!!", 0, b"")])


def _entry(name: str, mode: int, content: bytes) -> bytes:
    # Inode, mode, user, group, links, time, size, device and special device (2 each), size of the name, checksum.
    fields = [0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0]
    header = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return header + bytes(-len(header) % 4) + content + bytes(-len(content) % 4)


def _libraries(program: Path) -> dict[str, Path]:
    """Shared libraries of a program by where it looks for them."""
    environment = os.environ | {"LD_LIBRARY_PATH": str(UNPACKED / "usr/lib/x86_64-linux-gnu")}
    listed = subprocess.run(
        ["ldd", program], env=environment, text=True, capture_output=True, check=True
    ).stdout
    assert "not found" not in listed, f"{program} lacks libraries:\n{listed}"
    paths = [Path(word) for word in listed.split() if word.startswith("/")]
    # The dynamic linker finds all in one folder, itself by its full name.
    return {
        str(path).lstrip("/") if path.name.startswith("ld-") else f"lib/{path.name}": path
        for path in paths
    }


def _only(pattern: str) -> Path:
    found = sorted(UNPACKED.glob(pattern))
    assert len(found) == 1, f"{UNPACKED} has {len(found)} of {pattern}, not 1: run tools/storage.sh"
    return found[0]
