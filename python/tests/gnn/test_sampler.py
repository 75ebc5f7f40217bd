"""Neighbour sampling from Python: blocks as tensors, arrays in memory or mapped, errors that name the argument.

Which neighbours are drawn is checked beside the kernel, in `crates/rowmill-kernels/tests/kernels/neighbours.rs`.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from rowmill import _core
from rowmill.errors import InvalidInput
from rowmill.gnn import NeighbourSampler, Sample

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

NODES = 500
_NEVER_S = 1000.0
"""The interpreter's switch interval: a thread that computes is asked to release the GIL only after this many seconds."""
_SAMPLES_MAX = 5_000


@pytest.fixture(scope="module")
def graph() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    random = np.random.default_rng(1)
    degrees = random.integers(0, 30, NODES)
    degrees[:3] = 0
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    return indptr, random.integers(0, NODES, indptr[-1])


def equal(one: Sample, other: Sample) -> bool:
    tensors = [
        [
            sample.nodes,
            *(tensor for block in sample.blocks for tensor in (block.indptr, block.indices)),
        ]
        for sample in (one, other)
    ]
    return all(torch.equal(a, b) for a, b in zip(*tensors, strict=True))


@pytest.mark.parametrize("replace", [False, True])
def test_blocks_follow_each_other_from_all_nodes_to_the_seeds(
    graph: tuple[NDArray[np.int64], NDArray[np.int64]], replace: bool
) -> None:
    indptr, indices = graph
    sampler = NeighbourSampler(indptr, indices, fanouts=[4, 7, -1], replace=replace, seed=3)
    seeds = torch.tensor([5, 0, 400, 17])
    sample = sampler.sample(seeds, batch=1)
    assert torch.equal(sample.nodes[:4], seeds)
    assert len(sample.nodes.unique()) == len(sample.nodes)
    targets = 4
    for block, fanout in zip(sample.blocks, [4, 7, -1], strict=True):
        assert block.targets == targets
        assert int(block.indices.max()) < block.sources
        assert torch.equal(block.owners.bincount(minlength=targets), block.indptr.diff())
        for target in range(targets):
            node = sample.nodes[target]
            there = indices[indptr[node] : indptr[node + 1]].tolist()
            drawn = sample.nodes[
                block.indices[block.indptr[target] : block.indptr[target + 1]]
            ].tolist()
            assert set(drawn) <= set(there)
            if fanout == -1:
                assert drawn == there
            elif replace:
                assert len(drawn) == (fanout if there else 0)
            else:
                assert len(drawn) == min(fanout, len(there))
        targets = block.sources
    assert targets == len(sample.nodes)


def test_samples_depend_on_seed_and_batch_not_on_threads(
    graph: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> None:
    def sampler(seed: int) -> NeighbourSampler:
        return NeighbourSampler(*graph, fanouts=[5, 5], seed=seed)

    seeds = torch.arange(60)
    alone = [sampler(1).sample(seeds, batch=batch) for batch in range(40)]
    shared = sampler(1)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda batch: shared.sample(seeds, batch=batch), range(40)))
    assert all(map(equal, alone, together))
    assert not equal(alone[0], alone[1])
    assert not equal(alone[0], sampler(2).sample(seeds, batch=0))


