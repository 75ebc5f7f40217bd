"""A folder with TorchRec, PyKEEN and PyTorch Geometric, for processes that have it on their PYTHONPATH.

Nothing of rowmill needs them. Tests and benchmarks that meet the real packages find them here, over the torch that is
installed; the folder is made once per lock (some seconds, 220 MB). After a change of `packages.in`, in its folder:

    uv pip compile packages.in --no-deps --universal --generate-hashes --no-emit-index-url --output-file packages.lock

    .venv/bin/python tools/frameworks.py    # makes the folder if need be, and prints where it is
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.locked import locked_folder

LOCK = Path(__file__).parents[1] / "python/tests/integrations/packages.lock"


def frameworks_folder() -> Path:
    """Where the packages of the lock are; installs them if they are not there.

    Raises:
        RuntimeError: They cannot be installed here.
    """
    return locked_folder("frameworks", LOCK)


if __name__ == "__main__":
    print(frameworks_folder())
