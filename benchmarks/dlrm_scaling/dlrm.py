"""Times a training step of DLRM on one rank or many, phase by phase.

    .venv/bin/python benchmarks/dlrm_scaling/dlrm.py --config mlperf --scale 0.1 --ranks 1,2
    torchrun --nproc-per-node 2 benchmarks/dlrm_scaling/dlrm.py --config mlperf

This module holds the flags alone, so that help need not wait for torch.
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
    "ranks": ("N[,N]", "ranks; several for a sweep (default 1, under torchrun what it started)"),
    "backend": ("|".join(BACKENDS), "what carries messages (default gloo)"),
    "comm": (
        "|".join(COMMS),
        "let messages travel behind work, or wait for each (default overlap)",
    ),
    "precision": ("|".join(PRECISIONS), "of rows, layers and messages (default fp32)"),
}
"""Flags that take several values, separated by commas: every combination is a run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns the exit code."""
    parsed = _parser().parse_args(arguments)
    return exit_code(lambda: _dlrm(parsed), "dlrm", "; nothing was written")


def _parser() -> argparse.ArgumentParser:
    dlrm = argparse.ArgumentParser(
        description="Time a training step of DLRM: dense layers on every rank, tables spread over all. It starts its ranks itself, "
        "or is one of those that torchrun starts. --ranks, --backend, --comm, --precision and --pin take several values, "
        "separated by commas, and every combination is a run.",
    )
    dlrm.add_argument("--config", required=True, metavar="|".join(SHAPES), help="which model")
    dlrm.add_argument(
        "--scale",
        type=_number,
        default=1.0,
        metavar="F",
        help="share of its rows and of its batch; layers keep their widths (default 1)",
    )
    for name, (metavar, hint) in _LISTS.items():
        dlrm.add_argument(f"--{name}", metavar=metavar, help=hint)
    dlrm.add_argument(
        "--pin",
        nargs="?",
        const="apart",
        default="off",
        metavar="|".join(PINS),
        help="communication threads on cores of their own, or together with the work of apart (default off)",
    )
    dlrm.add_argument(
        "--sweep",
        default="strong",
        metavar="|".join(SWEEPS),
        help="keep the batch of all ranks, or that of each (default strong)",
    )
    dlrm.add_argument("--batch", type=_whole, metavar="B", help="samples in place of the model's")
    dlrm.add_argument(
        "--ids",
        default="zipf",
        metavar="|".join(SKEWS),
        help="how ids are drawn (default zipf, 1.05)",
    )
    dlrm.add_argument("--steps", type=_whole, default=20, help="steps to measure (default 20)")
    dlrm.add_argument("--warmup", type=_whole, default=4, help="steps before those (default 4)")
    dlrm.add_argument(
        "--threads", type=_whole, help="of each rank (default: its share of the cores)"
    )
    dlrm.add_argument("--memory", help="of each rank's store (default: what its rows take)")
    dlrm.add_argument(
        "--store",
        type=Path,
        metavar="DIR",
        help="where the stores are, new or empty (default: temporary)",
    )
    dlrm.add_argument(
        "--timeout",
        type=_number,
        default=60.0,
        metavar="S",
        help="longest wait for a rank (default 60)",
    )
    dlrm.add_argument("--seed", type=_whole, default=1, help="of ids, rows and layers (default 1)")
    dlrm.add_argument(
        "--out",
        type=Path,
        default=Path("out/bench"),
        help="folder of JSON and picture (default out/bench)",
    )
    return dlrm


def _dlrm(parsed: argparse.Namespace) -> int:
    if parsed.store is not None and parsed.store.is_file():
        raise InvalidInput(
            f"--store {parsed.store} is a file; stores lie in a folder, give --store another"
        )
    if parsed.store is not None and parsed.store.exists() and any(parsed.store.iterdir()):
        raise InvalidInput(
            f"--store {parsed.store} is not empty, and rows of other runs would be measured: "
            "give a folder that is new or empty"
        )
    base = Settings(
        config=parsed.config,
        scale=parsed.scale,
        sweep=parsed.sweep,
        batch=parsed.batch,
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
    """The default number of ranks."""
    return os.environ.get("WORLD_SIZE", "1") if "RANK" in os.environ else "1"


def _listed(text: str | None, default: str) -> Sequence[str]:
    values = (text or default).split(",")
    return list(dict.fromkeys(value.strip() for value in values))


def _rank_count(text: str) -> int:
    if not text.isdecimal() or len(text) > 6:
        raise InvalidInput(f"--ranks must be numbers of ranks, such as 2 or 1,2,4, got {text!r}")
    return int(text)


def _whole(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a whole number")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a number") from None


if __name__ == "__main__":
    sys.exit(main())
