"""Large tensors of consecutive steps reuse the same memory, and so do those of threads."""

import os
import platform
import subprocess
import sys

import pytest

from rowmill.train.allocator import ARENAS_MAX

_FAULTS = """
import resource, sys
import torch
from rowmill.train.allocator import keep_freed_memory

def fill() -> None:
    for _ in range(3):
        torch.ones(16 << 20)

if sys.argv[1] == "kept":
    assert keep_freed_memory()
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

_ARENAS = """
import ctypes, threading
import torch
from rowmill.train.allocator import keep_freed_memory

assert keep_freed_memory()
done = threading.Event()
began = threading.Barrier(21)

def fill() -> None:
    torch.ones(1000)
    began.wait()
    done.wait()

threads = [threading.Thread(target=fill) for _ in range(20)]
for thread in threads:
    thread.start()
began.wait()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
done.set()
"""


def faults(how: str) -> int:
    """Page faults of 3 tensors of 64 MiB, after the same number were freed."""
    plain = {key: value for key, value in os.environ.items() if key != "THP_MEM_ALLOC_ENABLE"}
    ran = subprocess.run(
        [sys.executable, "-c", _FAULTS, how], capture_output=True, text=True, check=True, env=plain
    )
    return int(ran.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_large_tensors_are_reused_without_page_faults() -> None:
    assert faults("given back") > 10_000
    assert faults("kept") < 1_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_many_threads_share_few_arenas() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _ARENAS], capture_output=True, text=True, check=True
    )
    assert 1 < ran.stdout.count("<heap nr=") <= ARENAS_MAX
