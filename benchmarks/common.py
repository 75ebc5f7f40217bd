"""Shared by all benchmarks: arguments, interleaved rounds, medians with their spread, the machine, the JSON output.

A benchmark answers one question by running variants of the same work in interleaved rounds, with a
rotating first variant. So a noisy minute on a shared host affects all variants. The result is the
median over rounds with its spread, in wall time and in CPU time of the process. This module does not
depend on what is measured.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.provenance import REPOSITORY, Source, check_recordable, processor, utc_now
from rowmill.train.machine import describe_machine, resident_bytes

WATTS = 5.0
"""Power of a busy core: an assumed value, because the machines have no readable energy counter."""


@dataclass(frozen=True)
class Settings:
    """The parsed arguments that every benchmark has."""

    quick: bool
    seed: int
    out: Path | None
    command: str


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser for `[--quick] [--seed N] [--out FILE] [--allow-dirty]`; a benchmark may add its own arguments."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="end within 10 minutes on 2 cores")
    parser.add_argument("--seed", type=int, default=1, help="seed of ids, rows and models")
    parser.add_argument("--out", type=Path, help="write the JSON object here, not to the screen")
    parser.add_argument(
        "--allow-dirty",
        action="store_true",
        help="write --out from a source tree with uncommitted changes, marked as dirty",
    )
    return parser


def settings(arguments: argparse.Namespace) -> Settings:
    """The settings from parsed arguments; exits if `--out` must not be written."""
    if arguments.out is not None:
        check_recordable(arguments.out, quick=arguments.quick, dirty=arguments.allow_dirty)
    script = Path(sys.argv[0]).resolve()
    name = script.relative_to(REPOSITORY) if script.is_relative_to(REPOSITORY) else script.name
    command = " ".join(["python", str(name), *sys.argv[1:]])
    return Settings(arguments.quick, arguments.seed, arguments.out, command)


def parse_arguments(description: str | None) -> Settings:
    """Parse `[--quick] [--seed N] [--out FILE] [--allow-dirty]`."""
    return settings(argument_parser(description).parse_args())


def data_file(name: str) -> Path | None:
    """The path of a file or folder in `$ROWMILL_DATA` or `../shared/data`; None if it is missing."""
    places = [os.environ.get("ROWMILL_DATA", ""), str(REPOSITORY / "../shared/data")]
    found = (Path(place) / name for place in filter(None, places))
    return next((path for path in found if path.exists()), None)


def bench_program(peers: Sequence[str] = ()) -> Path:
    """Build the program of crates/rowmill-bench with the adapters of `peers`, and return its path."""
    features = ["--features", ",".join(peers)] if peers else []
    packages = " and ".join(f"lib{peer}-dev" for peer in peers)
    needed = f"; it needs {packages} of Debian" if packages else ""
    return cargo_program("rowmill-bench", ["-p", "rowmill-bench", *features], needed)


def cargo_program(name: str, arguments: Sequence[str], needed: str = "") -> Path:
    """Build a program of this workspace in release mode, and return its path.

    Args:
        name: The program's name.
        arguments: Arguments of `cargo build`.
        needed: What to install if the build fails, for the end of the error message.
    """
    command = ["cargo", "build", "--release", "--locked", *arguments]
    built = subprocess.run(
        [*command, "--message-format", "json"],
        cwd=REPOSITORY,
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    if built.returncode != 0:
        sys.exit(f"{' '.join(command)} failed; the error is above{needed}")
    for message in map(json.loads, built.stdout.splitlines()):
        if message.get("executable") and message["target"]["name"] == name:
            return Path(message["executable"])
    raise RuntimeError("cargo reported no executable")


@dataclass(frozen=True)
class Sample:
    """One run of one variant."""

    variant: str
    round: int
    units: int
    wall_s: float
    cpu_s: float
    device_read_bytes: int
    device_write_bytes: int
    resident_bytes: int


def cpu_s() -> float:
    """CPU time of this process so far, all threads, user and system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def device_bytes(process: int | str = "self") -> tuple[int, int]:
    """Bytes that a process caused devices to read and write; pages served from the page cache do not count."""
    counters = dict(
        line.split(": ") for line in Path(f"/proc/{process}/io").read_text().splitlines() if line
    )
    return int(counters["read_bytes"]), int(counters["write_bytes"])


