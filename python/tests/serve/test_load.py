"""`rowmill loadtest` against real workers: its counts, its report and its errors."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
import safetensors.torch
import torch

from python.tests.serve.workers import START_S, Bundles, Worker, make_bundles, stop, worker
from rowmill.cli import main
from rowmill.errors import InvalidInput, ServingError
from rowmill.serve.load import loadtest, report_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ANY = ("--http-port", "0", "--metrics-port", "0", "--memory", "16MiB", "--wire-memory", "32MiB")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    return make_bundles(tmp_path_factory.mktemp("bundles"))


@pytest.fixture(scope="module")
def server(bundles: Bundles) -> Iterator[Worker]:
    with worker(bundles.folder / "dlrm", bundles.folder / "ragged", *_ANY) as found:
        yield found


def url(server: Worker) -> str:
    return f"http://{server.addresses['http']}"


def run(server: Worker | str, model: str, **options: Any) -> dict[str, Any]:
    return loadtest(server if isinstance(server, str) else url(server), model, **options)


def test_the_printed_report_equals_the_json_report(
    server: Worker, bundles: Bundles, tmp_path: Path
) -> None:
    out = tmp_path / "report.json"
    arguments = [url(server), "dlrm", "--requests", bundles.folder / "dlrm", "--senders", 3]
    arguments += ["--seconds", 1, "--warm-up", 0.2, "--slo", 20, "--check", "--json", out]
    done = subprocess.run(
        [sys.executable, "-m", "rowmill", "loadtest", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=START_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(out.read_text())
    counts = report["counts"]
    assert counts["arrived"] == counts["in_time"] > 3
    assert (
        counts["wrong"]
        == counts["failed"]
        == counts["expired"]
        == counts["refused"]
        == counts["late"]
        == 0
    )
    assert report["statuses"] == {"200": {"count": counts["arrived"], "first": ""}}
    assert report["goodput_per_s"] == counts["in_time"] / report["seconds"]
    latency = report["latency_ms"]
    assert latency["count"] == counts["in_time"]
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["p99_9"]
    assert latency["p99_9"] <= latency["max"] * 1.001
    assert report["bytes_sent"] > 100 * counts["arrived"]
    assert report["bytes_received"] > 20 * counts["arrived"]
    for line in report_lines(report):
        assert line in done.stdout
    assert "goodput" in done.stdout


def test_an_open_loop_follows_its_seed_or_trace(
    server: Worker, bundles: Bundles, tmp_path: Path
) -> None:
    where = {"requests": bundles.folder / "ragged", "slo": 20.0, "check": 1e-3}
    times = [0.01 * number for number in range(150)]
    trace = tmp_path / "trace"
    trace.write_text("".join(f"{at}\n" for at in times))
    report = run(server, "ragged", trace=trace, speed=2.0, warm_up=0.25, **where)
    # Half a second at half of the times is warm-up.
    assert report["counts"]["arrived"] == report["counts"]["in_time"] == 100
    assert report["counts"]["wrong"] == 0
    rate = {"rate": 100.0, "seconds": 1.0, "warm_up": 0.0, **where}
    first, again, other = (run(server, "ragged", seed=seed, **rate)["counts"] for seed in (5, 5, 6))
    assert first["arrived"] == again["arrived"]
    assert 50 < other["arrived"] < 200
    assert first["in_time"] == first["arrived"]


def test_wrong_answers_are_counted(server: Worker, bundles: Bundles, tmp_path: Path) -> None:
    recorded = bundles.folder / "dlrm/examples.safetensors"
    examples: dict[str, torch.Tensor] = safetensors.torch.load_file(recorded)
    (name,) = (name for name in examples if name.startswith("1.output."))
    examples[name] += 1.0
    file = tmp_path / "examples.safetensors"
    safetensors.torch.save_file(examples, file)
    options = {"senders": 1, "seconds": 1.0, "warm_up": 0.0, "slo": 20.0}
    report = run(server, "dlrm", requests=file, check=1e-3, **options)
    counts = report["counts"]
    assert counts["wrong"] >= 1
    assert abs(counts["in_time"] - 2 * counts["wrong"]) <= 1, "every other answer"
    assert "recorded" in report["first_wrong"]
    assert run(server, "dlrm", requests=file, **options)["counts"]["wrong"] == 0


def test_flags_that_would_lose_the_report_or_be_ignored_are_refused(
    bundles: Bundles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["loadtest", "http://127.0.0.1:1", "dlrm", "--requests", str(bundles.folder / "dlrm")]
    report = str(tmp_path / "absent" / "report.json")
    for flags, expected in [
        (["--senders", "1", "--json", report], "absent is not a folder"),
        (["--senders", "1", "--speed", "2"], "--speed 2 is for --trace"),
    ]:
        assert main([*start, *flags]) == 2
        assert expected in capsys.readouterr().err


def test_late_refused_expired_and_unsent_requests_are_counted_separately(bundles: Bundles) -> None:
    where = {"requests": bundles.folder / "dlrm", "warm_up": 0.0}
    with worker(bundles.folder / "dlrm", *_ANY) as found:
        # No request can be answered within a microsecond.
        report = run(found, "dlrm", senders=2, seconds=0.5, slo=1e-6, **where)
        counts = report["counts"]
        assert counts["in_time"] == 0
        assert counts["refused"] + counts["expired"] + counts["late"] == counts["arrived"] > 0
        assert report["statuses"].keys() <= {"200", "429", "504"}
        assert report["goodput_per_s"] == 0
        stop(found.process)
        try:
            with pytest.raises(ServingError, match="unanswered"):
                run(found, "dlrm", senders=1, seconds=0.5, slo=0.1, **where)
        finally:
            found.process.send_signal(signal.SIGCONT)
    with pytest.raises(ServingError, match="cannot connect"):
        run(found, "dlrm", senders=1, seconds=0.5, **where)


def test_arrivals_beyond_the_bound_on_connections_are_not_sent(
    server: Worker, bundles: Bundles, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    trace.write_text("0.1\n" * 50)
    where = {"requests": bundles.folder / "dlrm", "slo": 20.0, "warm_up": 0.0}
    report = run(server, "dlrm", trace=trace, connections=3, **where)
    counts = report["counts"]
    assert counts["arrived"] == 50
    assert counts["in_time"] + counts["not_sent"] == 50
    assert counts["in_time"] >= 3
    assert counts["not_sent"] > 0
    assert any("not sent" in text for text in report["warnings"])


def command(server: Worker, bundles: Bundles, *flags: str) -> subprocess.Popen[str]:
    requests = ("--requests", str(bundles.folder / "dlrm"))
    return subprocess.Popen(
        [sys.executable, "-m", "rowmill", "loadtest", url(server), "dlrm", *requests, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until_asked(server: Worker) -> None:
    """Wait until a worker has answered a request besides those of its warm-up."""
    until = time.monotonic() + START_S
    while True:
        with urllib.request.urlopen(f"http://{server.addresses['http']}/v2/models/stats") as reply:
            (found,) = json.load(reply)["model_stats"]
        if found["inference_count"] > 2:
            return
        assert time.monotonic() < until
        time.sleep(0.05)


def test_an_interrupted_run_ends_with_one_line(bundles: Bundles) -> None:
    with (
        worker(bundles.folder / "dlrm", *_ANY) as found,
        command(found, bundles, "--rate", "50", "--seconds", "600") as process,
    ):
        try:
            until_asked(found)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=START_S)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, "")
    assert err == "rowmill: interrupted; nothing was reported\n"


def test_requests_to_a_killed_server_count_as_failed(bundles: Bundles, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    flags = (
        "--senders",
        "2",
        "--seconds",
        "6",
        "--warm-up",
        "0",
        "--slo",
        "20",
        "--json",
        str(out),
    )
    with (
        worker(bundles.folder / "dlrm", *_ANY) as found,
        command(found, bundles, *flags) as process,
    ):
        try:
            until_asked(found)
            found.kill()
            process.communicate(timeout=START_S)
        finally:
            process.kill()
    assert process.returncode == 0
    report = json.loads(out.read_text())
    counts = report["counts"]
    assert counts["in_time"] > 0
    assert counts["failed"] > 0
    ended = ("in_time", "late", "expired", "failed")
    assert sum(counts[name] for name in ended) == counts["arrived"]
    assert report["statuses"].keys() <= {"200", "disconnected", "unreachable"}
    assert "cannot connect" in report["statuses"]["unreachable"]["first"]


def test_grpc_requests_are_counted_like_http_requests(
    server: Worker, bundles: Bundles, tmp_path: Path
) -> None:
    address = f"grpc://{server.addresses['grpc']}"
    where = {"requests": bundles.folder / "ragged", "warm_up": 0.0, "seconds": 0.7}
    report = run(address, "ragged", senders=3, slo=20.0, check=1e-3, **where)
    counts = report["counts"]
    assert counts["arrived"] == counts["in_time"] > 3
    assert counts["wrong"] == 0
    assert report["statuses"] == {"OK": {"count": counts["arrived"], "first": ""}}
    assert report["bytes_received"] > 20 * counts["arrived"]
    report = run(address, "ragged", rate=50.0, slo=1e-6, **where)
    assert report["counts"]["in_time"] == 0
    assert report["statuses"].keys() <= {"OK", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}
    with pytest.raises(ServingError, match=r"\(NOT_FOUND\): no model"):
        run(address, "absent", senders=1, **where)
    with pytest.raises(ServingError, match=r"\(INVALID_ARGUMENT\)"):
        run(address, "dlrm", senders=1, **where)
    for wrong, other in (("grpc", "http"), ("http", "grpc")):
        with pytest.raises(ServingError, match="the first request"):
            run(f"{wrong}://{server.addresses[other]}", "dlrm", senders=1, **where)


def test_invalid_options_raise(server: Worker, bundles: Bundles, tmp_path: Path) -> None:
    good = {"requests": bundles.folder / "dlrm", "senders": 1, "seconds": 0.5}
    trace = tmp_path / "trace"
    trace.write_text("0\nsoon\n")
    for options, reason in [
        ({"senders": 0}, "senders must be"),
        ({"slo": -1.0}, "slo must be"),
        ({"seconds": float("nan")}, "seconds must be"),
        ({"senders": None, "rate": 0.0}, "rate must be"),
        ({"senders": None, "trace": trace}, "line 2"),
        ({"senders": None}, "give one of"),
        ({"rate": 5.0}, "give one of"),
        ({"requests": tmp_path / "absent"}, "absent"),
        ({"requests": trace}, "trace: it is not a safetensors file"),
    ]:
        with pytest.raises(InvalidInput, match=reason):
            run(server, "dlrm", **good | options)
    for address in ("here", "https://127.0.0.1:1", "http://127.0.0.1"):
        with pytest.raises(InvalidInput, match=address):
            run(address, "dlrm", **good)
    with pytest.raises(ServingError, match=r"\(404\): no model"):
        run(server, "absent", **good)
    with pytest.raises(ServingError, match=r"\(400\)"):
        run(server, "ragged", **good)
    unanswered = tmp_path / "requests.safetensors"
    safetensors.torch.save_file({"0.input.ids": torch.zeros(1)}, unanswered)
    with pytest.raises(InvalidInput, match="no recorded answer"):
        run(server, "dlrm", **good | {"requests": unanswered, "check": 1e-3})
    # A server that never answers.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ServingError, match="unanswered"):
            run(address, "dlrm", **good | {"slo": 0.1})
