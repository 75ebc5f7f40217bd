"""Ten times the load that a slow dense half can answer: goodput, and how soon requests are refused."""

import statistics
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.serving.load import Load, measured, warm_up
from benchmarks.serving.part import Part, rotated
from benchmarks.serving.shapes import PADDED, Shape
from benchmarks.serving.ways import Deployment, deployment

TARGET_S = 0.02
"""CPU time of the dense half for one request."""
TIMES = 10
_SENDERS = 4
"""Enough to keep the dense half busy."""
_SLO_S = 0.25
_WAYS = ("all", "shm")
_CALIBRATION = 20


def overload(part: Part) -> None:
    """Capacity in a closed loop, then an open loop of ten times as many requests."""
    shape = padded(part.bundles.folder)
    bundle, requests = part.bundles.bundle(shape), part.bundles.requests(shape)
    flags = ["--dense-batches", "1", "--batch-requests", "1", "--memory", "256MiB", "--slo", "60"]
    closed = Load(shape.name, requests, part.settings.loaded_s, _SLO_S, senders=_SENDERS)
    with ExitStack() as stack:
        deployed: dict[str, Deployment] = {}

        def ask(way: str, load: Load) -> dict[str, Any]:
            if way not in deployed:
                made = deployment(way, bundle, part.folder, flags)
                deployed[way] = stack.enter_context(made)
                front = deployed[way].front
                patient = replace(load, seconds=2.0, slo_s=60.0, senders=2, rate=None)
                warm_up(patient, front, front.addresses["http"], part.bundles.count)
            return measured(load, deployed[way].workers, deployed[way].front.addresses["http"])

        for number in range(part.settings.rounds):
            for way in rotated(_WAYS, number):
                what = {"model": shape.name, "way": way, "round": number}
                cell = part.cells.measure(lambda way=way: ask(way, closed), part="capacity", **what)
                rate = TIMES * cell["report"]["goodput_per_s"]
                if rate == 0:
                    raise RuntimeError(
                        f"{shape.name} answers no request within {_SLO_S} s: end other work on this machine"
                    )
                open_ = replace(closed, seconds=part.settings.overload_s, senders=None, rate=rate)
                part.cells.measure(
                    lambda way=way, load=open_: ask(way, load), part="overload", **what
                )


def padded(folder: Path) -> Shape:
    """The model whose dense half takes about `TARGET_S` on this machine with one thread; its size is kept in a folder."""
    kept = folder / "padded-layers"
    if kept.exists():
        return replace(PADDED, repeats=int(kept.read_text()))
    width = PADDED.layers[0]
    layer = torch.nn.Linear(width, width)
    values = torch.rand(PADDED.batch, width)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            taken = [_seconds(layer, values) for _ in range(_CALIBRATION)]
    finally:
        torch.set_num_threads(threads)
    repeats = max(1, round(TARGET_S / statistics.median(taken)))
    folder.mkdir(parents=True, exist_ok=True)
    kept.write_text(str(repeats))
    return replace(PADDED, repeats=repeats)


def _seconds(layer: torch.nn.Module, values: torch.Tensor) -> float:
    begun = time.thread_time()
    layer(values)
    return time.thread_time() - begun
