"""One guest for all tests of storage, as it takes seconds to boot."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.guest import Guest, booted


@pytest.fixture(scope="session")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """A guest that has connected to nothing."""
    folder = tmp_path_factory.mktemp("guest")
    program, source = folder / "pool", Path(__file__).with_name("pool.c")
    warnings = ["-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        ["cc", "-std=gnu11", "-O1", *warnings, "-static", "-o", program, source], check=True
    )
    with booted(folder, {"pool": program}) as running:
        yield running