def test_sampling_releases_the_gil(
    graph: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> None:
    """With a huge switch interval, other threads run only if the sampler itself releases the GIL."""
    indptr, indices = graph
    seeds = np.arange(NODES)
    gate, ran = threading.Lock(), list[bool]()

    def other() -> None:
        with gate:
            ran.append(True)

    before = sys.getswitchinterval()
    thread = threading.Thread(target=other)
    gate.acquire()
    thread.start()
    sys.setswitchinterval(_NEVER_S)
    try:
        gate.release()
        drawn = 0
        # The operating system may take longer than one sample to wake the thread.
        while not ran and drawn < _SAMPLES_MAX:
            _core.sample_neighbours(indptr, indices, seeds, [10, 10], False, 1, drawn)
            drawn += 1
        assert ran, f"no other thread ran during {drawn} samples"
    finally:
        sys.setswitchinterval(before)
        thread.join()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_mapped_graph_is_sampled_without_a_copy(
    graph: tuple[NDArray[np.int64], NDArray[np.int64]], tmp_path: Path, dtype: type
) -> None:
    indptr, indices = graph
    np.save(tmp_path / "indptr.npy", indptr)
    np.save(tmp_path / "indices.npy", indices.astype(dtype))
    mapped = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("indptr", "indices")]
    assert all(isinstance(array, np.memmap) for array in mapped)
    seeds = torch.arange(100)
    one, other = (
        NeighbourSampler(*arrays, fanouts=[3, 3]).sample(seeds, batch=9)
        for arrays in (graph, mapped)
    )
    assert equal(one, other)


@pytest.mark.parametrize(
    ("indptr", "indices", "options", "message"),
    [
        (
            [0, 1],
            [0],
            {"fanouts": [2, 0]},
            r"fanouts\[1\] must be in \[1, 1048576\], or -1 .* got 0",
        ),
        ([0, 1], [0], {"fanouts": [-2]}, r"fanouts\[0\] must .* got -2"),
        ([0, 1], np.array([0], ">i4"), {}, "indices is >i4, which is not in native byte order"),
        ([0, 1], [0], {"seed": -1}, r"seed must be in \[0, 2\*\*64\), got -1"),
        ([0, 1], [0], {"seed": 1 << 64}, "seed must .* got 18446744073709551616"),
        ([], [], {}, "indptr is empty"),
        ([0, 2], [0], {}, r"indptr must run from 0 to the number of indices \(1\), got 0..2"),
        (np.array([0, 1], np.int32), [0], {}, "indptr must be an array of int64, got int32"),
        ([0, 1], np.array([0.0]), {}, "indices must be an array of int32 or int64, got float64"),
        ([0, 1], np.array([0], np.uint32), {}, "int32 or int64, got uint32"),
        ([0, 2], np.zeros(4, np.int32)[::2], {}, "indices must be contiguous"),
    ],
)
def test_invalid_arrays_and_fanouts_are_refused_by_the_constructor(
    indptr: Any, indices: Any, options: dict[str, Any], message: str
) -> None:
    arrays = [
        given if isinstance(given, np.ndarray) else np.array(given, np.int64)
        for given in (indptr, indices)
    ]
    with pytest.raises(InvalidInput, match=message):
        NeighbourSampler(*arrays, **{"fanouts": [2], **options})


@pytest.mark.parametrize(
    ("indptr", "indices", "seeds", "message"),
    [
        ([0, 2, 1, 3], [0, 1, 2], [1], r"indptr\[1\] = 2 and indptr\[2\] = 1"),
        ([0, 1, 2, 3], [0, 1, 3], [2], r"indices\[2\] = 3, but the graph has 3 nodes"),
        ([0, 1, 2, 3], [0, -1, 2], [1], r"indices\[1\] = -1, but"),
        ([0, 1, 2, 3], [0, 1, 2], [0, 3], r"seeds\[1\] = 3, but the graph has 3 nodes"),
        ([0, 1, 2, 3], [0, 1, 2], [2, 1, 2], r"seeds\[2\] = 2 is repeated"),
    ],
)
def test_invalid_entries_are_refused_when_a_sample_reads_them(
    indptr: list[int], indices: list[int], seeds: list[int], message: str
) -> None:
    sampler = NeighbourSampler(np.array(indptr), np.array(indices), fanouts=[2])
    with pytest.raises(InvalidInput, match=message):
        sampler.sample(torch.tensor(seeds), batch=0)


def test_batch_numbers_beyond_64_bits_are_refused() -> None:
    sampler = NeighbourSampler(np.array([0, 1]), np.array([0]), fanouts=[1])
    with pytest.raises(InvalidInput, match=r"batch must be in \[0, 2\*\*64\), got -1"):
        sampler.sample(torch.tensor([0]), batch=-1)
