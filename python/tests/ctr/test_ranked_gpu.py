"""`rowmill train --backend nccl`: the dense layers of every rank on a GPU, rows in CPU memory.

What could break: a tensor on the wrong device, different initial weights, predictions that reach metrics on the GPU, a
checkpoint that resumes only on the device where it was made. Without a GPU, one rank runs on a simulated GPU, whose tensors
must not be combined with CPU tensors. NCCL itself is only tested on machines with GPUs.
"""

from __future__ import annotations

import io
import socket
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from rich.console import Console

from python.tests.ctr.gpu_stand_in import GPU, NAME, stand_in
from python.tests.ctr.test_ranked import arguments, measured, printed, run, start
from python.tests.train.configs import Make, quiet
from python.tests.train.runs import ended
from rowmill.config import ConfigError, TrainConfig
from rowmill.ctr.data.sequences import make_sequences
from rowmill.ctr.ranked_task import OfAllRanks
from rowmill.ctr.settings import GenerateConfig, SequencesConfig
from rowmill.errors import InvalidInput
from rowmill.train import dense, train
from rowmill.train.backend import check_gpus
from rowmill.train.dense import check_precision
from rowmill.train.run import open_trainer

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext
    from pathlib import Path

LOG = GenerateConfig(rows=4_001, seed=3, rows_per_table=500)
SETTINGS = {"train__batch": 64, "train__log_every": 5, "model__kind": "ffnn", "model__deep": [16]}
GPUS = torch.cuda.device_count()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process the only rank of a run, on any processor."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    for name, value in (place | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dense, "multiplies_bf16", lambda: True)


