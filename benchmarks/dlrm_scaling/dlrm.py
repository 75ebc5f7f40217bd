"""Time a training step of DLRM on one or more ranks, phase by phase.

    .venv/bin/python benchmarks/dlrm_scaling/dlrm.py --config mlperf --scale 0.1 --ranks 1,2
    torchrun --nproc-per-node 2 benchmarks/dlrm_scaling/dlrm.py --config mlperf

This module only parses the flags, so that --help need not import torch.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.dlrm_scaling.settings import (
    BACKENDS,
    COMMS,
    PINS,
    PLACEMENTS,
    PRECISIONS,
    SKEWS,
    SWEEPS,
    Grid,
    Settings,
)
from benchmarks.dlrm_scaling.shapes import SHAPES
from rowmill.cli import exit_code
from rowmill.errors import InvalidInput
from rowmill.size import parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence

_LISTS = {
    "ranks": (
        "N[,N]",
        "number of ranks; several numbers for a sweep (default 1, with torchrun its number)",
    ),
    "backend": ("|".join(BACKENDS), "backend of torch.distributed (default gloo)"),
    "comm": (
        "|".join(COMMS),
        "overlap messages with work, or wait for each message where it begins (default overlap)",
    ),
    "precision": ("|".join(PRECISIONS), "precision of rows, layers and messages (default fp32)"),
}
"""Flags that take several values, separated by commas; every combination is a run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return the exit code."""
    parsed = _parser().parse_args(arguments)
    return exit_code(lambda: _dlrm(parsed), "dlrm", "; nothing was written")


def _parser() -> argparse.ArgumentParser:
    dlrm = argparse.ArgumentParser(
        description="Time a training step of DLRM: dense layers are replicated on every rank, tables are sharded. The program "
        "starts its ranks itself, or is a rank that torchrun started. --ranks, --backend, --comm, --precision and --pin take "
        "several values, separated by commas; every combination is a run.",
    )
    dlrm.add_argument(
        "--config", required=True, metavar="|".join(SHAPES), help="name of the model shape"
    )
    dlrm.add_argument(
        "--scale",
        type=_number,
        default=1.0,
        metavar="F",
        help="fraction of the shape's rows and batch to use; widths of layers do not change (default 1)",
    )
    for name, (metavar, hint) in _LISTS.items():
        dlrm.add_argument(f"--{name}", metavar=metavar, help=hint)
    dlrm.add_argument(
        "--pin",
        nargs="?",
        const="apart",
        default="off",
        metavar="|".join(PINS),
        help="apart: communication threads on their own cores; together: on the cores that compute in apart "
        "(default off; --pin alone: apart)",
    )
    dlrm.add_argument(
        "--placement",
        default="rows",
        metavar="|".join(PLACEMENTS),
        help="placement of all tables; auto: planned from the first batches (default rows)",
    )
    dlrm.add_argument(
        "--sweep",
        default="strong",
        metavar="|".join(SWEEPS),
        help="strong: constant global batch; weak: constant batch per rank (default strong)",
    )
    dlrm.add_argument(
        "--batch", type=_whole, metavar="B", help="samples per batch, instead of the shape's"
    )
    dlrm.add_argument(
        "--ids",
        default="zipf",
        metavar="|".join(SKEWS),
        help="distribution of ids (default zipf, exponent 1.05)",
    )
    dlrm.add_argument(
        "--steps", type=_whole, default=20, help="number of measured steps (default 20)"
    )
    dlrm.add_argument(
        "--warmup",
        type=_whole,
        default=4,
        help="number of steps before the measured ones (default 4)",
    )
    dlrm.add_argument(
        "--threads", type=_whole, help="threads of each rank (default: an equal share of the cores)"
    )
    dlrm.add_argument(
        "--memory", help="memory budget of each rank's store (default: enough for its rows)"
    )
    dlrm.add_argument(
        "--store",
        type=Path,
        metavar="DIR",
        help="new or empty folder for the stores (default: a temporary one)",
    )
    dlrm.add_argument(
        "--timeout",
        type=_number,
        default=60.0,
        metavar="S",
        help="longest wait for another rank in seconds (default 60)",
    )
    dlrm.add_argument(
        "--seed", type=_whole, default=1, help="seed of ids, rows and layers (default 1)"
    )
    dlrm.add_argument(
        "--out",
        type=Path,
        default=Path("out/bench"),
        help="folder for the JSON file and the chart (default out/bench)",
    )
    return dlrm


def _dlrm(parsed: argparse.Namespace) -> int:
    if parsed.store is not None and parsed.store.is_file():
        raise InvalidInput(f"--store {parsed.store} is a file; give a folder")
    if parsed.store is not None and parsed.store.exists() and any(parsed.store.iterdir()):
        raise InvalidInput(
            f"--store {parsed.store} is not empty, and rows of other runs would distort the result: "
            "give a new or empty folder"
        )
    base = Settings(
        config=parsed.config,
        scale=parsed.scale,
        sweep=parsed.sweep,
        batch=parsed.batch,
        placement=parsed.placement,
        skew=parsed.ids,
        steps=parsed.steps,
        warmup=parsed.warmup,
        threads=parsed.threads,
        memory=None if parsed.memory is None else parse_size(parsed.memory, name="--memory"),
        store=None if parsed.store is None else str(parsed.store),
        timeout_s=parsed.timeout,
        seed=parsed.seed,
    )
    runs = Grid(
        ranks=[_rank_count(text) for text in _listed(parsed.ranks, _started())],
        backend=_listed(parsed.backend, "gloo"),
        comm=_listed(parsed.comm, "overlap"),
        precision=_listed(parsed.precision, "fp32"),
        pin=_listed(parsed.pin, "off"),
    ).runs(base)
    from rich.console import Console

    from benchmarks.dlrm_scaling.runs import bench_dlrm

    bench_dlrm(runs, out=parsed.out, command=shlex.join(sys.argv), console=Console())
    return 0


def _started() -> str:
    """The default of --ranks."""
    return os.environ.get("WORLD_SIZE", "1") if "RANK" in os.environ else "1"


def _listed(text: str | None, default: str) -> Sequence[str]:
    values = (text or default).split(",")
    return list(dict.fromkeys(value.strip() for value in values))


def _rank_count(text: str) -> int:
    if not text.isdecimal() or len(text) > 6:
        raise InvalidInput(
            f"--ranks must be integers separated by commas, such as 2 or 1,2,4; got {text!r}"
        )
    return int(text)


def _whole(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not an integer of at least 0")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a number") from None


if __name__ == "__main__":
    sys.exit(main())
