"""Collections of the real TorchRec, which lives in a folder of its own and is imported in a process of its own.

The folder is made once per lock, from the locked packages, and holds what TorchRec needs beside the torch that is
installed: 36 MB. After a change of `packages.in`:

    uv pip compile packages.in --no-deps --universal --generate-hashes --no-emit-index-url --output-file packages.lock
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "torchrec"
LOCK = HERE / "packages.lock"


@pytest.fixture(scope="module")
def torchrec_folder() -> Path:
    content = LOCK.read_bytes() + sys.version.encode()
    folder = Path(sys.prefix) / f"torchrec-{hashlib.sha256(content).hexdigest()[:12]}"
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
        pytest.skip(f"TorchRec cannot be installed here: {run.stderr.strip()}")
    unfinished.replace(folder)
    return folder


def test_collections_of_torchrec(torchrec_folder: Path) -> None:
    """Every case of `torchrec/cases.py`; what fails there is printed here."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore"]
    run = subprocess.run(
        [*command, str(HERE / "cases.py")],
        env={**os.environ, "PYTHONPATH": str(torchrec_folder), "ROWMILL_TORCHREC": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_rowmill_never_imports_torchrec(torchrec_folder: Path) -> None:
    program = "import sys, rowmill, rowmill.cli, rowmill.train; print('torchrec' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(torchrec_folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "False\n"
