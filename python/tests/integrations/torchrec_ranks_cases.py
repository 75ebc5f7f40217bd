"""Collections of the real TorchRec, sharded by `rowmill.convert(..., ranks=ranks)`: outputs, updates and errors.

One process is the only rank here; `python/tests/distributed/test_converted.py` compares numbers of ranks, and the example runs
with two.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.optim import _apply_optimizer_in_backward as tag
from torchrec import JaggedTensor, KeyedTensor

import rowmill
from python.tests.integrations.torchrec_cases import (
    ADAGRAD,
    KEYS,
    Ranker,
    Sequence,
    batch,
    same_training,
)
from rowmill.distributed import Pipeline, Ranks, ShardedCollection
from rowmill.errors import InvalidInput
from rowmill.nn import Feature

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLE = Path(__file__).parents[3] / "examples/torchrec_ranks.py"
MIXED = {"": "pooled", "ebc.embedding_bags.wide": "whole", "ebc.embedding_bags.users": "replicated"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[rowmill.Store]:
    with rowmill.open(tmp_path / "store", memory="64MiB") as opened:
        yield opened


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield Ranks(timeout_s=30)
    dist.destroy_process_group()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("placement", [None, MIXED])
def test_bags_give_the_same_keyed_tensor_and_train_equally(
    store: rowmill.Store, ranks: Ranks, weighted: bool, placement: dict[str, str] | None
) -> None:
    plain = Ranker(weighted=weighted)
    stored = copy.deepcopy(plain)
    tag(torch.optim.Adagrad, plain.ebc.parameters(), {"lr": 0.1})
    rowmill.convert(stored, store=store, ranks=ranks, optimizer=ADAGRAD, placement=placement)
    expected = plain.ebc(batch(1, weighted=weighted))
    for given in (batch(1, weighted=weighted), batch(1, weighted=weighted).permute([2, 0, 1])):
        with torch.no_grad():
            found = stored.ebc(given)
        assert type(found) is KeyedTensor
        assert found.keys() == expected.keys()
        torch.testing.assert_close(found.values(), expected.values())
    same_training(plain, stored, weighted=weighted)
    with pytest.raises(InvalidInput, match=r"sharded over 1 ranks.*dense_state_dict"):
        stored.state_dict()
    assert list(rowmill.nn.dense_state_dict(stored)) == ["over.weight", "over.bias"]
    with pytest.raises(InvalidInput, match="no plain torch counterpart"):
        rowmill.unconvert(stored)
    if weighted:
        with pytest.raises(InvalidInput, match="is_weighted is True, but the features have no"):
            stored(batch(1))
    with pytest.raises(InvalidInput, match="lacks feature 'user'"):
        stored(batch(1, weighted=weighted).permute([0, 2]))


def test_embedding_collections_give_equal_rows_and_train_equally(
    store: rowmill.Store, ranks: Ranks
) -> None:
    plain, rate = Sequence(need_indices=True), 0.1
    stored = copy.deepcopy(plain)
    rowmill.convert(stored, store=store, ranks=ranks, optimizer=rowmill.optim.SGD(lr=rate))
    optimizer = torch.optim.SGD(plain.parameters(), lr=rate)
    for step in range(4):
        expected, found = plain(batch(step)), stored(batch(step))
        assert expected.keys() == found.keys()
        for key, jagged in found.items():
            assert type(jagged) is JaggedTensor
            torch.testing.assert_close(jagged.values(), expected[key].values())
            assert torch.equal(jagged.lengths(), expected[key].lengths())
            assert torch.equal(jagged.weights(), expected[key].weights())
        optimizer.zero_grad()
        for of in (expected, found):
            sum(jagged.values().square().sum() for jagged in of.values()).backward()
        optimizer.step()


def test_a_sharded_collection_takes_a_keyed_jagged_tensor(
    store: rowmill.Store, ranks: Ranks
) -> None:
    sgd = rowmill.optim.SGD(lr=0.1)
    features = [Feature(key, store.table(key, dim=4, optimizer=sgd)) for key in KEYS]
    collection = ShardedCollection(features, ranks=ranks)
    collection.eval()
    for weighted in (False, True):
        given: Any = batch(1, weighted=weighted)
        alike = rowmill.RaggedBatch(
            tuple(KEYS), given.values(), given.offsets().long(), given.weights_or_none()
        )
        expected = collection(alike)
        assert torch.equal(collection(given), expected)
        ahead = Pipeline(collection).run([(given, None)])
        assert torch.equal(collection(next(ahead)[0]), expected)
        ahead.close()


def test_the_example_resumes_on_another_number_of_ranks(tmp_path: Path) -> None:
    for count, says in ((1, "step 20 loss"), (2, "step 40 loss")):
        command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        run = subprocess.run(
            [sys.executable, *command, str(EXAMPLE)],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert run.returncode == 0, run.stderr
        assert says in run.stdout
