"""Storage nodes on loopback, which serve the rows of a store."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

HOST = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001"
KEY = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:"
OTHER_KEY = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:"


@contextmanager
def serving(
    store: Path,
    folder: Path,
    *,
    port: int = 0,
    with_key: bool = False,
    own_key: str | None = None,
) -> Generator[tuple[str, subprocess.Popen[str]]]:
    """A node over a store, its files in `folder`: the URL of the rows, and the process, which is killed at the end.

    With `with_key`, `HOST` must prove `KEY`. The node proves `own_key` to hosts that ask for it.
    """
    folder.mkdir(exist_ok=True)
    (folder / "host.key").write_text(KEY)
    own = ""
    if own_key is not None:
        (folder / "node.key").write_text(own_key)
        own = 'key_file = "node.key"\n'
    hosts = f'[[subsystem.host]]\nnqn = "{HOST}"\nrole = "read"\nkey_file = "{folder}/host.key"'
    config = folder / "node.toml"
    config.write_text(
        f'listen = "127.0.0.1:{port}"\nmetrics = "127.0.0.1:0"\nwire_memory = "64MiB"\n[[subsystem]]\n'
        f'folder = "{folder}/names"\nstore = "{store}"\nmemory = "32MiB"\n'
        + own
        + (hosts if with_key else 'any_host = "read"')
    )
    command = [sys.executable, "-m", "rowmill", "storage", "serve", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            (url,) = json.loads(process.stdout.readline())["ready"]
            yield url, process
        finally:
            process.kill()


def access_file(folder: Path, key: str, *, node_key: str | None = None) -> Path:
    """A file for `rowmill.open(access=)`. With `node_key`, the node must prove it."""
    folder.mkdir(exist_ok=True)
    (folder / "key").write_text(key + "\n")
    file = folder / "access.toml"
    text = f'nqn = "{HOST}"\nkey_file = "key"\n'
    if node_key is not None:
        (folder / "node.key").write_text(node_key + "\n")
        text += 'controller_key_file = "node.key"\n'
    file.write_text(text)
    return file
