"""The command `rowmill`, with a thread that says how many objects a full garbage collection visits in a ready worker."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from pathlib import Path

from python.tests.serve import pausing
from rowmill.cli.command import main

__all__ = ["pausing"]  # Its operator is registered by the import.


COUNTS_FROM = "ROWMILL_TEST_COUNTS_FROM"
"""Names a file: objects are counted once it exists."""


def _count() -> None:
    # The list of all objects holds tuples that another thread still builds: Python refuses to resize those then.
    while not Path(os.environ[COUNTS_FROM]).exists():
        time.sleep(0.05)
    print(f"collected objects: {len(gc.get_objects())}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    threading.Thread(target=_count, daemon=True).start()
    sys.exit(main())
