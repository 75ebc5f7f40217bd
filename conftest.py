"""Of all tests: Triton's interpreter where there is no GPU, processes that are forked, and the order of files."""

import gc
import os
import signal
import sys

import pytest
import torch

from python.tests.warm import warm_python

# Triton looks at them when it is first imported, and so before any module of tests is.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
# What it would choose anyway, with a warning.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
# Background jobs of a script ignore SIGINT, and so would all processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that the code under test starts with `sys.executable` are forked, with modules imported."""
    monkeypatch.setattr(sys, "executable", warm_python())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow files first, so that workers which share the files (`-n 2 --dist loadfile`) end at the same time."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """Spare garbage collections the modules and the list of tests."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Undo the freeze: at the exit, some modules report frozen objects as leaks."""
    gc.unfreeze()
