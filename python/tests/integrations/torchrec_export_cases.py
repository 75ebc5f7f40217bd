"""Models over collections of the real TorchRec become bundles, whose requests bring ids and offsets for each key.

The parts are compared with the program that was not split, bit for bit, and a worker of the bundle with the module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
    KeyedTensor,
    PoolingType,
)
from tritonclient import http

import rowmill
from python.tests.serve.workers import worker
from rowmill import optim
from rowmill.errors import InvalidInput
from rowmill.integrations.torchrec.per_key import per_key
from rowmill.partition.bundle import Bundle
from rowmill.partition.capture import capture
from rowmill.partition.placement import place
from rowmill.partition.split import split
from rowmill.partition.subgraph import any_size

if TYPE_CHECKING:
    from pathlib import Path

KEYS = ["clicks", "user", "shared"]
LONG = pytest.mark.long


class Ranker(nn.Module):
    """Pooled vectors of a collection beside dense features."""

    def __init__(self, *, weighted: bool = False) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name="goods",
                    embedding_dim=4,
                    num_embeddings=20,
                    feature_names=["clicks", "shared"],
                ),
                EmbeddingBagConfig(
                    name="users",
                    embedding_dim=8,
                    num_embeddings=10,
                    feature_names=["user"],
                    pooling=PoolingType.SUM if weighted else PoolingType.MEAN,
                ),
            ],
            is_weighted=weighted,
        )
        self.over = nn.Linear(18, 1)

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        pooled = self.bags(features)
        parts = [dense, pooled["user"], pooled.to_dict()["clicks"], pooled["shared"]]
        return self.over(torch.cat(parts, dim=1)).squeeze(1)


class Sums(nn.Module):
    """Rows of a collection, summed by the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = EmbeddingCollection(
            tables=[
                EmbeddingConfig(
                    name="goods",
                    embedding_dim=4,
                    num_embeddings=20,
                    feature_names=["clicks", "shared"],
                ),
                EmbeddingConfig(
                    name="users", embedding_dim=4, num_embeddings=10, feature_names=["user"]
                ),
            ]
        )
        self.over = nn.Linear(4, 1)

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        rows = self.rows(features)
        total = dense.repeat(1, 2)
        for key in KEYS:
            values, ends = rows[key].values(), rows[key].offsets()[1:]
            samples = torch.bucketize(torch.arange(values.shape[0]), ends, right=True)
            total = total.index_add(0, samples, values)
        return self.over(total).squeeze(1)


def call(samples: int, *, weighted: bool = False) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(samples)
    lengths = torch.randint(0, 4, (len(KEYS) * samples,), generator=generator)
    values = torch.randint(0, 10, (int(lengths.sum()),), generator=generator)
    weights = torch.rand(len(values), generator=generator) if weighted else None
    features = KeyedJaggedTensor.from_lengths_sync(KEYS, values, lengths.to(torch.int32), weights)
    return torch.rand(samples, 2, generator=generator), features


def inputs_of(call: tuple[Any, ...]) -> dict[str, Tensor]:
    """The inputs of a bundle by name."""
    _, ((dense, keyed),) = per_key(Ranker(), [call])
    parts = {
        f"features_{key}_{part}": value
        for key, tensors in keyed.items()
        for part, value in tensors.items()
    }
    return {"dense": dense, **parts}


class Grouped(Ranker):
    """Pooled vectors that TorchRec regroups by one operator of its own."""

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        pooled = self.bags(features)
        groups = KeyedTensor.regroup([pooled], [["user"], ["shared", "clicks"]])
        return self.over(torch.cat([dense, *groups], dim=1)).squeeze(1)


MODELS = {
    "bags": Ranker,
    "weighted": lambda: Ranker(weighted=True),
    "rows": Sums,
    "grouped": Grouped,
}


@pytest.mark.parametrize("stored", [pytest.param(False, marks=LONG), True])
@pytest.mark.parametrize("name", MODELS)
def test_the_split_is_the_unsplit_program(name: str, stored: bool, tmp_path: Path) -> None:
    model: nn.Module = MODELS[name]().eval()
    calls = [call(samples, weighted=name == "weighted") for samples in (5, 1, 7)]
    with rowmill.open(tmp_path / "store", memory="32MiB") as store, torch.no_grad():
        expected = [model(*given) for given in calls]
        if stored:
            rowmill.convert(model, store=store, optimizer=optim.SGD(0.1))
        module, plain = per_key(model, calls)
        captured = capture(module, plain)
        assert captured.inputs[:3] == (
            "dense",
            "features_clicks_values",
            "features_clicks_offsets",
        )
        parts = split(captured, place(captured.graph), plain[0])
        unsplit = any_size(captured.program).module(check_guards=False)
        for given, own in zip(plain, expected, strict=True):
            answer = parts.run(*given)
            assert torch.equal(answer, unsplit(*given))
            torch.testing.assert_close(answer, own, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["weighted", "rows", *(pytest.param(name, marks=LONG) for name in ("bags", "grouped"))]
)
def test_a_worker_answers_like_the_module(name: str, tmp_path: Path) -> None:
    model: nn.Module = MODELS[name]().eval()
    weighted = name == "weighted"
    calls = [call(samples, weighted=weighted) for samples in (5, 3)]
    said = rowmill.export(model, calls, out=tmp_path / "bundle")
    assert (said == ()) is (name != "rows"), "no plan has bucketize"
    other = call(6, weighted=weighted)
    with torch.no_grad():
        expected = model(*other)
    with Bundle.open(tmp_path / "bundle") as bundle:
        (answer,) = bundle.run(inputs_of(other))
        torch.testing.assert_close(answer, expected, rtol=1e-5, atol=1e-5)
    ports = ("--http-port", "0", "--metrics-port", "0", "--wire-memory", "32MiB")
    with (
        worker(tmp_path / "bundle", *ports) as found,
        http.InferenceServerClient(found.addresses["http"], network_timeout=60.0) as client,
    ):
        given: list[http.InferInput] = []
        for input_name, value in inputs_of(other).items():
            # Parts of a ragged input, with dots.
            for part in ("values", "offsets", "weights"):
                input_name = input_name.replace(f"_{part}", f".{part}")
            kind = "INT64" if value.dtype == torch.int64 else "FP32"
            given.append(http.InferInput(input_name, list(value.shape), kind))
            given[-1].set_data_from_numpy(value.numpy())
        result = client.infer("bundle", given)
        (output,) = result.get_response()["outputs"]
        np.testing.assert_allclose(result.as_numpy(output["name"]), expected.numpy(), atol=1e-5)  # pyright: ignore[reportCallIssue]


def test_operators_that_workers_lack_are_told(tmp_path: Path) -> None:
    class Padded(Sums):
        def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
            clicks = self.rows(features)["clicks"]
            total = dense.repeat(1, 2) + clicks.to_padded_dense(3).sum(1)
            return self.over(total).squeeze(1)

    (said, *_) = rowmill.export(Padded(), [call(5)], out=tmp_path / "bundle")
    assert said.startswith("no worker can run this bundle")
    assert "fbgemm::" in said


def test_keys_are_the_same_in_all_examples(tmp_path: Path) -> None:
    dense, features = call(5)
    with pytest.raises(InvalidInput, match="KeyedJaggedTensors with different keys"):
        rowmill.export(
            Ranker(),
            [(dense, features), (dense, features.permute([1, 0, 2]))],
            out=tmp_path / "bundle",
        )
