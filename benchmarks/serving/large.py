"""How long a message of 4 MiB is on its way, with and without copies: `crates/rowmill-serve/examples/round_trip.rs`."""

import subprocess
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.serving.part import Part, rotated

VARIANTS = {"messages": (), "copied": ("copied",)}


def large(part: Part) -> None:
    """Round trips of one request at a time, over both transports."""
    program = common.cargo_program("round_trip", ["-p", "rowmill-serve", "--example", "round_trip"])
    for number in range(part.settings.rounds):
        for variant in rotated(list(VARIANTS), number):
            part.cells.measure(
                lambda variant=variant: _measure(part, program, variant),
                part="large",
                way=variant,
                round=number,
            )


def _measure(part: Part, program: Path, variant: str) -> dict[str, Any]:
    command = [str(program), str(part.settings.round_trips), *VARIANTS[variant]]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {"messages": parse(done.stdout)}


def parse(text: str) -> list[dict[str, Any]]:
    """The table that the program prints, behind two lines of heads."""
    found: list[dict[str, Any]] = []
    for line in text.splitlines()[2:]:
        transport, kib, p50_us, p99_us = line.split()
        found.append(
            {
                "transport": transport,
                "kib": int(kib),
                "p50_us": float(p50_us),
                "p99_us": float(p99_us),
            }
        )
    return found
