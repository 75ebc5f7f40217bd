"""Description of the machine of a run, for its report."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import rowmill

if TYPE_CHECKING:
    from rowmill.config.config import Config


def step_threads(config: Config) -> int:
    """Threads of training steps: as set, or all cores of this rank but one."""
    # Leave one core to the background threads of the store (prefetch, writes, compaction). Ranks of one machine share it.
    cores = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return config.train.threads or max(cores - 1, 1)


def describe_machine(threads: int) -> dict[str, Any]:
    """Processor, cores, memory, and the versions in use."""
    return {
        "processor": _first_value("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.release()}",
        "python": sys.version.split()[0],
        "torch": torch.__version__,
    }


def bit_conditions(threads: int) -> dict[str, Any]:
    """Conditions beside settings and data under which two equal runs are bit-identical."""
    return {
        "threads": threads,
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "rowmill": rowmill.__version__,
    }


def resident_bytes() -> int:
    """Resident memory of this process (VmRSS), in bytes."""
    return (_kilobytes("VmRSS") or 0) * 1024


def _kilobytes(name: str) -> int | None:
    value = _first_value("/proc/self/status", name)
    return int(value.split()[0]) if value else None


def _first_value(file: str, name: str) -> str | None:
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), None)
