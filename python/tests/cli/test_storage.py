"""`rowmill storage serve`: its settings, what it prints, metrics, and its end at SIGTERM. Hosts are tested in Rust."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_SETTINGS = """
listen = "127.0.0.1:0"
metrics = "127.0.0.1:0"
wire_memory = "32MiB"

[[subsystem]]
folder = "disk"
blocks = "1GiB"
any_host = "write"
"""


def _command(config: Path) -> list[str | Path]:
    return [sys.executable, "-m", "rowmill", "storage", "serve", "--config", config]


@contextmanager
def _node(config: Path) -> Generator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A node, and what it prints when it listens. It is killed at the end, if it still runs."""
    with subprocess.Popen(_command(config), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def _refused(config: Path) -> tuple[int, str]:
    found = subprocess.run(
        _command(config), capture_output=True, text=True, timeout=60, check=False
    )
    return found.returncode, found.stderr


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "node.toml"
    file.write_text(_SETTINGS)
    return file


def test_a_node_serves_until_sigterm_and_keeps_its_names(config: Path) -> None:
    with _node(config) as (process, ready):
        (url,) = ready["ready"]
        assert url.startswith("nvme+tcp://127.0.0.1:")
        name = url.rpartition("/")[2]
        with urllib.request.urlopen(f"http://{ready['metrics']}/metrics", timeout=10) as response:
            text = response.read().decode()
        assert f'rowmill_storage_reads_total{{subsystem="{name}"}} 0' in text
        assert "rowmill_storage_connections 0" in text
        with urllib.request.urlopen(f"http://{ready['metrics']}/healthz", timeout=10) as response:
            assert response.read() == b"ok\n"

        code, message = _refused(config)
        assert code == 1
        assert "disk" in message, "the folder is in use"

        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    with _node(config) as (process, ready):
        assert ready["ready"][0].endswith(name)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"write"', '"all"', "any_host"),
        ("1GiB", "1GB", "1GB"),
        ('listen = "127.0.0.1:0"', 'listen = "192.0.2.1:0"', "key_file"),
        ("wire_memory", "wire_memry", "wire_memry"),
    ],
)
def test_wrong_settings_are_named(config: Path, old: str, new: str, message: str) -> None:
    config.write_text(_SETTINGS.replace(old, new))
    code, text = _refused(config)
    assert code == 2
    assert message in text
