"""Limit the memory of a process, including its page cache, with a control group (cgroup v1)."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup/memory")


class MemoryGroup:
    """A memory control group."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def command(self, command: list[str]) -> list[str]:
        """The command wrapped so that it starts inside the group."""
        return [
            "sh",
            "-c",
            'echo $$ > "$0" && exec "$@"',
            str(self._folder / "cgroup.procs"),
            *command,
        ]

    @property
    def most_bytes(self) -> int:
        """Peak memory of the group in bytes."""
        return int((self._folder / "memory.max_usage_in_bytes").read_text())


@contextmanager
def memory_group(name: str, limit: int) -> Generator[MemoryGroup]:
    """A group with a memory limit in bytes for one process, which must end before the block is left."""
    folder = MOUNT / f"rowmill-{name}-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(limit))
    except OSError as error:
        raise SystemExit(
            f"cannot create {folder}: {error} (cgroup v1 with the memory controller and root are required)"
        ) from None
    try:
        yield MemoryGroup(folder)
    finally:
        folder.rmdir()
