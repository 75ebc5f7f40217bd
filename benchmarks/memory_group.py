"""A limit of the kernel on the memory of a process, its page cache included: a control group of version 1."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup/memory")


class MemoryGroup:
    """A control group."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def command(self, command: list[str]) -> list[str]:
        """The command, so that it starts within the group."""
        return [
            "sh",
            "-c",
            'echo $$ > "$0" && exec "$@"',
            str(self._folder / "cgroup.procs"),
            *command,
        ]

    @property
    def most_bytes(self) -> int:
        """The most that the group ever held."""
        return int((self._folder / "memory.max_usage_in_bytes").read_text())


@contextmanager
def memory_group(name: str, limit: int) -> Generator[MemoryGroup]:
    """A group for one process, which must have ended when the block is left."""
    folder = MOUNT / f"rowmill-{name}-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(limit))
    except OSError as error:
        raise SystemExit(
            f"{folder} cannot be made: {error} (cgroup v1 with the memory controller, and root, are needed)"
        ) from None
    try:
        yield MemoryGroup(folder)
    finally:
        folder.rmdir()
