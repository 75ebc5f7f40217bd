"""The program `dlrm.py`: perform all runs of a command, print a table, write a JSON file and a chart."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, cast

import torch.distributed as dist

from benchmarks.dlrm_scaling.figures import COLLECTIVES, scaling, summary, title
from benchmarks.dlrm_scaling.launch import run_ranks
from benchmarks.dlrm_scaling.rank import GRACE_S, Failed, RankProcess, measure
from rowmill.distributed.cores import Pin, cores_of
from rowmill.distributed.torchrun import Launched, ends_late
from rowmill.errors import ExchangeFailed, InvalidInput, RankLost
from rowmill.train.backend import check_gpus
from rowmill.train.dense import multiplies_bf16
from rowmill.train.machine import describe_machine
from rowmill.train.report import html_page, write_whole
from rowmill.train.report.bars import Bar, stacked_bars

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from benchmarks.dlrm_scaling.settings import Settings


def bench_dlrm(
    runs: Sequence[Settings], *, out: Path, command: str, console: Console
) -> dict[str, Any]:
    """Perform all runs; print results as they come, and write `dlrm.json` and `dlrm.html`.

    Under `torchrun` this process is one rank of the only run; rank 0 prints and writes.

    Args:
        runs: Settings of the runs, at least one.
        out: Folder for the files.
        command: The command line, for the report.
        console: Where results are printed.

    Raises:
        InvalidInput: The settings cannot run on this machine.
        BackendMissing: The backend is not installed.
        ExchangeFailed: A rank ended early.
        RankLost: Under `torchrun`, another rank ended early.
    """
    ranked = _torchrun()
    for settings in runs:
        _check(settings, ranked)
    if ranked is not None and len(runs) > 1:
        raise InvalidInput(
            f"torchrun starts the ranks of one run, and this command has {len(runs)}: give one value per flag, or "
            "start it without torchrun"
        )
    done: list[dict[str, Any]] = []
    for number, settings in enumerate(runs):
        if ranked is None:
            with console.status("") as status:
                results = run_ranks(
                    settings,
                    lambda step, at=number, of=settings: status.update(
                        f"run {at + 1} of {len(runs)}: step {step} of {of.warmup + of.steps + 1}"
                    ),
                )
        else:
            results = _measure_here(settings, ranked)
            if ranked.rank != 0:
                return {}
        done.append(summary(settings, results))
    report = {
        "command": command,
        "machine": describe_machine(done[0]["ranks"][0]["cores"]["threads"]),
        "runs": done,
        "scaling": scaling(done, runs[0].sweep),
    }
    print_report(report, console)
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "dlrm.json", json.dumps(report, indent=1) + "\n")
    write_whole(out / "dlrm.html", picture(report))
    console.print(f"{out / 'dlrm.json'}, {out / 'dlrm.html'}", highlight=False, soft_wrap=True)
    return report


def _torchrun() -> RankProcess | None:
    """The position of this process if `torchrun` started it, or None."""
    here = Launched.here()
    return None if here is None else RankProcess(here.rank, here.local_rank, here.local_count, None)


def _check(settings: Settings, ranked: RankProcess | None) -> None:
    """Raise if no rank could run the settings here, before any is started."""
    if ranked is not None and int(os.environ["WORLD_SIZE"]) != settings.ranks:
        raise InvalidInput(
            f"--ranks is {settings.ranks}, but torchrun started {os.environ['WORLD_SIZE']}: leave --ranks out"
        )
    local = settings.ranks if ranked is None else ranked.local_ranks
    cores_of(0, local, sorted(os.sched_getaffinity(0)), pin=cast("Pin", settings.pin))
    if settings.backend == "oneccl":
        from rowmill.distributed.oneccl import library

        library.load()
    if settings.backend == "gloo" and not dist.is_gloo_available():
        raise InvalidInput(
            "--backend gloo: this build of torch has no gloo; choose another backend"
        )
    check_gpus(settings.backend, local)
    if settings.backend != "nccl" and settings.precision != "fp32" and not multiplies_bf16():
        raise InvalidInput(
            f"--precision {settings.precision} needs a processor with AVX512-BF16 or AMX, which this one lacks: use fp32"
        )


def _measure_here(settings: Settings, place: RankProcess) -> list[dict[str, Any]]:
    try:
        with ends_late(GRACE_S + 1):
            return measure(settings, place, lambda _: None, gather=True)
    except Failed as error:
        if isinstance(error.__cause__, RankLost):
            raise error.__cause__ from None
        where = f"in step {error.step}" if error.step else "before its first step"
        if error.invalid:
            raise InvalidInput(str(error)) from error
        what = "lost another rank" if error.waiting else "failed"
        raise ExchangeFailed(f"rank {place.rank} {what} {where}: {error}") from error


def print_report(report: dict[str, Any], console: Console) -> None:
    """Print the metrics of all runs, one column per run."""
    from rich.table import Table

    runs = report["runs"]
    settings, machine = runs[0]["settings"], report["machine"]
    console.print(
        f"DLRM {settings['config']}, scale {settings['scale']:g}, {settings['sweep']} scaling, ids {settings['skew']}; "
        f"{settings['steps']} steps after {settings['warmup']}; {machine['cores']} cores of {machine['processor']}",
        highlight=False,
        soft_wrap=True,
    )
    table = Table("ms per step", show_edge=False, pad_edge=False, header_style="bold")
    for run in runs:
        table.add_column(title(run).replace(", ", "\n"), justify="right")

    def row(name: str, cells: list[str], *, strong: bool = False) -> None:
        table.add_row(name, *cells, style="bold" if strong else None)

    row("samples per step", [f"{run['samples']:,}" for run in runs])
    row("step", [_ms(run["step_ms"]) for run in runs], strong=True)
    row("  median", [_ms(run["step_ms_median"]) for run in runs])
    table.add_section()
    for phase in runs[0]["phase_ms"]:
        row(f"  {phase}", [_ms(run["phase_ms"][phase]) for run in runs])
    row("  waiting for messages", [_ms(run["exposed_ms"]) for run in runs])
    table.add_section()
    row("messages: exposed / total", ["" for _ in runs])
    for leg, name in COLLECTIVES.items():
        row(f"  {name}", [_exposed(run["collectives"][leg]) for run in runs])
    row("  MB to other ranks", [f"{_megabytes(run):.2f}" for run in runs])
    table.add_section()
    row("samples per second", [f"{run['samples_per_s']:,.0f}" for run in runs], strong=True)
    if any(gain is not None for gain in report["scaling"]):
        of = "speed-up" if settings["sweep"] == "strong" else "samples per second over the first"
        gains = ["-" if gain is None else f"{gain:.2f}" for gain in report["scaling"]]
        row(of, gains, strong=True)
    console.print(table)


def picture(report: dict[str, Any]) -> str:
    """The same as an HTML page: a bar per run with work and waiting time."""
    runs = report["runs"]
    settings = runs[0]["settings"]
    phases = list(runs[0]["phase_ms"])
    parts = [*phases, *(f"waiting for {name}" for name in COLLECTIVES.values())]
    bars = [
        Bar(
            title(run),
            [
                *(run["phase_ms"][phase] for phase in phases),
                *(run["collectives"][leg]["exposed_ms"] for leg in COLLECTIVES),
            ],
        )
        for run in runs
    ]
    name = f"DLRM {settings['config']}, scale {settings['scale']:g}"
    chart = stacked_bars(bars, parts, title=f"{name}, by phase", form=lambda ms: f"{ms:.4g} ms")
    lead = (
        f"{settings['sweep']} scaling, ids {settings['skew']}, milliseconds per step as the mean over "
        f"{settings['steps']} steps and all ranks. Message time that is hidden behind work is not in the bars."
    )
    return html_page(name, lead, f'<div class="grid"><div class="card">{chart}</div></div>')


def _ms(value: float) -> str:
    return f"{value:,.2f}"


def _exposed(collective: dict[str, float]) -> str:
    return f"{_ms(collective['exposed_ms'])} / {_ms(collective['total_ms'])}"


def _megabytes(run: dict[str, Any]) -> float:
    return sum(one["bytes"] for one in run["collectives"].values()) / 1e6
