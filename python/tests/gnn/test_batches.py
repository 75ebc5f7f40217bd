"""Batches of nodes: each node once per epoch, and the same order and samples with any number of threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from rowmill.errors import InvalidInput
from rowmill.gnn import NeighbourSampler, NodeBatch, NodeBatches, Sample

NODES = 300


def make(
    threads: int = 1, seed: int = 0, batch: int = 16, rank: int = 0, ranks: int | None = None
) -> NodeBatches:
    random = np.random.default_rng(0)
    indptr = np.arange(NODES + 1) * 8
    sampler = NeighbourSampler(indptr, random.integers(0, NODES, 8 * NODES), fanouts=[3, 3])
    labels = np.arange(NODES) % 7
    return NodeBatches(
        sampler,
        np.arange(0, NODES, 3),
        labels,
        batch=batch,
        seed=seed,
        threads=threads,
        rank=rank,
        ranks=ranks,
    )


def content(batches: list[NodeBatch]) -> list[list[object]]:
    return [
        [batch.stop, batch.labels.tolist(), batch.nodes.tolist(), batch.blocks[1].indices.tolist()]
        for batch in batches
    ]


def test_an_epoch_has_every_node_once_and_the_order_changes_per_epoch() -> None:
    batches = make()
    epochs = [list(batches.epoch(number)) for number in (0, 1)]
    orders: list[list[int]] = []
    for epoch in epochs:
        seeds = torch.cat([batch.nodes[: len(batch)] for batch in epoch])
        assert sorted(seeds.tolist()) == list(range(0, NODES, 3))
        assert torch.equal(torch.cat([batch.labels for batch in epoch]), seeds % 7)
        assert [batch.stop for batch in epoch] == [*range(16, 100, 16), 100]
        orders.append(seeds.tolist())
    assert orders[0] != orders[1]
    assert len(batches) == 100


@pytest.mark.parametrize("threads", [1, 3])
def test_samples_do_not_depend_on_threads_or_the_starting_batch(threads: int) -> None:
    expected = content(list(make().epoch(4)))
    assert content(list(make(threads).epoch(4))) == expected
    assert content(list(make(threads).epoch(4, start=48))) == expected[3:]
    assert content(list(make(seed=1).epoch(4))) != expected


def test_training_samples_change_per_epoch_and_evaluation_samples_do_not() -> None:
    # One batch holds all nodes, so the position within the epoch cannot make the samples differ.
    batches = make(batch=100)

    def neighbours(stream: list[NodeBatch]) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for batch in stream:
            block = batch.blocks[0]
            for target, node in enumerate(batch.nodes[: len(batch)].tolist()):
                drawn = block.indices[block.indptr[target] : block.indptr[target + 1]]
                found[node] = set(batch.nodes[drawn].tolist())
        return found

    one, other = (neighbours(list(batches.epoch(number))) for number in (0, 1))
    assert sum(one[node] != other[node] for node in one) > 80
    assert content(list(batches.in_order())) == content(list(batches.in_order()))


def test_samples_are_drawn_ahead_by_at_most_the_given_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = NeighbourSampler.sample
    drawn: list[int] = []
    names: set[str] = set()
    third = threading.Event()

    def note(sampler: NeighbourSampler, seeds: torch.Tensor, *, batch: int) -> Sample:
        sample = original(sampler, seeds, batch=batch)
        drawn.append(batch)
        names.add(threading.current_thread().name)
        if len(drawn) == 3:
            third.set()
        return sample

    batches = make(threads=2)
    monkeypatch.setattr(NeighbourSampler, "sample", note)
    stream = batches.epoch(0)
    next(stream)
    assert third.wait(60.0), "the third sample must be drawn when the first is taken"
    assert len(drawn) == 3
    stream.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert len(drawn) == 3
    assert 1 <= len(names) <= 2
    assert all(name.startswith("rowmill-sample") for name in names)


def test_errors_in_sampling_threads_are_raised_in_the_loop() -> None:
    sampler = NeighbourSampler(np.array([0, 1]), np.array([3]), fanouts=[1])
    batches = NodeBatches(sampler, np.array([0]), np.array([0]), batch=1)
    with pytest.raises(InvalidInput, match=r"indices\[0\] = 3"):
        list(batches.epoch(0))


def neighbours_of(batch: NodeBatch) -> dict[int, list[list[int]]]:
    """For each node of a batch, the neighbours drawn for it in the first layer, and theirs in the second."""
    found: dict[int, list[list[int]]] = {}
    first, second = batch.blocks
    for target, node in enumerate(batch.nodes[: len(batch)].tolist()):
        drawn = first.indices[first.indptr[target] : first.indptr[target + 1]]
        lists = [second.indices[second.indptr[n] : second.indptr[n + 1]] for n in drawn]
        found[node] = [batch.nodes[places].tolist() for places in [drawn, *lists]]
    return found


@pytest.mark.parametrize("ranks", [1, 3, 5])
def test_parts_of_all_ranks_are_the_batches_of_one_process_with_their_neighbours(
    ranks: int,
) -> None:
    """The last batch has four nodes, so that one of five ranks has none: a stand-in without weight."""
    parts = [list(make(rank=rank, ranks=ranks).epoch(2)) for rank in range(ranks)]
    for batch, *of_ranks in zip(make().epoch(2), *parts, strict=True):
        found: dict[int, list[list[int]]] = {}
        for part in of_ranks:
            assert (part.stop, part.examples) == (batch.stop, len(batch))
            assert part.share == len(part) / len(batch)
            assert len(part.labels) == max(len(part), 1)
            found |= neighbours_of(part)
        assert list(found) == batch.nodes[: len(batch)].tolist()
        assert found == neighbours_of(batch)
    assert sum(part.share == 0 for of_rank in parts for part in of_rank) == (ranks == 5)
