"""Workers over gRPC, with tritonclient: every call, answers equal to those over HTTP, refused and cancelled requests."""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tritonclient.utils import InferenceServerException

from python.tests.serve.workers import Bundles, Worker, make_bundles, worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

# The clients and their messages, which have no complete types.
http: Any = import_module("tritonclient.http")
grpc: Any = import_module("tritonclient.grpc")
grpcio: Any = import_module("grpc")
service_pb2: Any = import_module("tritonclient.grpc.service_pb2")
service_pb2_grpc: Any = import_module("tritonclient.grpc.service_pb2_grpc")
model_config_pb2: Any = import_module("tritonclient.grpc.model_config_pb2")

_PORTS = ("--http-port", "0", "--metrics-port", "0")
_ANY = (*_PORTS, "--slo", "30", "--memory", "16MiB", "--wire-memory", "64MiB")
_KINDS = {torch.float32: "FP32", torch.int64: "INT64"}
_PROTO = Path(__file__).parents[3] / "crates" / "rowmill-serve" / "proto" / "inference.proto"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    return make_bundles(tmp_path_factory.mktemp("bundles"))


@pytest.fixture(scope="module")
def monolith(bundles: Bundles) -> Iterator[Worker]:
    with worker(*bundles.paths, *_ANY) as found:
        yield found


def _given(protocol: Any, inputs: dict[str, Tensor]) -> list[Any]:
    given: list[Any] = []
    for name, value in inputs.items():
        given.append(protocol.InferInput(name, list(value.shape), _KINDS[value.dtype]))
        given[-1].set_data_from_numpy(value.numpy())
    return given


def ask(address: str, model: str, inputs: dict[str, Tensor], **options: Any) -> dict[str, Any]:
    with grpc.InferenceServerClient(address) as client:
        result = client.infer(model, _given(grpc, inputs), **options)
        return {
            output.name: result.as_numpy(output.name) for output in result.get_response().outputs
        }


def ask_http(address: str, model: str, inputs: dict[str, Tensor]) -> dict[str, Any]:
    with http.InferenceServerClient(address, network_timeout=60.0) as client:
        result = client.infer(model, _given(http, inputs))
        names = [output["name"] for output in result.get_response()["outputs"]]
        return {name: result.as_numpy(name) for name in names}


def answers_equal_those_over_http(found: Worker, bundles: Bundles) -> None:
    for name in Bundles.NAMES:
        for inputs, answers in bundles.requests(name):
            over_grpc = ask(found.addresses["grpc"], name, inputs)
            over_http = ask_http(found.addresses["http"], name, inputs)
            assert list(over_grpc) == list(answers)
            for output, expected in answers.items():
                assert over_grpc[output].tobytes() == over_http[output].tobytes()
                np.testing.assert_allclose(over_grpc[output], expected, rtol=1e-6, atol=1e-6)


def wire_memory(found: Worker) -> int:
    with urllib.request.urlopen(f"http://{found.addresses['metrics']}/metrics") as page:
        text = page.read().decode()
    held = re.search(r"^rowmill_serve_wire_memory_bytes (\d+)", text, re.MULTILINE)
    assert held is not None
    return int(held[1])


def wait_until_memory_is_free(found: Worker) -> None:
    until = time.monotonic() + 60
    while wire_memory(found) > 0:
        assert time.monotonic() < until
        time.sleep(0.02)


