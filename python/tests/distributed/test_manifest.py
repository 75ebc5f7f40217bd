"""Files of a checkpoint are replaced atomically.

What could break: on a full disk a partial file replaces a complete one, or remains next to it and uses up the disk.
"""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import pytest

from rowmill.distributed._checkpoint.manifest import write_durable

if TYPE_CHECKING:
    from pathlib import Path


def test_a_failed_write_leaves_the_old_file_and_no_partial_one(tmp_path: Path) -> None:
    path = tmp_path / "state-1.pt"
    write_durable(path, b"before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_durable(path, bytes(1 << 17))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]
