"""A virtual machine with Debian's kernel 6.1 and nvme-cli, under software emulation, that takes shell commands."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.storage.initramfs import initramfs, kernel

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

QEMU = "qemu-system-x86_64"
BOOT_S = 180.0
COMMAND_S = 120.0
"""Longest waits, for a machine with much other load: a boot takes 10 s without it."""
LIFE_S = 1200
"""A guest ends after this time even if the tests were killed."""
HOST = "10.0.2.2"
"""In the guest, the address of this machine's loopback."""


class Guest:
    """A running guest. Commands go to its second serial port; the first has messages of the kernel."""

    def __init__(self, connection: socket.socket, log: Path, target_port: int) -> None:
        self._connection = connection
        self._log = log
        self._unread = b""
        self.target_port = target_port
        """Port on this machine's loopback that leads to port 4420 of the guest."""

    def try_run(self, command: str, *, timeout_s: float = COMMAND_S) -> tuple[int, str]:
        """Run a shell command of one line. Returns its exit status and output."""
        assert "\n" not in command, "the guest reads one line per command"
        self._connection.sendall(command.encode() + b"\n")
        output = self._until(b"\x1e", timeout_s, command)
        status = self._until(b"\n", timeout_s, command)
        return int(status), output.decode(errors="replace").replace("\r\n", "\n")

    def run(self, command: str, *, timeout_s: float = COMMAND_S) -> str:
        """Run a shell command that must succeed. Returns its output."""
        status, output = self.try_run(command, timeout_s=timeout_s)
        assert status == 0, f"{command}: status {status}\n{output}\n{self.messages()}"
        return output

    def wait_for(self, condition: str, *, timeout_s: float = COMMAND_S) -> None:
        """Wait until a shell command succeeds."""
        tenths = round(timeout_s * 10)
        loop = f"for i in $(seq {tenths}); do {condition} && exit 0; sleep 0.1; done; exit 1"
        self.run(loop, timeout_s=2 * timeout_s)

    def messages(self) -> str:
        """The last messages of the guest's kernel."""
        return self._log.read_text(errors="replace")[-4000:]

    def _until(self, end: bytes, timeout_s: float, command: str) -> bytes:
        deadline = time.monotonic() + timeout_s
        while end not in self._unread:
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"{command}: no end after {timeout_s} s\n{self.messages()}"
            self._connection.settimeout(left_s)
            try:
                received = self._connection.recv(1 << 16)
            except TimeoutError:
                continue
            assert received, f"{command}: the guest ended\n{self.messages()}"
            self._unread += received
        result, _, self._unread = self._unread.partition(end)
        return result


@contextmanager
def booted(folder: Path, programs: dict[str, Path]) -> Generator[Guest]:
    """Boot a guest with `programs`. Its files and the log of its kernel are in `folder`."""
    assert shutil.which(QEMU), f"{QEMU} is missing: run tools/storage.sh"
    archive, log = folder / "initramfs", folder / "kernel.log"
    archive.write_bytes(initramfs(programs))
    log.touch()
    target_port = free_port()
    listener = socket.create_server(("127.0.0.1", 0))
    # fmt: off
    command = [
        "timeout", "--kill-after=5", str(LIFE_S),
        QEMU, "-accel", "tcg,thread=multi", "-machine", "q35", "-cpu", "max", "-smp", "2", "-m", "512",
        "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
        "-kernel", str(kernel()), "-initrd", str(archive),
        # On a busy machine the timer ticks late, which the kernel takes for a broken one.
        "-append", "console=ttyS0 panic=-1 quiet no_timer_check",
        "-serial", f"file:{log}",
        "-serial", f"tcp:127.0.0.1:{listener.getsockname()[1]}",
        "-netdev", f"user,id=net,hostfwd=tcp:127.0.0.1:{target_port}-:4420",
        "-device", "virtio-net-pci,netdev=net,romfile=",
    ]
    # fmt: on
    with listener, subprocess.Popen(command) as process:
        try:
            listener.settimeout(BOOT_S)
            connection, _ = listener.accept()
            with connection:
                guest = Guest(connection, log, target_port)
                started = guest._until(b"ready\n", BOOT_S, "boot")  # pyright: ignore[reportPrivateUsage]
                assert b"no module" not in started, started.decode()
                yield guest
        finally:
            process.terminate()


def free_port() -> int:
    """A port of loopback that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]