def large(bundles: Bundles, mib: int) -> dict[str, Tensor]:
    """A request of `mib` MiB with two bags of words."""
    (inputs, _), *_ = bundles.requests("ragged")
    values, offsets, weights, dense = inputs
    count = mib * 2**20 // 12
    return {
        values: torch.arange(count) % 20,
        offsets: torch.tensor([0, count // 3, count]),
        weights: torch.full((count,), 1 / count),
        dense: torch.rand(2, 2),
    }


def test_field_numbers_of_the_proto_file_equal_those_of_the_client() -> None:
    scalars = {"double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "bool": 8}
    scalars |= {"string": 9, "bytes": 12, "uint32": 13}
    known = {**service_pb2.DESCRIPTOR.message_types_by_name}
    known |= model_config_pb2.DESCRIPTOR.message_types_by_name
    path = list[Any]()
    compared = 0
    for line in _PROTO.read_text().splitlines():
        if opened := re.match(r"\s*(message|enum|oneof|service) (\w+) \{(\})?", line):
            kind, name, closed = opened.groups()
            if kind == "message":
                path.append((path[-1].nested_types_by_name if path else known)[name])
            elif kind == "enum":
                path.append(model_config_pb2.DESCRIPTOR.enum_types_by_name[name])
            else:
                path.append(path[-1] if path else None)
            if closed:
                path.pop()
        elif re.match(r"\s*\}", line):
            path.pop()
        elif field := re.match(r"\s*(repeated )?(map<.*>|\w+) (\w+) = (\d+);", line):
            repeated, kind, name, number = field.groups()
            theirs = path[-1].fields_by_name[name]
            assert theirs.number == int(number), line
            assert theirs.is_repeated == (repeated is not None or kind.startswith("map")), line
            if kind in scalars:
                assert theirs.type == scalars[kind], line
            compared += 1
        elif value := re.match(r"\s*(TYPE_\w+) = (\d+);", line):
            assert path[-1].values_by_name[value[1]].number == int(value[2])
            compared += 1
    assert compared > 80
    (service,) = service_pb2.DESCRIPTOR.services_by_name.values()
    calls = re.findall(r"rpc (\w+)\((\w+)\) returns \((\w+)\)", _PROTO.read_text())
    assert len(calls) == 11
    for name, asked, answer in calls:
        theirs = service.methods_by_name[name]
        assert (theirs.input_type.name, theirs.output_type.name) == (asked, answer)


def test_answers_equal_those_over_http(monolith: Worker, bundles: Bundles) -> None:
    answers_equal_those_over_http(monolith, bundles)
    wait_until_memory_is_free(monolith)


def test_metadata_of_the_server_and_its_models(monolith: Worker, bundles: Bundles) -> None:
    with grpc.InferenceServerClient(monolith.addresses["grpc"]) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert "statistics" in client.get_server_metadata().extensions
        for name in Bundles.NAMES:
            assert client.is_model_ready(name)
            about = client.get_model_metadata(name)
            (inputs, answers), *_ = bundles.requests(name)
            assert [named.name for named in about.inputs] == list(inputs)
            assert [named.name for named in about.outputs] == list(answers)
        config = client.get_model_config("ragged", as_json=True)["config"]
        assert config["input"][0]["data_type"] == "TYPE_INT64"
        with pytest.raises(InferenceServerException, match="NOT_FOUND"):
            client.get_model_metadata("absent")
        with pytest.raises(InferenceServerException, match=r"UNIMPLEMENTED.*unsupported"):
            client.get_system_shared_memory_status()
    with grpcio.insecure_channel(monolith.addresses["grpc"]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpcio.RpcError) as caught:
            list(stub.ModelStreamInfer(iter([service_pb2.ModelInferRequest()])))
    assert caught.value.code() == grpcio.StatusCode.UNIMPLEMENTED
    assert "unsupported" in caught.value.details()


def test_statistics_and_unloading_of_models(monolith: Worker, bundles: Bundles) -> None:
    (inputs, _), *_ = bundles.requests("ragged")
    # Parts of a ragged input, with dots.
    dotted = {name.replace("words_", "words."): value for name, value in inputs.items()}
    address = monolith.addresses["grpc"]
    ask(address, "ragged", dotted)
    with grpc.InferenceServerClient(address) as client:
        stats = client.get_inference_statistics("ragged").model_stats[0]
        assert stats.inference_stats.success.count >= 1
        assert len(client.get_inference_statistics().model_stats) == 3
        client.unload_model("ragged")
        assert not client.is_model_ready("ragged")
        index = client.get_model_repository_index()
        states = {model.name: model.state for model in index.models}
        assert states == {"dlrm": "READY", "ragged": "UNAVAILABLE", "rounds": "READY"}
        with pytest.raises(InferenceServerException, match=r"UNAVAILABLE.*unloaded"):
            ask(address, "ragged", inputs)
        client.load_model("ragged")
        assert client.is_model_ready("ragged")


def test_typed_inputs_give_the_answers_of_raw_inputs(monolith: Worker, bundles: Bundles) -> None:
    (inputs, _), *_ = bundles.requests("ragged")
    request = service_pb2.ModelInferRequest(model_name="ragged", id="typed")
    for name, value in inputs.items():
        tensor = request.inputs.add(name=name, datatype=_KINDS[value.dtype], shape=value.shape)
        if value.dtype == torch.float32:
            tensor.contents.fp32_contents.extend(value.flatten().tolist())
        else:
            tensor.contents.int64_contents.extend(value.flatten().tolist())
    with grpcio.insecure_channel(monolith.addresses["grpc"]) as channel:
        response: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
    assert response.id == "typed"
    expected = ask(monolith.addresses["grpc"], "ragged", inputs)
    raw = [expected[output.name].tobytes() for output in response.outputs]
    assert list(response.raw_output_contents) == raw


def test_requests_larger_than_the_default_limit_of_tonic(
    monolith: Worker, bundles: Bundles
) -> None:
    inputs = large(bundles, 20)
    answer = ask(monolith.addresses["grpc"], "ragged", inputs)
    for output, expected in bundles.answer("ragged", inputs).items():
        np.testing.assert_allclose(answer[output], expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(InferenceServerException, match=r"RESOURCE_EXHAUSTED.*the limit is"):
        ask(monolith.addresses["grpc"], "ragged", large(bundles, 65))
    wait_until_memory_is_free(monolith)


def test_invalid_requests_and_missed_deadlines_are_refused(
    monolith: Worker, bundles: Bundles
) -> None:
    address = monolith.addresses["grpc"]
    (inputs, _), *_ = bundles.requests("ragged")
    values, offsets, *_ = inputs
    wrong = {
        "offsets must run from 0": inputs | {offsets: inputs[offsets] + 1},
        "is missing": {name: value for name, value in inputs.items() if name != values},
        "datatype": inputs | {values: inputs[values].float()},
    }
    for reason, request in wrong.items():
        with pytest.raises(InferenceServerException, match=f"INVALID_ARGUMENT.*{reason}"):
            ask(address, "ragged", request)
    late = "RESOURCE_EXHAUSTED|DEADLINE_EXCEEDED"
    with pytest.raises(InferenceServerException, match=late):
        ask(address, "ragged", inputs, timeout=1)
    # A small request may be answered before the timer of the client fires.
    with pytest.raises(InferenceServerException, match=late):
        ask(address, "ragged", large(bundles, 20), client_timeout=1e-5)
    wait_until_memory_is_free(monolith)


def test_cancelled_requests_leave_no_memory_in_use(monolith: Worker, bundles: Bundles) -> None:
    inputs = large(bundles, 8)
    done = threading.Semaphore(0)

    def answered(result: Any, error: Any) -> None:
        done.release()

    with grpc.InferenceServerClient(monolith.addresses["grpc"]) as client:
        for number in range(12):
            call = client.async_infer("ragged", _given(grpc, inputs), answered)
            time.sleep(0.004 * number)
            call.cancel()
        for _ in range(12):
            assert done.acquire(timeout=60)
    wait_until_memory_is_free(monolith)
    answers_equal_those_over_http(monolith, bundles)


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_two_halves_answer_equally_and_report_a_lost_dense_half(
    transport: str, bundles: Bundles, tmp_path: Path
) -> None:
    listen = "tcp://127.0.0.1:0" if transport == "tcp" else f"shm://{tmp_path}/dense.sock"
    dense = ("--role", "dense", "--metrics-port", "0", "--wire-memory", "32MiB", "--listen")
    with worker(*bundles.paths, *dense, listen) as half:
        cpu = ("--role", "cpu", "--dense", half.addresses["dense"])
        with worker(*bundles.paths, *cpu, *_ANY) as front:
            answers_equal_those_over_http(front, bundles)
            half.kill()
            (inputs, _), *_ = bundles.requests("dlrm")
            with pytest.raises(InferenceServerException, match=r"UNAVAILABLE.*dense half"):
                ask(front.addresses["grpc"], "dlrm", inputs)
            wait_until_memory_is_free(front)
            assert front.end() == 0


def test_open_requests_are_answered_after_sigterm(bundles: Bundles) -> None:
    inputs = large(bundles, 20)
    answers: list[Any] = []

    def answered(result: Any, error: Any) -> None:
        answers.append(error or result)

    with (
        worker(bundles.folder / "ragged", *_ANY) as found,
        grpc.InferenceServerClient(found.addresses["grpc"]) as client,
    ):
        client.async_infer("ragged", _given(grpc, inputs), answered)
        while wire_memory(found) == 0 and not answers:
            time.sleep(0.001)
        assert found.end() == 0
        with pytest.raises(InferenceServerException, match="UNAVAILABLE"):
            client.is_server_ready()
    assert [type(answer) for answer in answers] == [grpc.InferResult], str(answers[0])