def measure(variant: str, number: int, work: Callable[[], int]) -> Sample:
    """Run `work` once and measure it; `work` returns the number of units (rows, steps) it processed."""
    reads, writes = device_bytes()
    cpu, wall = cpu_s(), time.perf_counter()
    units = work()
    wall_s, used_cpu_s = time.perf_counter() - wall, cpu_s() - cpu
    reads_after, writes_after = device_bytes()
    return Sample(
        variant=variant,
        round=number,
        units=units,
        wall_s=wall_s,
        cpu_s=used_cpu_s,
        device_read_bytes=reads_after - reads,
        device_write_bytes=writes_after - writes,
        resident_bytes=resident_bytes(),
    )


@dataclass(frozen=True)
class Figure:
    """One number that summarizes several measurements, with their range."""

    value: float
    min: float
    max: float
    rounds: int

    @property
    def spread(self) -> float:
        """(largest - smallest) / value."""
        return (self.max - self.min) / abs(self.value) if self.value else 0.0


class Median(Figure):
    """The median over rounds."""

    @classmethod
    def of(cls, values: Iterable[float]) -> "Median":
        """Compute the median and the range."""
        taken = list(values)
        return cls(statistics.median(taken), min(taken), max(taken), len(taken))


class Mean(Figure):
    """The mean over seeds."""

    @classmethod
    def of(cls, values: Iterable[float]) -> "Mean":
        """Compute the mean and the range."""
        taken = list(values)
        return cls(statistics.mean(taken), min(taken), max(taken), len(taken))


def units_per_s(samples: Iterable[Sample]) -> Median:
    """Units per second of wall time."""
    return Median.of(sample.units / sample.wall_s for sample in samples)


def cpu_us_per_unit(samples: Iterable[Sample]) -> Median:
    """CPU microseconds of all threads per unit."""
    return Median.of(sample.cpu_s * 1e6 / sample.units for sample in samples)


def ratio(samples: list[Sample], baseline: list[Sample]) -> Median:
    """The rate relative to the baseline's, per round, so that noise of the host affects both sides alike."""
    return Median.of(
        (ours.units / ours.wall_s) / (theirs.units / theirs.wall_s)
        for ours, theirs in zip(samples, baseline, strict=True)
    )


def machine() -> dict[str, Any]:
    """The machine and the versions that a result was measured on."""
    huge_pages = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return {
        **describe_machine(len(os.sched_getaffinity(0))),
        **processor(),
        "huge_pages": huge_pages.read_text().strip() if huge_pages.exists() else "none",
        "rowmill": metadata.version("rowmill"),
    }


@dataclass
class Benchmark:
    """Collects cells and a summary, and writes the one JSON object."""

    settings: Settings
    cells: list[dict[str, object]] = field(default_factory=list[dict[str, object]])
    summary: dict[str, float] = field(default_factory=dict[str, float])
    ranges: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    source: Source = field(default_factory=Source.now)
    # Read at the start: what is missing is reported before anything is measured.
    machine: dict[str, Any] = field(default_factory=machine)

    def compare(
        self, variants: Mapping[str, Callable[[], int]], *, rounds: int, warm_up: int = 1
    ) -> dict[str, list[Sample]]:
        """Run every variant once per round, and record every measurement as a cell.

        Args:
            variants: By name, the work to measure; it returns the number of units it processed.
            rounds: Number of measured rounds.
            warm_up: Number of rounds to run first and discard.
        """
        names = list(variants)
        samples: dict[str, list[Sample]] = {name: [] for name in names}
        for number in range(-warm_up, rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                sample = measure(name, number, variants[name])
                print(
                    f"{name}, round {number}: {sample.units / sample.wall_s:,.0f}/s",
                    file=sys.stderr,
                )
                if number >= 0:
                    samples[name].append(sample)
                    self.cells.append(asdict(sample))
        return samples

    def summarize(self, name: str, figure: Figure) -> None:
        """Add a metric to the summary, with its spread, number of rounds and range."""
        self.summary[name] = figure.value
        self.summary[f"{name}_spread"] = figure.spread
        self.ranges[name] = {"rounds": figure.rounds, "min": figure.min, "max": figure.max}

    def keep(self) -> None:
        """Write the results so far, if `--out` names a file, so that an interrupted run loses nothing."""
        if self.settings.out is not None:
            self.write()

    def write(self) -> None:
        """Write the JSON object to `--out`, or print it."""
        text = json.dumps(
            {
                "summary": self.summary,
                "ranges": self.ranges,
                "cells": self.cells,
                "machine": self.machine,
                "source": asdict(self.source.until_now()),
                "date": utc_now(),
                "command": self.settings.command,
            },
            indent=1,
        )
        if self.settings.out is None:
            print(text)
        else:
            self.settings.out.parent.mkdir(parents=True, exist_ok=True)
            self.settings.out.write_text(text + "\n")
            print(f"wrote {self.settings.out}", file=sys.stderr)
