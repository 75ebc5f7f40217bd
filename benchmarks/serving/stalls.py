"""How long resident memory keeps a thread waiting on this machine: `rowmill-bench stalls`."""

import json
import subprocess
from typing import Any

from benchmarks import common
from benchmarks.serving.part import Part, rotated


def stalls(part: Part) -> None:
    """Time random accesses to memory of several sizes, one size at a time."""
    program = common.bench_program()
    sizes = {f"{gib:g}GiB": int(gib * 2**30) for gib in part.settings.stall_gib}
    for number in range(part.settings.rounds):
        for way in rotated(list(sizes), number):
            command = [str(program), "stalls", "--memory", str(sizes[way]), "--rounds", "1"]
            command += ["--seconds", str(part.settings.stall_s)]
            part.cells.measure(
                lambda command=command: _measure(command), part="stalls", way=way, round=number
            )


def _measure(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {"stalls": json.loads(done.stdout)}
