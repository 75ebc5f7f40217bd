"""The dense half on a device. Its classes also run on a CPU; tests that need a GPU are skipped where torch sees none.

Batches share one buffer, in which rows of an earlier, larger batch remain. An answer that depended on them would be wrong.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from python.tests.partition.models import bags, click_model
from python.tests.serve.workers import Bundles, make_bundles, worker
from rowmill.errors import InvalidInput
from rowmill.partition.bundle import load_program, save_program
from rowmill.partition.capture import capture
from rowmill.partition.placement import place
from rowmill.partition.split import split
from rowmill.serve.device import CopiedProgram, Device, SizedProgram, sizes_to
from rowmill.serve.settings import read_settings

if TYPE_CHECKING:
    from pathlib import Path

_needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="torch sees no GPU on this machine"
)


def test_batch_sizes_are_powers_of_two_up_to_the_largest_batch() -> None:
    assert sizes_to(1) == [1]
    assert sizes_to(2) == [1, 2]
    assert sizes_to(8) == [1, 2, 4, 8]
    assert sizes_to(9) == [1, 2, 4, 8, 9]


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        vectors = self.layer(torch.cat([x, y.float()], dim=1))
        return vectors.sum(1), vectors


def request(rows: int) -> list[Tensor]:
    return [torch.rand(rows, 4), torch.randint(0, 9, (rows, 2))]


@pytest.mark.parametrize("name", ["cpu", pytest.param("cuda", marks=_needs_gpu)])
def test_a_batch_of_any_size_gives_each_request_its_own_answer(name: str) -> None:
    device = Device(name)
    model = Dense()
    on_device = Dense().to(device.device)
    with torch.inference_mode():
        sized = SizedProgram(on_device, device, request(2), rows_max=20)
        assert sized.said == ("without CUDA graphs" if name == "cpu" else "with 6 CUDA graphs")
        for rows in ([1], [20], [3, 0, 4], [0], [1, 1], [7, 12, 1], [2]):
            requests = [request(count) for count in rows]
            answers = sized(requests)
            assert len(answers) == len(rows)
            for tensors, answer in zip(requests, answers, strict=True):
                for found, expected in zip(answer, model(*tensors), strict=True):
                    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        tensors = request(5)
        for found, expected in zip(
            CopiedProgram(on_device, device)(*tensors), model(*tensors), strict=True
        ):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_program_moves_to_a_device_with_all_its_constants(tmp_path: Path) -> None:
    """Tested with torch's device `meta`, which every machine has."""
    for name in ("dlrm", "din"):
        model = click_model(name, bags)
        call = model.call(5)
        captured = capture(model.module, [call])
        parts = split(captured, place(captured.graph), call)
        portable = parts.portable_dense(call)
        weights = save_program(portable.program, tmp_path / f"{name}.pt2")
        meta = torch.device("meta")
        program = load_program(tmp_path / f"{name}.pt2", weights, meta)
        assert all(value.device == meta for value in program.state_dict().values())
        assert "device(type='cpu')" not in str(program.code)
        values = parts.values(call)
        outputs = program(*(values[name].to(meta) for name in portable.inputs))
        for output, name in zip(outputs, portable.outputs, strict=True):
            assert (output.device, output.shape) == (meta, values[name].shape)


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU on this machine")
def test_a_missing_gpu_is_an_error() -> None:
    with pytest.raises(InvalidInput, match=r"device is 'cuda', but torch .* sees 0 GPUs"):
        Device("cuda")


def test_invalid_devices_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r'device must be "cpu", "cuda" or .*, got \'gpu\''):
        read_settings(None, {"device": "gpu"})
    flags = {"role": "cpu", "dense": "tcp://127.0.0.1:1", "device": "cuda"}
    with pytest.raises(InvalidInput, match='role "cpu" has no dense half'):
        read_settings(None, flags)
    with pytest.raises(
        InvalidInput, match=r"dense_batches is 2 .*: a GPU runs one batch at a time"
    ):
        read_settings(None, {"device": "cuda", "dense_batches": 2})
    settings = read_settings(None, {"device": "cuda:1"})
    assert (settings.device, settings.batches) == ("cuda:1", 1)


def test_batches_share_the_cores_of_a_cpu() -> None:
    cores = len(os.sched_getaffinity(0))
    for given, batches, threads in ((0, cores, 1), (1, 1, cores), (cores + 1, cores + 1, 1)):
        settings = read_settings(None, {"dense_batches": given})
        assert (settings.batches, settings.torch_threads) == (batches, threads)


@_needs_gpu
def test_a_worker_on_a_gpu_answers_its_examples(tmp_path: Path) -> None:
    bundles: Bundles = make_bundles(tmp_path)
    ports = ("--http-port", "0", "--metrics-port", "0", "--wire-memory", "32MiB")
    # It is ready when it has answered the examples of its bundles.
    with worker(*bundles.paths, "--device", "cuda", *ports) as found:
        assert any("CUDA graphs" in line for line in found.log)
        assert found.end() == 0
