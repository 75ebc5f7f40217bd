"""Folders with packages that only some tests and benchmarks meet, for processes that have them on their PYTHONPATH.

A folder is made once per lock, over the Python that runs, and lies beside the packages of the development environment.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path


def locked_folder(name: str, lock: Path) -> Path:
    """Where the packages of a lock are; installs them if they are not there.

    Raises:
        RuntimeError: They cannot be installed here.
    """
    content = lock.read_bytes() + sys.version.encode()
    folder = Path(sys.prefix) / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
    command = ["uv", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--python", sys.executable, "--target", str(unfinished), "--requirement", str(lock)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    run = subprocess.run(
        command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    if run.returncode != 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise RuntimeError(run.stderr.strip())
    unfinished.replace(folder)
    return folder


def with_folder(folder: Path) -> str:
    """The PYTHONPATH of this process, and such a folder behind it."""
    return os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(folder)]))
