"""Shared fixtures: an empty store, real and generated data, configurations of runs, and a process from which runs are forked."""

import os
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

import rowmill
from python.tests.train.configs import Make
from python.tests.warm import fork_server
from rowmill.config import Config, load_config
from rowmill.ctr.data.generate import generate


@pytest.fixture
def store(tmp_path: Path) -> Iterator[rowmill.Store]:
    with rowmill.open(tmp_path / "store", memory="64MiB", wait_deadline_s=2.0) as opened:
        yield opened


@pytest.fixture
def shared_data() -> Path:
    """Real data that is not part of the repository."""
    root = Path(os.environ.get("ROWMILL_DATA", Path(__file__).parents[3] / "shared/data"))
    if not root.is_dir():
        pytest.skip(f"no real data in {root}: set ROWMILL_DATA to its folder")
    return root


@pytest.fixture(scope="session")
def server() -> ForkServerContext:
    """A fork server that has imported the modules of the command."""
    return fork_server()


@pytest.fixture(scope="module")
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A click log generated from the module's `LOG`."""
    folder = tmp_path_factory.mktemp("log")
    generate(folder, request.module.LOG)
    return folder


@pytest.fixture
def make(request: pytest.FixtureRequest, log: Path, tmp_path: Path) -> Make:
    """Configurations of runs on the log, with the module's `SETTINGS`."""

    def make_config(name: str = "run", **flags: Any) -> Config:
        values: dict[tuple[str, str], Any] = {
            ("data", "path"): log,
            ("train", "out"): tmp_path / name,
            ("train", "threads"): 1,
            ("store", "memory"): "256MiB",
        }
        for key, value in {**request.module.SETTINGS, **flags}.items():
            section, _, entry = key.partition("__")
            values[section, entry] = value
        return load_config(None, values)

    return make_config
