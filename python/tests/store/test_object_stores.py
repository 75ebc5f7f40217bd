"""Checkpoints at `gs://` and `az://`: the same calls as for `s3://`, with the protocols of Google Cloud Storage and Azure.

What could break: a URL scheme that is parsed but not usable, listings of several pages, batch deletions, two writers that
both succeed in creating the same object, and errors without the URL.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import rowmill
from python.tests.object_server import AzureHandler, GoogleHandler, ObjectServer, serving
from rowmill.errors import RemoteConflict, RemoteError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IDS = np.arange(2000)


@pytest.fixture(params=["gs", "az"])
def place(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, ObjectServer]]:
    """A URL, and the server that the environment maps it to."""
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "AZURE_", "AZURITE"))]:
        monkeypatch.delenv(name)
    with serving({"gs": GoogleHandler, "az": AzureHandler}[request.param]) as server:
        if request.param == "gs":
            key: dict[str, Any] = {"gcs_base_url": server.address, "disable_oauth": True}
            key |= dict.fromkeys(("private_key", "private_key_id", "client_email"), "none")
            monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(key))
            monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
        else:
            monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
            monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", server.address)
        yield f"{request.param}://bucket/runs/first", server


def train(folder: Path, steps: int) -> bytes:
    """Train and checkpoint a store; returns its rows."""
    with rowmill.open(folder, memory="32MiB", row_memory="256KiB") as store:
        table = store.table("rows", dim=8, optimizer=rowmill.optim.Adagrad(lr=0.5))
        for step in range(steps):
            table.rmw(IDS, np.full((len(IDS), 8), step + 1, np.float32))
        store.checkpoint()
        return content(table)


def content(table: rowmill.Table) -> bytes:
    return table.get(IDS).tobytes() + table.get_state(IDS).tobytes()


def content_at(folder: Path) -> bytes:
    with rowmill.open(folder, memory="32MiB", read_only=True) as store:
        return content(store.open_table("rows"))


def push(folder: Path, url: str, **options: Any) -> None:
    with rowmill.open(folder, memory="32MiB", row_memory="256KiB") as store:
        store.push(url, **options)


def test_checkpoints_are_pushed_and_restored(
    place: tuple[str, ObjectServer], tmp_path: Path
) -> None:
    url, server = place
    for number in (1, 2, 3):
        expected = train(tmp_path / "store", number)
        push(tmp_path / "store", url)
        assert [found["epoch"] for found in rowmill.checkpoints(url)] == list(range(1, number + 1))
    rowmill.restore(url, tmp_path / "back")
    assert content_at(tmp_path / "back") == expected
    # A page of the listing has three objects.
    assert server.requests["list"] > 3
    before = len(server.objects)
    train(tmp_path / "store", 1)
    push(tmp_path / "store", url, keep=1)
    assert [found["epoch"] for found in rowmill.checkpoints(url)] == [4]
    assert server.requests["delete"] > 0
    assert len(server.objects) < before


def test_another_store_is_refused(place: tuple[str, ObjectServer], tmp_path: Path) -> None:
    url, server = place
    train(tmp_path / "one", 1)
    train(tmp_path / "other", 2)
    push(tmp_path / "one", url)
    before = dict(server.objects)
    with pytest.raises(RemoteConflict):
        push(tmp_path / "other", url)
    assert server.objects == before


def test_an_error_of_the_server_names_the_url(
    place: tuple[str, ObjectServer], tmp_path: Path
) -> None:
    url, server = place
    train(tmp_path / "store", 1)
    server.refuses = True
    with pytest.raises(RemoteError, match=f"{url}.*403"):
        push(tmp_path / "store", url)
    assert server.objects == {}
