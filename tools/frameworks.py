"""A folder with TorchRec, PyKEEN and PyTorch Geometric, to put on a PYTHONPATH.

rowmill itself does not need them. Tests and benchmarks with the real packages use this folder together with the installed
torch. It is created once per lock file (some seconds, 220 MB). After a change of `packages.in`, run in its folder:

    uv pip compile packages.in --no-deps --universal --generate-hashes --no-emit-index-url --output-file packages.lock

    .venv/bin/python tools/frameworks.py    # creates the folder if missing, and prints its path
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.locked import locked_folder

LOCK = Path(__file__).parents[1] / "python/tests/integrations/packages.lock"


def frameworks_folder() -> Path:
    """The folder with the locked packages; installs them if missing.

    Raises:
        RuntimeError: The packages cannot be installed.
    """
    return locked_folder("frameworks", LOCK)


if __name__ == "__main__":
    print(frameworks_folder())
