"""Workers over HTTP: both halves in one process, and in two processes over both transports."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from tritonclient import http
from tritonclient.utils import InferenceServerException

from python.tests.nodes import serving
from python.tests.serve.workers import Bundles, Worker, make_bundles, stop, worker
from rowmill.partition.bundle import Bundle
from rowmill.partition.export import export

if TYPE_CHECKING:
    from collections.abc import Iterator

_DENSE = "tcp://127.0.0.1:0"
_PORTS = ("--http-port", "0", "--metrics-port", "0")
_ANY = (*_PORTS, "--slo", "30", "--memory", "16MiB", "--wire-memory", "32MiB")
_KINDS = {torch.float32: "FP32", torch.int64: "INT64"}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    return make_bundles(tmp_path_factory.mktemp("bundles"))


def ask(address: str, model: str, inputs: dict[str, Tensor], **options: Any) -> dict[str, Tensor]:
    with http.InferenceServerClient(address, network_timeout=60.0) as client:
        given: list[http.InferInput] = []
        for name, value in inputs.items():
            given.append(http.InferInput(name, list(value.shape), _KINDS[value.dtype]))
            given[-1].set_data_from_numpy(value.numpy())
        result = client.infer(model, given, **options)
        return {
            output["name"]: torch.from_numpy(result.as_numpy(output["name"]).copy())
            for output in result.get_response()["outputs"]
        }


def cpu_seconds(*workers: Worker) -> float:
    """CPU time that workers have used so far."""
    fields = [
        Path(f"/proc/{found.process.pid}/stat").read_text().rpartition(")")[2].split()
        for found in workers
    ]
    return sum(int(times[11]) + int(times[12]) for times in fields) / os.sysconf("SC_CLK_TCK")


def answers_alike(address: str, bundles: Bundles) -> None:
    for name in Bundles.NAMES:
        for inputs, answers in bundles.requests(name):
            found = ask(address, name, inputs)
            assert found.keys() == answers.keys()
            for output, expected in answers.items():
                torch.testing.assert_close(found[output], expected, rtol=1e-6, atol=1e-6)


@pytest.fixture(scope="module")
def monolith(bundles: Bundles) -> Iterator[Worker]:
    with worker(*bundles.paths, *_ANY) as found:
        yield found


def test_answers_equal_those_recorded_in_the_bundles(monolith: Worker, bundles: Bundles) -> None:
    answers_alike(monolith.addresses["http"], bundles)


def test_metadata_of_models(monolith: Worker, bundles: Bundles) -> None:
    with http.InferenceServerClient(monolith.addresses["http"]) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        for name in Bundles.NAMES:
            assert client.is_model_ready(name)
            about = client.get_model_metadata(name)
            (inputs, answers), *_ = bundles.requests(name)
            assert [named["name"] for named in about["inputs"]] == list(inputs)
            assert [named["name"] for named in about["outputs"]] == list(answers)


def test_statistics_metrics_and_unloading_of_models(monolith: Worker, bundles: Bundles) -> None:
    (inputs, _), *_ = bundles.requests("ragged")
    # Parts of a ragged input, with dots.
    dotted = {name.replace("words_", "words."): value for name, value in inputs.items()}
    ask(monolith.addresses["http"], "ragged", dotted)
    with http.InferenceServerClient(monolith.addresses["http"]) as client:
        (stats,) = client.get_inference_statistics("ragged")["model_stats"]
        assert stats["inference_stats"]["success"]["count"] >= 1
        assert stats["inference_stats"]["success"]["ns"] > 0
        assert client.get_model_config("ragged")["input"][0]["data_type"] == "TYPE_INT64"
        client.unload_model("ragged")
        assert not client.is_model_ready("ragged")
        states = {model["name"]: model["state"] for model in client.get_model_repository_index()}
        assert states == {"dlrm": "READY", "ragged": "UNAVAILABLE", "rounds": "READY"}
        with pytest.raises(InferenceServerException, match="unloaded"):
            ask(monolith.addresses["http"], "ragged", inputs)
        client.load_model("ragged")
        assert client.is_model_ready("ragged")
        with pytest.raises(InferenceServerException, match="unsupported"):
            client.get_system_shared_memory_status()
    with urllib.request.urlopen(f"http://{monolith.addresses['metrics']}/metrics") as page:
        text = page.read().decode()
    assert 'rowmill_serve_requests_total{model="ragged",status="503"} 1' in text
    assert "rowmill_serve_request_duration_seconds_bucket" in text
    assert "rowmill_serve_wire_memory_bytes" in text
    cpu_s = re.search(r'program_cpu_seconds_total\{model="dlrm",half="dense"\} (\S+)', text)
    assert cpu_s is not None
    assert float(cpu_s[1]) > 0, "the warm-up alone takes CPU time"


def test_a_ragged_input_of_the_user_is_given_once(monolith: Worker, bundles: Bundles) -> None:
    address = monolith.addresses["http"]
    words = {"values": torch.tensor([3, 1, 4]), "weights": torch.tensor([0.5, 2.0, 1.5])}
    once = {f"words.{part}": value for part, value in words.items()}
    once["words.offsets"] = torch.tensor([0, 3])
    for rows in (1, 5):
        dense = torch.rand(rows, 2)
        repeated = {f"words_{part}": value.repeat(rows) for part, value in words.items()}
        repeated["words_offsets"] = 3 * torch.arange(rows + 1)
        expected = ask(address, "ragged", repeated | {"dense": dense})
        found = ask(address, "ragged", once | {"dense": dense})
        for output, value in bundles.answer("ragged", repeated | {"dense": dense}).items():
            torch.testing.assert_close(found[output], value, rtol=1e-6, atol=1e-6)
            assert found[output].equal(expected[output])
    once["words.offsets"] = torch.tensor([0, 2])
    with pytest.raises(InferenceServerException, match="must run from 0 to 3"):
        ask(address, "ragged", once | {"dense": torch.rand(5, 2)})


class Bags(nn.Module):
    """A score of a bag of words of the user and a bag of tags of the item; with `dense`, also of a number of the user."""

    def __init__(self, *, dense: bool) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(20, 4, mode="sum", include_last_offset=True)
        self.tags = nn.EmbeddingBag(20, 4, mode="sum", include_last_offset=True)
        self.layer = nn.Linear(9 if dense else 8, 1)

    def forward(
        self, words: dict[str, Tensor], tags: dict[str, Tensor], age: Tensor | None = None
    ) -> Tensor:
        vectors = [
            self.words(words["values"], words["offsets"]),
            self.tags(tags["values"], tags["offsets"]),
        ]
        return self.layer(torch.cat(vectors if age is None else [*vectors, age], dim=1)).squeeze(1)


def bags_call(rows: int, *, dense: bool) -> tuple[Any, ...]:
    words = {"values": torch.arange(2 * rows) % 20, "offsets": 2 * torch.arange(rows + 1)}
    tags = {"values": torch.arange(3 * rows) % 20, "offsets": 3 * torch.arange(rows + 1)}
    return (words, tags, torch.rand(rows, 1)) if dense else (words, tags)


def test_candidates_may_have_ragged_inputs_only(tmp_path: Path) -> None:
    torch.manual_seed(4)
    user = {"words_values": torch.tensor([5, 1, 7]), "words_offsets": torch.tensor([0, 3])}
    models = {"bags": False, "aged": True}
    for name, dense in models.items():
        given = ["words_values", "words_offsets", *(["age"] if dense else [])]
        calls = [bags_call(rows, dense=dense) for rows in (6, 9)]
        export(Bags(dense=dense), calls, out=tmp_path / name, user=given)
    with worker(*(tmp_path / name for name in models), *_ANY) as found:
        for rows in (1, 4):
            tags = bags_call(rows, dense=False)[1]
            items = {f"tags_{part}": value for part, value in tags.items()}
            repeated = {
                "words_values": user["words_values"].repeat(rows),
                "words_offsets": 3 * torch.arange(rows + 1),
            }
            for name, dense in models.items():
                age = {"age": torch.tensor([[0.25]])} if dense else {}
                every = {name: value.repeat(rows, 1) for name, value in age.items()}
                with Bundle.open(tmp_path / name) as bundle:
                    (expected,) = bundle.run(items | repeated | every)
                (scores,) = ask(found.addresses["http"], name, items | user | age).values()
                torch.testing.assert_close(scores, expected, rtol=1e-6, atol=1e-6)


def test_concurrent_requests_of_different_sizes(monolith: Worker, bundles: Bundles) -> None:
    (inputs, _), *_ = bundles.requests("dlrm")
    requests = [{name: value[:rows] for name, value in inputs.items()} for rows in (1, 2, 5)] * 8
    answers: list[Any] = [None] * len(requests)

    def one(number: int) -> None:
        answers[number] = ask(monolith.addresses["http"], "dlrm", requests[number])

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for request, answer in zip(requests, answers, strict=True):
        for output, expected in bundles.answer("dlrm", request).items():
            torch.testing.assert_close(answer[output], expected, rtol=1e-6, atol=1e-6)


def test_invalid_requests_are_refused_with_the_reason(monolith: Worker, bundles: Bundles) -> None:
    address = monolith.addresses["http"]
    (inputs, _), *_ = bundles.requests("ragged")
    values, offsets = (name for name in inputs if name.endswith(("values", "offsets")))
    falling = inputs[offsets].clone()
    falling[2] = 5
    wrong = {
        "offsets must not decrease": inputs | {offsets: falling},
        "offsets must run from 0": inputs | {offsets: inputs[offsets] + 1},
        "20": inputs | {values: inputs[values] + 1000},
        "must have": inputs | {offsets: inputs[offsets][:-1]},
        "is missing": {name: value for name, value in inputs.items() if name != values},
        "datatype": inputs | {values: inputs[values].float()},
    }
    for reason, request in wrong.items():
        with pytest.raises(InferenceServerException) as caught:
            ask(address, "ragged", request)
        assert reason in str(caught.value), caught.value
    with pytest.raises(InferenceServerException, match="no model"):
        ask(address, "absent", inputs)
    answers_alike(address, bundles)


def test_an_impossible_deadline_gives_an_error_soon(monolith: Worker, bundles: Bundles) -> None:
    (inputs, _), *_ = bundles.requests("dlrm")
    begin = time.monotonic()
    with pytest.raises(InferenceServerException):
        ask(monolith.addresses["http"], "dlrm", inputs, timeout=1)
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_two_halves_answer_equally_and_recover_from_a_killed_dense_half(
    transport: str, bundles: Bundles, tmp_path: Path
) -> None:
    listen = "tcp://127.0.0.1:0" if transport == "tcp" else f"shm://{tmp_path}/dense.sock"
    dense = ("--role", "dense", "--metrics-port", "0", "--wire-memory", "32MiB", "--listen")
    with worker(*bundles.paths, *dense, listen) as first:
        address = first.addresses["dense"]
        cpu = ("--role", "cpu", "--dense", address, "--preload")
        with worker(*bundles.paths, *cpu, *_ANY) as front:
            answers_alike(front.addresses["http"], bundles)
            before = cpu_seconds(first, front)
            time.sleep(2.0)
            assert cpu_seconds(first, front) - before < 0.5, "no thread polls for requests"
            first.kill()
            (inputs, _), *_ = bundles.requests("dlrm")
            begin = time.monotonic()
            with pytest.raises(InferenceServerException) as caught:
                ask(front.addresses["http"], "dlrm", inputs)
            assert time.monotonic() - begin < 30, "within its deadline"
            assert "dense half" in str(caught.value)
            with worker(*bundles.paths, *dense, address) as second:
                until = time.monotonic() + 60
                while True:  # The first attempts may fail: it pauses before it connects again.
                    try:
                        answers_alike(front.addresses["http"], bundles)
                        break
                    except InferenceServerException:
                        assert time.monotonic() < until
                        time.sleep(0.05)
                assert front.end() == 0
                assert second.end() == 0


def test_a_native_cpu_half_loads_no_torch(bundles: Bundles) -> None:
    """Its dense half never starts, so it never becomes ready, and it ends at SIGTERM."""
    flags = ("--role", "cpu", "--dense", "tcp://127.0.0.1:1", *_ANY, "--log-level", "info")
    with worker(bundles.folder / "dlrm", *flags, wait=False) as front:
        # The maps of the process name every library that it has loaded.
        maps = Path(f"/proc/{front.process.pid}/maps")
        until = time.monotonic() + 60
        while "rowmill" not in maps.read_text():
            assert time.monotonic() < until
            time.sleep(0.05)
        time.sleep(1.0)
        text = maps.read_text()
        assert "_core" in text
        assert "libtorch" not in text
        assert front.end() == 0
        assert front.process.stdout is not None
        assert front.process.stdout.read() == "", "it was never ready"
    assert [line for line in front.log if not line.startswith("{")] == [], "no thread panicked"


def test_sigterm_ends_a_worker_with_exit_code_0(bundles: Bundles) -> None:
    with worker(f"scores={bundles.folder / 'dlrm'}", *_ANY) as found:
        assert found.addresses["ready"] == ["scores"]
        (inputs, answers), *_ = bundles.requests("dlrm")
        assert ask(found.addresses["http"], "scores", inputs).keys() == answers.keys()
        assert found.end() == 0
    events = [json.loads(line) for line in found.log if line.startswith("{")]
    assert any("SIGTERM" in event["message"] for event in events)


def test_invalid_arguments_give_a_one_line_error(bundles: Bundles, tmp_path: Path) -> None:
    path = bundles.folder / "dlrm"
    not_utf8 = tmp_path / "settings.toml"
    not_utf8.write_bytes(b"slo = \xff")
    for arguments, reason in [
        ((tmp_path,), "no manifest.json): give a folder that `rowmill export` wrote"),
        ((path, "--role", "cpu"), "role 'cpu' needs an address in dense"),
        ((path, "--dense", "tcp://127.0.0.1:1"), "only role 'cpu' has dense"),
        ((path, "--role", "dense", "--listen", "here"), "address: give tcp://HOST:PORT"),
        ((path, path, *_PORTS), "two bundles"),
        (
            (path, f"dlrm={bundles.folder / 'ragged'}", "--role", "dense", "--listen", _DENSE),
            "two bundles are called",
        ),
        ((path, "--role", "dense", "--listen", _DENSE, "--preload"), "reads no rows"),
        ((path, "--config", str(not_utf8)), "is not a TOML file"),
        ((path, "--host", "0.0.0.0", *_PORTS), "--insecure"),
        ((path, "--slo", "0"), "slo must be"),
    ]:
        with worker(*arguments, wait=False) as found:
            assert found.process.wait(120) in (1, 2)
        (line,) = [line for line in found.log if line.startswith("rowmill:")]
        assert reason in line


def test_rows_come_from_a_storage_node(bundles: Bundles, tmp_path: Path) -> None:
    for name in ("dlrm", "rounds"):
        with (
            serving(bundles.folder / name / "rows", tmp_path / name) as (url, _),
            worker(bundles.folder / name, *_ANY, "--rows", url) as found,
        ):
            for inputs, answers in bundles.requests(name):
                given = ask(found.addresses["http"], name, inputs)
                for output, expected in answers.items():
                    torch.testing.assert_close(given[output], expected, rtol=1e-6, atol=1e-6)
            assert found.end() == 0


def test_a_silent_storage_node_costs_requests_their_deadlines(
    bundles: Bundles, tmp_path: Path
) -> None:
    inputs, answers = next(iter(bundles.requests("dlrm")))
    with (
        serving(bundles.folder / "dlrm/rows", tmp_path / "node") as (url, node),
        worker(bundles.folder / "dlrm", *_ANY, "--rows", url) as found,
    ):
        address = found.addresses["http"]
        stop(node)
        for _ in range(3):
            with pytest.raises(InferenceServerException) as failed:
                ask(address, "dlrm", inputs, timeout=300_000)
            assert failed.value.status() == "504"
        node.send_signal(signal.SIGCONT)
        given = ask(address, "dlrm", inputs)
        for output, expected in answers.items():
            torch.testing.assert_close(given[output], expected, rtol=1e-6, atol=1e-6)
