"""Folders with packages that only some tests and benchmarks need, to put on a PYTHONPATH.

A folder is created once per lock file and Python version, inside the development environment.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path


def locked_folder(name: str, lock: Path) -> Path:
    """The folder with the packages of a lock file; installs them if missing.

    Raises:
        RuntimeError: The packages cannot be installed.
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
    """The PYTHONPATH of this process with `folder` appended."""
    return os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(folder)]))
