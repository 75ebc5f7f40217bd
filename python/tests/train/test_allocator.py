"""Large tensors of consecutive steps reuse the same memory."""

import os
import platform
import subprocess
import sys

import pytest

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
