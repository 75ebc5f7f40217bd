"""Keys as nvme-cli makes them, for each hash.

What could break: a key of a length or a checksum that only our own programs write. The kernel of the guest is built without
authentication, so our host proves the keys.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.storage.node import serving_filled_rows

if TYPE_CHECKING:
    from pathlib import Path

    from tests.storage.guest import Guest

HOST_NAME = "nqn.2014-08.org.nvmexpress:uuid:001132ff-4142-4344-4546-4748494a0102"


@pytest.mark.parametrize("hash_number", range(4))
def test_our_host_proves_a_key_of_nvme_cli(guest: Guest, tmp_path: Path, hash_number: int) -> None:
    command = f"nvme gen-dhchap-key --hmac={hash_number} --nqn={HOST_NAME}"
    for name in ("host.key", "other.key"):
        (tmp_path / name).write_text(guest.run(command))
        (tmp_path / name).chmod(0o600)
    access = f"""
        [[subsystem.host]]
        nqn = "{HOST_NAME}"
        role = "read"
        key_file = "host.key"
    """
    with serving_filled_rows(tmp_path, access=access) as node:
        url = f"nvme+tcp://127.0.0.1:{node.port}/{node.name}"
        proved = status(url, tmp_path, "host.key")
        assert proved.returncode == 0, proved.stderr
        refused = status(url, tmp_path, "other.key")
        assert refused.returncode == 1
        assert "refused authentication" in refused.stderr


def status(url: str, folder: Path, key_file: str) -> subprocess.CompletedProcess[str]:
    access = folder / "access.toml"
    access.write_text(f'nqn = "{HOST_NAME}"\nkey_file = "{key_file}"\n')
    return subprocess.run(
        [sys.executable, "-m", "rowmill", "storage", "status", url, "--access", access],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
