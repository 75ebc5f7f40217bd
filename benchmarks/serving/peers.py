"""One process of rowmill and other servers, asked for the same answers of the same model."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import safetensors.torch

from benchmarks.serving.floor import floor
from benchmarks.serving.load import Load, measured, warm_up
from benchmarks.serving.part import Part, rotated
from benchmarks.serving.peer_servers import PEERS, check, install, peer, write_model
from benchmarks.serving.settings import SENDERS
from benchmarks.serving.shapes import CLICKS, D
from benchmarks.serving.worker import Worker, worker

LOAD = 0.7
"""Share of our capacity at which latency is measured."""
CROWD = 100
"""Senders that keep more than one batch per core waiting."""
_SLO_S = 1.0


DEFAULT = "rowmill"
OURS: dict[str, tuple[str, ...]] = {
    DEFAULT: (),
    "rowmill_2": ("--dense-batches", "2", "--batch-requests", "8"),
}
"""Forms of our server: settings besides the defaults."""
IDEAL = "ideal"
"""Not a server: what the machine allows."""
_WARM_UP_S = 1.0


def peers(part: Part) -> None:
    """Requests per second of each server. After each of our forms, its latency at a share of the rate."""
    settings, requests = part.settings, part.bundles.requests(CLICKS)
    names = [*OURS, *(server.name for server in PEERS)]
    load = Load(CLICKS.name, requests, settings.loaded_s, _SLO_S, senders=SENDERS)
    with ExitStack() as stack:
        started: dict[str, Worker] = {}

        def ask(name: str, load: Load) -> dict[str, Any]:
            if not started:
                started.update(stack.enter_context(_servers(part)))
            server = started[name]
            return measured(load, {name: server}, server.addresses["http"])

        for number in range(settings.rounds):
            for name in rotated(names, number):
                cell = part.cells.measure(
                    lambda name=name: ask(name, load), part="peers", way=name, round=number
                )
                if name in OURS:
                    # At once, because the speed of a machine may change during a run.
                    rate = LOAD * cell["report"]["goodput_per_s"]
                    calm = replace(load, senders=None, rate=rate, warm_up_s=_WARM_UP_S)
                    part.cells.measure(
                        lambda name=name, calm=calm: ask(name, calm),
                        part="calm",
                        way=name,
                        round=number,
                    )
                if name == DEFAULT:
                    request_s = cell["cores"] / cell["report"]["goodput_per_s"]
                    part.cells.measure(
                        lambda request_s=request_s, number=number: floor(
                            request_s, LOAD, settings.loaded_s, seed=number
                        ),
                        part="calm",
                        way=IDEAL,
                        round=number,
                    )
                if name == DEFAULT or name.startswith("fastapi"):
                    crowd = replace(load, senders=CROWD)
                    part.cells.measure(
                        lambda name=name, crowd=crowd: ask(name, crowd),
                        part="crowd",
                        way=name,
                        round=number,
                    )


@contextmanager
def _servers(part: Part) -> Generator[dict[str, Worker]]:
    """All servers; idle ones take no CPU time."""
    requests = part.bundles.requests(CLICKS)
    bundle = part.bundles.bundle(CLICKS)
    tensors = safetensors.torch.load_file(bundle / "examples.safetensors")
    first = {name: tensors[f"0.input.{name}"] for name in ("dense", "ids")}
    packages = install(part.bundles.folder)
    model = write_model(part.bundles)
    rows = part.bundles.rows * CLICKS.features * D * 4
    flags = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    flags += ["--memory", f"{(rows * 5 // 4 >> 20) + 256}MiB", "--preload"]
    patient = Load(CLICKS.name, requests, 2.0, 60.0, senders=2)
    with ExitStack() as stack:
        found: dict[str, Worker] = {}
        for name, settings in OURS.items():
            started = worker([bundle, *flags, *settings], part.folder / f"{name}.log", threads=1)
            found[name] = stack.enter_context(started)
        for server in PEERS:
            started = peer(server, packages, model, part.folder / f"{server.name}.log")
            found[server.name] = stack.enter_context(started)
            check(found[server.name], first, tensors["0.output.0"])
        for server in found.values():
            warm_up(patient, server, server.addresses["http"], part.bundles.count)
        yield found
