"""A worker: models of bundles, warmed on their examples, served until SIGTERM."""

from __future__ import annotations

import gc
import json
import os
import threading
import time
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rowmill import _core
from rowmill._allocator import keep_freed_batches
from rowmill.errors import InvalidInput, ServingError
from rowmill.serve.preload import preload
from rowmill.serve.scheduling import keep_batches_running
from rowmill.store import node_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rowmill.serve.files import BundleFiles, Named
    from rowmill.serve.settings import ServeSettings

_TOLERANCE = 1e-3
_PAUSE_S = 0.1


@dataclass
class _Parts:
    """What a worker closes when it ends."""

    worker: _core.Worker
    threads: list[Any] = field(default_factory=list[Any])
    stores: list[Any] = field(default_factory=list[Any])
    device: Any = None


def serve(bundles: Sequence[BundleFiles], settings: ServeSettings) -> None:
    """Serve until SIGTERM or SIGINT; prints one line of JSON with the addresses when the models are warm.

    Raises:
        ServingError: A model does not answer its examples, or requests are left when the time of the drain is over.
    """
    _core.start_serving_logs(settings.log_level)
    if settings.role != "cpu" and settings.device == "cpu":
        keep_batches_running()
    worker = _core.Worker(
        network_threads=settings.sockets,
        lookup_threads=settings.threads,
        wire_memory=settings.wire_memory,
        request_max=settings.request_max,
        slo_s=settings.slo,
        batch_requests=settings.batch_requests_max,
        batch_rows=settings.batch_rows,
        queue_requests=settings.queue_requests,
        batches=settings.batches,
        share_cores=settings.dense_batches == 0 and settings.device == "cpu",
    )
    parts = _Parts(worker)
    ending = threading.Event()
    failures: list[BaseException] = []
    try:
        for bundle in bundles:
            _add(parts, bundle, settings)
        if settings.role == "dense":
            assert settings.listen is not None, "settings demand it"
            addresses = {"dense": worker.listen_dense(settings.listen, settings.insecure)}
        else:
            http, grpc = (
                f"{settings.host}:{port}" for port in (settings.http_port, settings.grpc_port)
            )
            addresses = {
                "http": worker.listen_http(http, settings.insecure),
                "grpc": worker.listen_grpc(grpc, settings.insecure),
            }
        metrics = f"{settings.host}:{settings.metrics_port}"
        addresses["metrics"] = worker.listen_metrics(metrics, settings.insecure)

        def warm_up() -> None:
            try:
                if settings.role != "dense":
                    if settings.preload:
                        for store in parts.stores:
                            preload(store.core, ending)
                    for bundle in bundles:
                        _warm_up(worker, bundle, settings.warm_up, ending)
                # A full garbage collection visits every object of torch's modules, while all threads wait: 0.1 to 0.3 s.
                gc.collect()
                gc.freeze()
                worker.set_ready()
                print(
                    json.dumps({"ready": [bundle.name for bundle in bundles], **addresses}),
                    flush=True,
                )
            except BaseException as error:
                if not ending.is_set():
                    failures.append(error)
                worker.stop()

        # Beside the wait for signals, so that a worker whose other half is absent ends at SIGTERM.
        warming = threading.Thread(target=warm_up, name="warm-up")
        warming.start()
        try:
            worker.run(settings.drain)
        finally:
            ending.set()
            warming.join()
    finally:
        worker.stop()
        worker.run(0.001)  # Closes the queues where the worker has not run.
        for threads in parts.threads:
            threads.join()
        for store in parts.stores:
            store.close()
        if parts.device is not None:
            parts.device.close()
        gc.unfreeze()
    if failures:
        raise failures[0]