@pytest.fixture
def _metrics_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks exchange predictions for metrics in CPU memory."""
    update = OfAllRanks.update

    def update_here(metrics: OfAllRanks, logits: torch.Tensor, labels: torch.Tensor) -> None:
        assert (logits.device.type, labels.device.type) == ("cpu", "cpu")
        update(metrics, logits, labels)

    monkeypatch.setattr(OfAllRanks, "update", update_here)


def alike_here(there: dict[str, Any], here: dict[str, Any], *, rel: float = 1e-5) -> None:
    """Check that reports show the same steps, except for the order of sums in layers and optimizers."""
    for report, device in ((there, NAME), (here, "cpu")):
        assert report["run"]["device"] == device
        assert report["test"]["auc"] is not None
    assert there["test"] == pytest.approx(here["test"], rel=rel)
    assert there["run"]["live_rows"] == here["run"]["live_rows"]
    losses = [point["logloss"] for point in here["curve"]]
    assert [point["logloss"] for point in there["curve"]] == pytest.approx(losses, rel=rel)


SPLIT = {"train__precision": "split-bf16", "rows__dtype": "split-bf16"}


@pytest.mark.parametrize(
    "settings",
    [
        {"train__in_flight": 3},
        {"train__precision": "bf16", "train__dense_optimizer": "adagrad"},
        {**SPLIT, "train__dense_optimizer": "sgd"},
        {**SPLIT, "train__dense_optimizer": "adagrad"},
        {"model__kind": "dlrm"},
        {"model__kind": "dcn_v2"},
        {"model__kind": "wide_deep"},
    ],
    ids=str,
)
@pytest.mark.usefixtures("alone", "_metrics_here")
def test_inputs_of_the_dense_layers_are_moved_to_the_gpu(
    make: Make, settings: dict[str, Any]
) -> None:
    with stand_in():
        there = train(make("gpu", **settings, train__backend="nccl"), quiet())
    alike_here(there, train(make("cpu", **settings), quiet()))


@pytest.mark.usefixtures("alone", "_metrics_here")
def test_bfloat16_rows_are_moved_to_the_gpu(make: Make) -> None:
    """On the CPU, a kernel computes the dot interaction with float32 sums."""
    settings = {**SPLIT, "train__dense_optimizer": "adagrad", "model__kind": "dlrm"}
    with stand_in():
        there = train(make("gpu", **settings, train__backend="nccl"), quiet())
    alike_here(there, train(make("cpu", **settings), quiet()), rel=2e-2)


@pytest.mark.parametrize("kind", ["two_tower", "din", "bst"])
@pytest.mark.usefixtures("alone")
def test_lengths_of_histories_are_moved_to_the_gpu(make: Make, tmp_path: Path, kind: str) -> None:
    log = tmp_path / "sequences"
    make_sequences(log, SequencesConfig(users=40, items=60, events=12, places=5, candidates=10))
    settings = {"data__path": log, "model__kind": kind, "model__dim": 8}
    with stand_in():
        there = train(make("gpu", **settings, train__backend="nccl"), quiet())
    assert there["test"]["hr_at_10"] is not None
    alike_here(there, train(make("cpu", **settings), quiet()))


@pytest.mark.parametrize("way", [("nccl", "gloo"), ("gloo", "nccl")], ids="-".join)
@pytest.mark.parametrize("settings", [{}, {**SPLIT, "train__dense_optimizer": "adagrad"}], ids=str)
@pytest.mark.usefixtures("alone")
def test_a_run_resumes_on_the_other_device(
    make: Make, settings: dict[str, Any], way: tuple[str, str]
) -> None:
    settings = {**settings, "train__dense_decay_from": 1.0}
    said = io.StringIO()
    for part, backend in enumerate(way):
        config = make(
            "parts",
            **settings,
            train__backend=backend,
            train__epochs=1 + part,
            train__resume=part > 0,
        )
        with stand_in() if backend == "nccl" else nullcontext():
            test = train(config, Console(file=said))["test"]
    devices = {"nccl": repr(NAME), "gloo": "'cpu'"}
    assert f"Warning: device was {devices[way[0]]} and is {devices[way[1]]}" in said.getvalue()
    straight = train(make("straight", **settings, train__epochs=2), quiet())
    assert test == pytest.approx(straight["test"], rel=1e-5)


def test_the_simulated_gpu_refuses_mixed_devices() -> None:
    layer = torch.nn.Linear(3, 2)
    with stand_in() as gpu:
        layer.to(GPU)
        assert layer.weight.device == GPU
        with pytest.raises(
            RuntimeError, match="linear was given tensors of the CPU and of the GPU"
        ):
            layer(torch.ones(1, 3))
        out = layer(torch.ones(1, 3, device=GPU))
        assert gpu.holds(out)
        with pytest.raises(TypeError, match="numpy was given a tensor of the GPU"):
            out.detach().numpy()
        assert out.detach().cpu().numpy().shape == (1, 2)
        out.sum().backward()
        assert layer.weight.grad is not None
        assert layer.weight.grad.device == GPU


@pytest.mark.skipif(GPUS >= 2, reason=f"{GPUS} GPUs are here, enough for both ranks")
def test_all_ranks_report_a_rank_without_a_gpu(
    log: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    told = [arguments(log, tmp_path / "out", "--backend", "nccl")] * 2
    assert [ended(rank) for rank in start(server, 2, told, tmp_path)] == [2, 2]
    said = (
        "rowmill: rank 0: --backend nccl needs one GPU per rank, but this machine has 2 ranks and "
        f"{GPUS} GPUs that torch can use: start fewer ranks on it, or use --backend gloo\n"
    )
    assert printed(tmp_path, 2) == [said, said]
    assert not (tmp_path / "out").exists()


def test_a_torch_build_without_nccl_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    check_gpus("gloo", 3)
    with pytest.raises(InvalidInput, match="2 GPUs"):
        check_gpus("nccl", 3)
    with pytest.raises(InvalidInput, match="this build of torch has no NCCL"):
        check_gpus("nccl", 2)


def test_a_backend_without_ranks_is_refused(make: Make) -> None:
    for backend in ("nccl", "oneccl"):
        with (
            pytest.raises(ConfigError, match=f"train.backend = '{backend}' needs many ranks"),
            open_trainer(make(train__backend=backend), quiet()),
        ):
            pass


def test_the_device_of_the_dense_layers_must_support_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = TrainConfig(precision="bf16")
    with stand_in():
        check_precision(narrow, GPU)
        with pytest.raises(ConfigError, match="AVX512-BF16 or AMX"):
            check_precision(narrow)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
        check_precision(TrainConfig(), GPU)
        with pytest.raises(ConfigError, match=f"needs a GPU with bfloat16 .* {NAME} lacks"):
            check_precision(narrow, GPU)


@pytest.mark.skipif(GPUS == 0, reason="needs a CUDA device")
@pytest.mark.parametrize("flags", [(), ("--in-flight", "3"), ("--model", "ffnn")], ids=str)
def test_ranks_over_nccl_give_the_steps_of_gloo(
    log: Path, server: ForkServerContext, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """Uses one rank per GPU, three at most; the run resumes on CPUs, and the reverse."""
    count = min(GPUS, 3)
    for backend in ("nccl", "gloo"):
        run(server, count, log, tmp_path / backend, "--backend", backend, *flags)
    there, here = (measured(tmp_path / backend) for backend in ("nccl", "gloo"))
    assert there["run"] == here["run"]
    # Adam amplifies the rounding differences of sums on a GPU.
    assert there["test"] == pytest.approx(here["test"], rel=1e-3)
    for backend, other in (("nccl", "gloo"), ("gloo", "nccl")):
        more = "--backend", other, "--resume", "--epochs", "2"
        first, *_ = run(server, count, log, tmp_path / backend, *flags, *more)
        assert "Warning: device was" in first
