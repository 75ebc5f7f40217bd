"""The command `rowmill`, with a thread that says how many objects a full garbage collection visits."""

from __future__ import annotations

import gc
import sys
import threading
import time

from python.tests.serve import pausing
from rowmill.cli.command import main

__all__ = ["pausing"]  # Its operator is registered by the import.


def _count() -> None:
    while True:
        time.sleep(0.2)
        print(f"collected objects: {len(gc.get_objects())}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    threading.Thread(target=_count, daemon=True).start()
    sys.exit(main())
