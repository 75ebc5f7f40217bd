"""Large tensors of consecutive steps or batches reuse the same memory, and so do those of threads."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
NEEDS_SMALL_PAGES = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc"
    or (_HUGE_PAGES.exists() and "[always]" in _HUGE_PAGES.read_text()),
    reason="the C library is not glibc, or the system gives all memory in huge pages",
)
PAGES = 10_240
"""Pages in a block of 40 MiB."""
BLOCKS_OF_THREADS = 48
"""All are new, one after another, where glibc gives back what is freed."""

_FAULTS = """
import resource, sys, threading
import torch
from rowmill._allocator import keep_freed_memory

def fill() -> None:
    for _ in range(3):
        torch.ones(10 << 20)

def fill_in_threads() -> None:
    for _ in range(16):
        thread = threading.Thread(target=fill)
        thread.start()
        thread.join()

work = fill_in_threads if sys.argv[2] == "threads" else fill
if sys.argv[1] == "kept":
    assert keep_freed_memory()
    # Small allocations may land behind the first blocks, which then have no room for the alignment of the next ones.
    for _ in range(4):
        work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

_ARENAS = """
import ctypes, threading
import torch
from rowmill._allocator import keep_freed_memory

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


# In a thread of its own, whose arena has no small blocks behind the large ones: what glibc gives back depends on them.
_FAULTS_OF_BATCHES = """
import ctypes, resource, sys, threading
from rowmill._allocator import keep_freed_batches

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
BYTES = 5 << 20

def batches() -> None:
    for _ in range(20):
        blocks = [ctypes.c_void_p(libc.malloc(BYTES)) for _ in range(4)]
        for block in blocks:
            ctypes.memset(block, 1, BYTES)
        for block in blocks:
            libc.free(block)

def measure() -> None:
    batches()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    batches()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

if sys.argv[1] != "given back":
    assert keep_freed_batches() == (sys.argv[1] == "kept")
thread = threading.Thread(target=measure)
thread.start()
thread.join()
"""


def faults(how: str, where: str) -> int:
    """Page faults of 3 tensors of 40 MiB, after the same were freed. `threads`: of 16 threads, one after another."""
    plain = {key: value for key, value in os.environ.items() if key != "THP_MEM_ALLOC_ENABLE"}
    ran = subprocess.run(
        [sys.executable, "-c", _FAULTS, how, where],
        capture_output=True,
        text=True,
        check=True,
        env=plain,
    )
    return int(ran.stdout)


@NEEDS_SMALL_PAGES
def test_freed_large_tensors_are_reused_without_page_faults() -> None:
    assert faults("given back", "here") > PAGES
    assert faults("given back", "threads") > BLOCKS_OF_THREADS * PAGES * 9 // 10
    assert faults("kept", "here") < 1_000
    # Small allocations of threads land between the blocks at times, and a block or two are then new.
    assert faults("kept", "threads") < BLOCKS_OF_THREADS * PAGES // 10, "one block of ten is new"


@NEEDS_SMALL_PAGES
def test_blocks_of_consecutive_batches_are_reused_without_page_faults() -> None:
    """20 batches of 4 blocks of 5 MiB, each batch freed before the next."""
    pages = 20 * 4 * 1280

    def new_pages(how: str, **variables: str) -> int:
        command, environment = (
            [sys.executable, "-c", _FAULTS_OF_BATCHES, how],
            {**os.environ, **variables},
        )
        ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return int(ran.stdout)

    assert new_pages("given back") > pages // 2
    assert new_pages("kept") < pages // 20
    assert new_pages("left", MALLOC_TRIM_THRESHOLD_="4194304") > pages // 2


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_all_threads_share_one_arena() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _ARENAS], capture_output=True, text=True, check=True
    )
    assert ran.stdout.count("<heap nr=") == 1