def _add(parts: _Parts, bundle: BundleFiles, settings: ServeSettings) -> None:
    needs_torch = settings.role != "cpu" or not bundle.is_native()
    programs: Any = import_module("rowmill.serve.programs") if needs_torch else None
    if needs_torch and parts.device is None:
        keep_freed_batches()
        # A variable that a user has set decides, as it does for torch.
        if settings.device == "cpu" and "OMP_NUM_THREADS" not in os.environ:
            torch: Any = import_module("torch")
            torch.set_num_threads(settings.torch_threads)
        parts.device = programs.Device(settings.device, settings.batches)
        parts.device.pin(*parts.worker.arena())
    rows: Any = None
    if settings.role == "dense":
        queue = parts.worker.add_dense(bundle.name, bundle.folder, bundle.program)
        queues = [] if queue is None else [("dense", queue)]
    else:
        core = None
        if settings.rows is not None:
            core = node_rows.connect(
                settings.rows,
                access=None if settings.access is None else Path(settings.access),
                wait_deadline_s=settings.slo,
            )
            rows = _node_store(bundle, core)
            parts.stores.append(rows)
        elif (bundle.folder / "rows").exists():
            rows = _open_rows(bundle, settings)
            core = rows.core
            parts.stores.append(rows)
        queues = parts.worker.add_model(
            bundle.name, bundle.folder, bundle.program, core, settings.dense
        )
    for half, queue in queues:
        stored = rows if half != "dense" and not bundle.is_native() else None
        threads = programs.ProgramThreads(
            bundle, half, queue, parts.device, stored, settings.batch_rows
        )
        parts.threads.append(threads)
        parts.worker.tell(bundle.name, half, threads.said)


@dataclass(frozen=True)
class _Rows:
    """A store that no torch program reads."""

    core: _core.Store

    def close(self) -> None:
        self.core.close()


def _open_rows(bundle: BundleFiles, settings: ServeSettings) -> Any:
    if not bundle.is_native():
        store: Any = import_module("rowmill.store")
        return store.open(bundle.folder / "rows", memory=settings.memory, read_only=True)
    core = _core.Store.open(
        str(bundle.folder / "rows"),
        memory=settings.memory,
        row_memory=None,
        # Each lookup thread runs a request of its own.
        threads=1,
        seed=0,
        wait_deadline_s=30.0,
        create=False,
        read_only=True,
        at=None,
        version=None,
        history=0,
        feed_bytes=None,
        feed_interval_s=0.1,
        feed_waiting=0,
        io="auto",
        alter=[],
    )
    return _Rows(core)


def _node_store(bundle: BundleFiles, node: _core.NodeRows) -> Any:
    if bundle.is_native():
        return node
    store: Any = import_module("rowmill.store.store")
    return store.Store(node_rows.as_core(node), node.url, 0)


def _warm_up(
    worker: _core.Worker, bundle: BundleFiles, seconds: float, ending: threading.Event
) -> None:
    """Ask for the examples of a bundle, until the dense half is there, and compare the answers."""
    until = time.monotonic() + seconds
    for number, (inputs, expected) in enumerate(bundle.examples()):
        while True:
            try:
                left = max(until - time.monotonic(), 0.001)
                answers = worker.ask(bundle.name, inputs, min(left, 30.0))
                break
            except ServingError as error:
                # A last try without time would say that the time is over, and not why.
                if time.monotonic() + 2 * _PAUSE_S > until or ending.wait(_PAUSE_S):
                    raise ServingError(
                        f"{bundle.name} does not answer its example {number}: {error}"
                    ) from None
            except InvalidInput as error:
                raise ServingError(
                    f"{bundle.name} refuses its own example {number}: {error}"
                ) from None
        for at, (given, recorded) in enumerate(zip(answers, expected, strict=True)):
            worst = _difference(given, recorded)
            if not worst <= _TOLERANCE:
                raise ServingError(
                    f"output {at} of {bundle.name} differs by {worst:.3g} from the answer that its bundle has for "
                    f"example {number}: export the bundle again"
                )


def _difference(given: Any, recorded: Named) -> float:
    """The largest difference between two tensors, relative to values above 1; infinity between kinds."""
    (data, dtype, shape), (told, told_dtype, told_shape) = given, recorded
    if (dtype, list(shape)) != (told_dtype, told_shape):
        return float("inf")
    if dtype == "bfloat16":  # The upper halves of 32-bit floats.
        both = [
            (np.frombuffer(part, dtype=np.uint16).astype(np.uint32) << 16).view(np.float32)
            for part in (data, told)
        ]
        tolerated = 8.0  # bfloat16 has 8 bits, so that its last one is 2^-8 of a value.
    else:
        both = [np.frombuffer(part, dtype=dtype) for part in (data, told)]
        tolerated = 8.0 if dtype == "float16" else 1.0
    a, b = (part.astype(np.float64) for part in both)
    with np.errstate(invalid="ignore"):
        distance = np.abs(a - b) / np.maximum(np.abs(b), 1.0) / tolerated
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return float(np.max(np.where(same, 0.0, distance), initial=0.0))
