"""Ten times as many requests as the dense half can answer.

The dense half takes 20 ms per request, one at a time, so its capacity is 50 requests per second on any machine. It must
answer in time at half of its capacity or more, refuse nearly all other requests at once, and free their memory. After the
overload, requests must be answered as before. The limits leave room for a busy machine; `-s` prints the figures.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import safetensors.torch

from python.tests.serve.pausing import export_pausing, pausing_call
from python.tests.serve.test_faults import (
    PROGRAM,
    cpu_half,
    dense_half,
    listen_at,
    metric,
    until,
)
from python.tests.serve.workers import worker
from rowmill.partition.bundle import Bundle
from rowmill.serve.load import loadtest, report_lines

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from python.tests.serve.workers import Worker

_PAUSE_MS = 20.0
_CAPACITY_PER_S = 1e3 / _PAUSE_MS
_SLO_S = 0.5
_GROWTH_BYTES_MAX = 48 << 20


def resident_bytes(worker: Worker) -> int:
    """Resident memory of a worker."""
    with open(f"/proc/{worker.process.pid}/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * 4096


def recorded_requests(bundle: Path, out: Path) -> Path:
    """A file of requests that take the dense half 20 ms, with their answers."""
    tensors: dict[str, Tensor] = {}
    with Bundle.open(bundle) as opened:
        for number in range(3):
            request = pausing_call(number + 2, _PAUSE_MS)
            (scores,) = opened.run(request)
            tensors |= {f"{number}.input.{name}": value for name, value in request.items()}
            tensors[f"{number}.output.0"] = scores
    safetensors.torch.save_file(tensors, out)
    return out


@pytest.mark.parametrize(
    ("transport", "seconds"),
    [
        ("shm", 10.0),
        pytest.param("shm", 30.0, marks=pytest.mark.long),
        pytest.param("tcp", 30.0, marks=pytest.mark.long),
    ],
)
def test_an_overloaded_worker_answers_at_capacity_and_refuses_the_rest(
    transport: str, seconds: float, tmp_path: Path
) -> None:
    bundle = tmp_path / "pausing"
    export_pausing(bundle)
    requests = recorded_requests(bundle, tmp_path / "requests.safetensors")
    with (
        dense_half(bundle, listen_at(transport, tmp_path), sys.executable) as dense,
        cpu_half(bundle, dense.addresses["dense"], python=sys.executable) as front,
    ):
        url = f"http://{front.addresses['http']}"

        def offer(rate: float, length: float) -> dict[str, Any]:
            report = loadtest(
                url,
                "pausing",
                requests=requests,
                rate=rate,
                seconds=length,
                slo=_SLO_S,
                check=1e-4,
                connections=1024,
            )
            print("\n".join(["", *report_lines(report)]))
            assert report["counts"]["wrong"] == 0, report["first_wrong"]
            return report

        # Memory is compared after everything has been allocated once.
        offer(10 * _CAPACITY_PER_S, 2.0)
        before = [resident_bytes(half) for half in (front, dense)]
        counts = offer(10 * _CAPACITY_PER_S, seconds)["counts"]
        grown = [
            resident_bytes(half) - size for half, size in zip((front, dense), before, strict=True)
        ]
        print(f"memory of the CPU half and the dense half grew by {grown} bytes")
        assert counts["in_time"] >= 0.5 * _CAPACITY_PER_S * seconds
        assert counts["refused"] >= 0.5 * counts["arrived"]
        lost = ("late", "expired", "failed", "not_sent")
        assert sum(counts[name] for name in lost) <= 0.1 * counts["arrived"]
        assert max(grown) < _GROWTH_BYTES_MAX
        for half in (front, dense):
            until(
                "memory is free", lambda h=half: metric(h, "rowmill_serve_wire_memory_bytes") == 0
            )
        after = offer(0.2 * _CAPACITY_PER_S, 3.0)["counts"]
        assert after["in_time"] >= 0.9 * after["arrived"]
        assert (front.end(), dense.end()) == (0, 0)


def test_a_model_is_answered_while_another_one_is_overloaded(tmp_path: Path) -> None:
    bundle = tmp_path / "pausing"
    export_pausing(bundle)
    requests = recorded_requests(bundle, tmp_path / "requests.safetensors")
    flags = ("--http-port", "0", "--metrics-port", "0", "--dense-batches", "1")
    with (
        worker(f"busy={bundle}", f"calm={bundle}", *flags, program=PROGRAM) as both,
        ThreadPoolExecutor() as threads,
    ):
        url = f"http://{both.addresses['http']}"

        def offer(model: str, rate: float, length: float) -> dict[str, Any]:
            given: dict[str, Any] = {"requests": requests, "check": 1e-4, "slo": _SLO_S}
            report = loadtest(url, model, rate=rate, seconds=length, **given)
            print("\n".join(["", model, *report_lines(report)]))
            return report["counts"]

        busy = threads.submit(offer, "busy", 10 * _CAPACITY_PER_S, 6.0)
        calm = offer("calm", 0.1 * _CAPACITY_PER_S, 5.0)
        assert calm["in_time"] >= 0.9 * calm["arrived"]
        assert busy.result()["in_time"] >= 0.3 * _CAPACITY_PER_S * 6.0
        assert busy.result()["wrong"] == calm["wrong"] == 0
        assert both.end() == 0
