"""The comparison of halves: one sender, and many, against a model that is served whole and in two halves."""

import statistics
import sys
from contextlib import ExitStack
from typing import Any

from benchmarks.serving.bundles import crossing_bytes
from benchmarks.serving.load import Load, measured, warm_up
from benchmarks.serving.namespaces import missing, namespaces
from benchmarks.serving.part import Part, rotated
from benchmarks.serving.passes import bytes_available, passes
from benchmarks.serving.settings import SENDERS, SLO_OVER_SEQUENTIAL
from benchmarks.serving.shapes import D, Shape
from benchmarks.serving.socket_probe import probe
from benchmarks.serving.ways import Deployment, deployment

PROBE = "probe"
_PATIENT_S = 60.0
"""Timeout of requests that are not loaded."""
_AWAKE_S = 1.5
"""Load before each cell, which is not measured. Workers take turns, and the first lookups after a minute without any were slower."""


def split(part: Part, *, saturated: bool) -> None:
    """Measure every model: with one sender, and if `saturated` also with many, and at half of what `all` answers then."""
    ways = list(part.settings.ways)
    if "netns" in ways and (why := missing()):
        print(f"not measured across network namespaces: {why}", file=sys.stderr)
        ways.remove("netns")
    for shape in part.settings.models:
        row_bytes = _row_bytes(part, shape)
        for number, fitting in enumerate(passes(ways, row_bytes, bytes_available())):
            first_round = number * part.settings.rounds
            _Comparison(part, shape, fitting, first_round).run(saturated=saturated)


def _row_bytes(part: Part, shape: Shape) -> int:
    return part.bundles.rows * shape.features * D * 4


class _Comparison:
    """The cells of one model and the ways of one pass; the workers start when the first cell is measured."""

    def __init__(self, part: Part, shape: Shape, ways: list[str], first_round: int) -> None:
        self._part = part
        self._shape = shape
        self._ways = ways
        self._first_round = first_round
        self._stack = ExitStack()
        self._deployed: dict[str, Deployment] = {}
        self._bundle = part.bundles.bundle(shape)
        self._requests = part.bundles.requests(shape)

    def run(self, *, saturated: bool) -> None:
        settings = self._part.settings
        with self._stack:
            alone = self._rounds(
                "sequential", self._ways, self._load(settings.sequential_s, _PATIENT_S, senders=1)
            )
            if not saturated:
                return
            p50_ms = [cell["report"]["latency_ms"]["p50"] for cell in alone["all"]]
            slo_s = SLO_OVER_SEQUENTIAL * statistics.median(p50_ms) / 1e3
            full = self._rounds(
                "saturated",
                [*self._ways, PROBE],
                self._load(settings.split_s, slo_s, senders=SENDERS),
            )
            capacity = statistics.median(cell["report"]["goodput_per_s"] for cell in full["all"])
            load = self._load(settings.split_s, slo_s, rate=capacity / 2)
            self._rounds("half", self._ways, load)

    def _load(
        self, seconds: float, slo_s: float, *, senders: int | None = None, rate: float | None = None
    ) -> Load:
        return Load(self._shape.name, self._requests, seconds, slo_s, senders, rate)

    def _rounds(self, name: str, ways: list[str], load: Load) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
        for number in range(self._first_round, self._first_round + self._part.settings.rounds):
            for way in rotated(ways, number):
                cell = self._part.cells.measure(
                    lambda way=way: self._measure(way, load),
                    part=name,
                    model=self._shape.name,
                    way=way,
                    round=number,
                )
                found[way].append(cell)
        return found

    def _measure(self, way: str, load: Load) -> dict[str, Any]:
        if way == PROBE:
            return probe(*crossing_bytes(self._bundle), seconds=load.seconds / 2)
        if not self._deployed:
            self._deploy()
        deployed = self._deployed[way]
        front = deployed.front
        url = front.addresses["http"]
        self._load(_AWAKE_S, _PATIENT_S, senders=2).run(f"http://{url}", front.inside)
        return measured(load, deployed.workers, url)

    def _deploy(self) -> None:
        """Start the workers of all ways: an idle one takes no CPU time."""
        network = self._stack.enter_context(namespaces()) if "netns" in self._ways else None
        row_bytes = _row_bytes(self._part, self._shape)
        flags = ["--memory", f"{(row_bytes * 5 // 4 >> 20) + 256}MiB", "--wire-memory", "1GiB"]
        flags += ["--dense-batches", "1", "--batch-requests", "1"]
        flags += ["--slo", str(_PATIENT_S)]
        patient = self._load(5.0, _PATIENT_S, senders=2)
        for way in self._ways:
            made = deployment(way, self._bundle, self._part.folder, flags, network, preload=True)
            deployed = self._deployed[way] = self._stack.enter_context(made)
            front = deployed.front
            warm_up(patient, front, front.addresses["http"], self._part.bundles.count)
