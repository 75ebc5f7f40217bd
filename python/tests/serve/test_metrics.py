"""Metrics of workers in one process and in two: promtool accepts them, and their values match the requests that were sent."""

from __future__ import annotations

import os
import subprocess
import urllib.request
from typing import TYPE_CHECKING

import pytest
from tritonclient.utils import InferenceServerException

from python.tests.serve.test_serve import ask
from python.tests.serve.tools import promtool
from python.tests.serve.workers import Bundles, make_bundles, worker

if TYPE_CHECKING:
    from collections.abc import Sequence

_PORTS = ("--http-port", "0", "--metrics-port", "0")
_MEMORY = ("--memory", "16MiB", "--wire-memory", "32MiB")
_ASKED = 5


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    return make_bundles(tmp_path_factory.mktemp("bundles"))


def metrics(address: str, accept: str = "*/*") -> tuple[str, str]:
    """Type and text of the metrics at an address."""
    request = urllib.request.Request(f"http://{address}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request) as answer:
        return answer.headers["content-type"], answer.read().decode()


def checked(text: str) -> None:
    done = subprocess.run(
        [promtool(), "check", "metrics"], input=text, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def values(text: str) -> dict[str, float]:
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def asked(address: str, bundles: Bundles, models: Sequence[str]) -> None:
    """Send valid requests to each model, and an invalid one to the first."""
    for name in models:
        (inputs, _), *_ = bundles.requests(name)
        for _ in range(_ASKED):
            ask(address, name, inputs)
    with pytest.raises(InferenceServerException):
        ask(address, models[0], {})


def test_metrics_of_one_process(bundles: Bundles) -> None:
    with worker(*bundles.paths, *_PORTS, *_MEMORY) as found:
        asked(found.addresses["http"], bundles, Bundles.NAMES)
        kind, text = metrics(found.addresses["metrics"])
        open_kind, open_text = metrics(
            found.addresses["metrics"], "application/openmetrics-text;version=1.0.0,text/plain"
        )
    assert kind.startswith("text/plain; version=0.0.4")
    assert open_kind.startswith("application/openmetrics-text; version=1.0.0")
    assert open_text.endswith("# EOF\n")
    checked(text)
    found_values = values(text)
    assert found_values.keys() == values(open_text).keys()
    for name, stages in (
        ("dlrm", ("cpu_queue", "cpu", "dense_queue", "dense", "encode")),
        ("ragged", ("cpu_queue", "cpu", "dense_queue", "dense", "post_queue", "post", "encode")),
        (
            "rounds",
            ("inputs_queue", "inputs", "cpu_queue", "cpu", "dense_queue", "dense", "encode"),
        ),
    ):
        model = f'model="{name}"'
        assert found_values[f'rowmill_serve_requests_total{{{model},status="200"}}'] == _ASKED
        whole = found_values[f"rowmill_serve_request_duration_seconds_sum{{{model}}}"]
        parts = 0.0
        for stage in stages:
            labels = f'{{{model},stage="{stage}"}}'
            assert found_values[f"rowmill_serve_stage_duration_seconds_count{labels}"] == _ASKED
            parts += found_values[f"rowmill_serve_stage_duration_seconds_sum{labels}"]
        assert 0 < parts < whole
        looked_up = found_values[f"rowmill_serve_rows_looked_up_total{{{model}}}"]
        assert 0 <= found_values[f"rowmill_serve_rows_read_total{{{model}}}"] <= looked_up
        assert looked_up > 0
        assert found_values[f'rowmill_serve_queued_requests{{{model},half="dense"}}'] == 0
        at_once = found_values[f'rowmill_serve_batches_at_once{{{model},half="dense"}}']
        assert 1 <= at_once <= len(os.sched_getaffinity(0))
        assert found_values[f"rowmill_serve_open_requests{{{model}}}"] == 0
    assert found_values['rowmill_serve_requests_total{model="dlrm",status="400"}'] == 1
    assert found_values["rowmill_serve_wire_memory_bytes"] == 0


def test_metrics_of_two_processes(bundles: Bundles) -> None:
    dense = ("--role", "dense", "--listen", "tcp://127.0.0.1:0", "--metrics-port", "0")
    path = bundles.folder / "dlrm"
    with (
        worker(path, *dense) as back,
        worker(
            path, "--role", "cpu", "--dense", back.addresses["dense"], *_PORTS, *_MEMORY
        ) as front,
    ):
        asked(front.addresses["http"], bundles, ["dlrm"])
        _, front_text = metrics(front.addresses["metrics"])
        _, back_text = metrics(back.addresses["metrics"])
    checked(front_text)
    checked(back_text)
    crossing = 'rowmill_serve_stage_duration_seconds_{}{{model="dlrm",stage="crossing"}}'
    dense_run = 'rowmill_serve_stage_duration_seconds_{}{{model="dlrm",stage="dense"}}'
    assert values(front_text)[crossing.format("count")] == _ASKED
    assert dense_run.format("count") not in values(front_text)
    # The requests of the CPU half's warm-up are counted here, too.
    assert values(back_text)[dense_run.format("count")] >= _ASKED
    assert crossing.format("count") not in values(back_text)
