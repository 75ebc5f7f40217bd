"""One guest for all tests of storage, as it takes seconds to boot."""

from collections.abc import Iterator

import pytest

from tests.storage.guest import Guest, booted


@pytest.fixture(scope="session")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """A guest that has connected to nothing."""
    with booted(tmp_path_factory.mktemp("guest"), {}) as running:
        yield running
