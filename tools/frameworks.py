"""A folder with TorchRec, PyKEEN and PyTorch Geometric, for processes that have it on their PYTHONPATH.

Nothing of rowmill needs them. Tests and benchmarks that meet the real packages find them here, over the torch that is
installed; the folder is made once per lock (some seconds, 220 MB). After a change of `packages.in`, in its folder:

    uv pip compile packages.in --no-deps --universal --generate-hashes --no-emit-index-url --output-file packages.lock

    .venv/bin/python tools/frameworks.py    # makes the folder if need be, and prints where it is
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).parents[1] / "python/tests/frameworks/packages.lock"


def frameworks_folder() -> Path:
    """Where the packages of the lock are; installs them if they are not there.

    Raises:
        RuntimeError: They cannot be installed here.
    """
    content = LOCK.read_bytes() + sys.version.encode()
    folder = Path(sys.prefix) / f"frameworks-{hashlib.sha256(content).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
    command = ["uv", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--python", sys.executable, "--target", str(unfinished), "--requirement", str(LOCK)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    run = subprocess.run(
        command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    if run.returncode != 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise RuntimeError(run.stderr.strip())
    unfinished.replace(folder)
    return folder


if __name__ == "__main__":
    print(frameworks_folder())
