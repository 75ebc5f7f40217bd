"""Small file systems, where this process may mount them."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@contextmanager
def mounted(arguments: list[str], at: Path) -> Generator[Path]:
    at.mkdir()
    done = subprocess.run(["mount", *arguments, str(at)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(
            f"no small disk: mounting needs rights this process lacks ({done.stderr.strip()})"
        )
    try:
        yield at
    finally:
        # A closed store keeps its files open until it is garbage-collected, so unmount lazily.
        subprocess.run(["umount", "--lazy", str(at)], check=True)


@contextmanager
def small_disk(kind: str, folder: Path, megabytes: int) -> Generator[Path]:
    if shutil.which("mount") is None:
        pytest.skip("no small disk: there is no mount command")
    if kind == "tmpfs":
        arguments = ["-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs"]
    else:
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("no small disk: there is no mkfs.ext4 command")
        image = folder / "image"
        with image.open("wb") as file:
            file.truncate(megabytes << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True, capture_output=True)
        arguments = ["-o", "loop", str(image)]
    with mounted(arguments, folder / "disk") as disk:
        yield disk
