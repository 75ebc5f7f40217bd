"""The load generator of `rowmill loadtest`, and its report as text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rowmill import _core

if TYPE_CHECKING:
    from pathlib import Path


def loadtest(
    url: str,
    model: str,
    *,
    requests: Path,
    senders: int | None = None,
    rate: float | None = None,
    trace: Path | None = None,
    speed: float = 1.0,
    seconds: float | None = None,
    warm_up: float = 1.0,
    slo: float = 1.0,
    seed: int = 0,
    connections: int = 256,
    check: float | None = None,
) -> dict[str, Any]:
    """Offer load to a server of the Open Inference Protocol and measure its answers.

    Give one of `senders`, `rate` and `trace`.

    Args:
        url: `http://HOST:PORT` or `grpc://HOST:PORT`.
        model: Name of a model.
        requests: A bundle, whose example requests are sent in turn, or a file of safetensors with tensors `N.input.NAME`,
            and `N.output.PLACE` for their answers.
        senders: Closed loop: each sender sends its next request when its last one has ended. After a refusal or failure it
            waits 100 ms, which doubles each time, up to 800 ms, until it is answered.
        rate: Open loop: Poisson arrivals, requests per second.
        trace: Open loop: a file with one arrival time in seconds per line.
        speed: Arrival times of the trace are divided by it.
        seconds: Length of the measured window (10, or to the end of the trace).
        warm_up: Seconds before the window, in which requests are sent and not counted.
        slo: Seconds within which an answer is good. Requests carry it as their timeout.
        seed: Seed of Poisson arrivals.
        connections: Bound on the connections of an open loop. Arrivals beyond it are not sent.
        check: Compare answers with the recorded ones, with this tolerance.

    Returns:
        The report, as docs/guide/serving.md describes it.

    Raises:
        InvalidInput: An option, the trace or the requests are wrong; names it.
        ServingError: The server is not there or does not take the first request.
    """
    report = _core.loadtest(
        url,
        model,
        requests,
        senders=senders,
        rate=rate,
        trace=trace,
        speed=speed,
        seconds=seconds,
        warm_up_s=warm_up,
        slo_s=slo,
        seed=seed,
        connections=connections,
        check=check,
    )
    return json.loads(report)


_COUNTS = {
    "in_time": "answered within the SLO",
    "late": "answered later",
    "refused": "refused because of load",
    "expired": "deadline passed at the server",
    "failed": "failed",
    "not_sent": "not sent: no free connection",
    "wrong": "wrong answers",
}
_PERCENTILES = ("p50", "p90", "p99", "p99_9", "max")
_MILLISECONDS = {
    "latency_ms": "answers",
    "refused_ms": "refusals",
    "lag_ms": "generator late by",
}


def report_lines(report: dict[str, Any]) -> list[str]:
    """A report as lines of text."""
    seconds, counts = report["seconds"], report["counts"]
    share = 100.0 / max(counts["arrived"], 1)
    mode = {
        "senders": f"{report['connections']} senders",
        "rate": "Poisson arrivals",
        "trace": "arrivals of a trace",
    }[report["mode"]]
    lines = [
        f"{report['model']} at {report['url']}: {mode}, {seconds:g} s after {report['warm_up_s']:g} s of warm-up, "
        f"SLO {1e3 * report['slo_s']:g} ms",
        "",
        f"{'offered':<30}{report['offered_per_s']:>12.1f} /s",
        f"{'answered':<30}{report['answered_per_s']:>12.1f} /s",
        f"{'goodput':<30}{report['goodput_per_s']:>12.1f} /s",
        "",
        f"{'requests':<30}{counts['arrived']:>12}",
    ]
    for key, text in _COUNTS.items():
        if counts[key] or key == "in_time":
            lines.append(f"{text:<30}{counts[key]:>12}{share * counts[key]:>9.2f} %")
    lines += ["", f"{'milliseconds':<30}" + "".join(f"{name:>12}" for name in _PERCENTILES)]
    for key, text in _MILLISECONDS.items():
        if report[key]["count"]:
            row = "".join(f"{report[key][name]:>12.2f}" for name in _PERCENTILES)
            lines.append(f"{text:<30}{row}")
    lines += [
        "",
        f"{'sent':<30}{report['bytes_sent'] / seconds / 2**20:>12.2f} MiB/s",
        f"{'received':<30}{report['bytes_received'] / seconds / 2**20:>12.2f} MiB/s",
        f"{'CPU of the generator':<30}{100.0 * report['cpu_s'] / seconds:>12.1f} % of a core",
    ]
    for status, found in report["statuses"].items():
        if found["first"]:
            lines.append(f"{found['count']} x {status}, the first: {found['first']}")
    if report["first_wrong"]:
        lines.append(f"the first wrong answer: {report['first_wrong']}")
    return lines + [f"warning: {text}" for text in report["warnings"]]
