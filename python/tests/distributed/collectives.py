"""Test cases for a backend of torch.distributed. This program runs one rank.

    python collectives.py BACKEND FOLDER RANK

The ranks rendezvous in the folder. Each rank writes there, per case, the error (empty if the case passed) and the number
of calls of each libccl function.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 2
LATE = timedelta(seconds=1)
SAYS = {
    "gloo": ".",
    "oneccl": r"oneccl: allreduce of rank 0 of 2 has not ended in 1 s",
}
"""Per backend, a pattern of the error after the timeout."""
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.uint8, torch.int8)


def ours(count: int, rank: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The input of a rank: small numbers, exact in every type, as are sums and products of two."""
    return (torch.arange(count) % 5 + 2 * rank + 1).to(dtype)


def allreduce(rank: int) -> None:
    operations: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
        dist.ReduceOp.SUM: torch.add,
        dist.ReduceOp.PRODUCT: torch.mul,
        dist.ReduceOp.MIN: torch.minimum,
        dist.ReduceOp.MAX: torch.maximum,
    }
    for dtype in (*FLOATS, *INTEGERS):
        for operation, expected in operations.items():
            for count in (1, 7, 100_003):
                tensor = ours(count, rank, dtype)
                dist.all_reduce(tensor, operation)
                assert torch.equal(tensor, expected(*(ours(count, r, dtype) for r in range(SIZE))))
    empty = torch.empty(0)
    dist.all_reduce(empty)
    average = ours(9, rank)
    if dist.get_backend() == "oneccl":  # gloo has none
        dist.all_reduce(average, dist.ReduceOp.AVG)
        assert torch.equal(average, (ours(9, 0) + ours(9, 1)) / 2)
    scalar = torch.tensor(rank + 1.0)
    dist.all_reduce(scalar)
    assert scalar == 3.0
    matrix = ours(12, rank).view(3, 4)
    dist.all_reduce(matrix)
    assert torch.equal(matrix, (ours(12, 0) + ours(12, 1)).view(3, 4))


def broadcast(rank: int) -> None:
    for root in range(SIZE):
        for dtype in (*FLOATS, *INTEGERS, torch.bool):
            tensor = ours(33, rank, dtype)
            dist.broadcast(tensor, root)
            assert torch.equal(tensor, ours(33, root, dtype))


def allgather(rank: int) -> None:
    for dtype in (*FLOATS, *INTEGERS, torch.bool):
        for count in (1, 1001):
            expected = [ours(count, r, dtype) for r in range(SIZE)]
            parts = [torch.empty(count, dtype=dtype) for _ in range(SIZE)]
            dist.all_gather(parts, ours(count, rank, dtype))
            assert all(map(torch.equal, parts, expected))
            whole = torch.empty(SIZE * count, dtype=dtype)
            dist.all_gather_into_tensor(whole, ours(count, rank, dtype))
            assert torch.equal(whole, torch.cat(expected))
    rows = [torch.empty(2, 3) for _ in range(SIZE)]
    dist.all_gather(rows, ours(6, rank).view(2, 3))
    assert torch.equal(rows[1], ours(6, 1).view(2, 3))


def reduce_scatter(rank: int) -> None:
    for dtype in FLOATS:
        # Rank r sends each part multiplied by r + 1.
        parts = [ours(50, part, dtype) for part in range(SIZE)]
        inputs = [part * (rank + 1) for part in parts]
        out = torch.empty(50, dtype=dtype)
        dist.reduce_scatter(out, inputs)
        assert torch.equal(out, parts[rank] * 3)
        dist.reduce_scatter_tensor(out, torch.cat(inputs), dist.ReduceOp.MAX)
        assert torch.equal(out, parts[rank] * 2)


def all_to_all(rank: int) -> None:
    for dtype in (*FLOATS, torch.int64):
        sent = torch.stack([ours(3, 2 * rank + to, dtype) for to in range(SIZE)])
        out = torch.empty_like(sent)
        dist.all_to_all_single(out, sent)
        assert torch.equal(out, torch.stack([ours(3, 2 * r + rank, dtype) for r in range(SIZE)]))
    # Different numbers of rows, including 0.
    for counts in ([[1, 2], [3, 0]], [[0, 0], [5, 1]], [[0, 4], [0, 0]], [[0, 0], [0, 0]]):
        rows = [
            [ours(4 * counts[r][to], r + to).view(-1, 4) for to in range(SIZE)] for r in range(SIZE)
        ]
        taken = [counts[r][rank] for r in range(SIZE)]
        out = torch.empty(sum(taken), 4)
        dist.all_to_all_single(out, torch.cat(rows[rank]), taken, counts[rank])
        assert torch.equal(out, torch.cat([rows[r][rank] for r in range(SIZE)]))


def barrier(rank: int) -> None:
    """No rank leaves a barrier before both have entered: a file written before it is visible to both."""
    sign = Path(sys.argv[2]) / "came"
    for turn in range(20):
        if rank == turn % SIZE:
            Path(f"{sign}-{turn}").touch()
        dist.barrier()
        assert Path(f"{sign}-{turn}").exists()


def in_flight(rank: int) -> None:
    tensors = [ours(1000 + number, rank) for number in range(40)]
    gathered = [torch.empty(SIZE) for _ in range(40)]
    works = []
    for number, tensor in enumerate(tensors):
        works.append(dist.all_reduce(tensor, async_op=True))
        mine = torch.tensor([float(rank + number)])
        works.append(dist.all_gather_into_tensor(gathered[number], mine, async_op=True))
        del mine  # the backend must keep its memory
    for work in reversed(works):
        work.wait()
        work.wait()
    for number, (tensor, found) in enumerate(zip(tensors, gathered, strict=True)):
        assert torch.equal(tensor, ours(1000 + number, 0) + ours(1000 + number, 1))
        assert found.tolist() == [number, number + 1]


def futures(rank: int) -> None:
    tensors = [ours(500, rank) for _ in range(8)]
    futures = [
        dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
        for tensor in tensors
    ]
    for found in torch.futures.wait_all(futures):
        assert torch.equal(found, (ours(500, 0) + ours(500, 1)) * 2)


def objects(rank: int) -> None:
    found: list[Any] = [None] * SIZE
    dist.all_gather_object(found, {"rank": rank, "words": "x" * (10 + 1000 * rank)})
    assert [one["rank"] for one in found] == [0, 1]
    assert len(found[1]["words"]) == 1010
    said = ["from 1", 7] if rank == 1 else [None, None]
    dist.broadcast_object_list(said, src=1)
    assert said == ["from 1", 7]


def groups(rank: int) -> None:
    """Collectives of two groups, started in a different order on each rank."""
    made = [dist.new_group([0, 1]) for _ in range(2)]
    alone = [dist.new_group([member]) for member in range(SIZE)]
    tensors = [ours(100, rank + which) for which in range(2)]
    order = [0, 1] if rank == 0 else [1, 0]
    works = {
        which: dist.all_reduce(tensors[which], group=made[which], async_op=True)  # pyright: ignore[reportCallIssue]
        for which in order
    }
    for which in (0, 1):
        works[which].wait()
        assert torch.equal(tensors[which], ours(100, which) + ours(100, which + 1))
    one = ours(3, rank)
    dist.all_reduce(one, group=alone[rank])
    assert torch.equal(one, ours(3, rank))
    for group in made:
        dist.destroy_process_group(group)


def refusals(rank: int) -> None:
    """Unsupported operations fail on every rank before any rank waits; later operations work."""
    row = torch.zeros(4)
    with pytest.raises(ValueError, match=r"got torch\.float32 on cpu, not contiguous"):
        dist.all_reduce(torch.zeros(4, 4).t()[1:])
    with pytest.raises(ValueError, match=r"got torch\.uint16 on cpu"):
        dist.broadcast(torch.zeros(2, dtype=torch.uint16), 0)
    with pytest.raises(ValueError, match=r"got RedOpType\.SUM of torch\.bool"):
        dist.all_reduce(torch.zeros(2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"average, product, min or max, got RedOpType\.BXOR"):
        dist.all_reduce(row.int(), dist.ReduceOp.BXOR)
    with pytest.raises(ValueError, match=r"output must be 8 contiguous elements .* got \[4\]"):
        dist.all_gather_into_tensor(torch.zeros(4), row)
    with pytest.raises(
        ValueError, match=r"output must be 2 counts that sum up to its 4 rows, got \[1, 2\]"
    ):
        dist.all_to_all_single(torch.zeros(4), row, [1, 2], [1, 3])
    with pytest.raises(ValueError, match="has 3 rows, not a multiple of 2 ranks"):
        dist.all_to_all_single(torch.zeros(3), torch.zeros(3))
    with pytest.raises(RuntimeError, match="does not support send"):
        dist.send(row, 1 - rank)
    dist.barrier()


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
    )


def gradients(model: nn.Module) -> list[Tensor]:
    found = [parameter.grad for parameter in model.parameters()]
    return [gradient for gradient in found if gradient is not None]


def backward(rank: int, step: int, model: nn.Module) -> None:
    inputs = torch.randn(16, 20, generator=torch.Generator().manual_seed(100 * step + rank))
    model.zero_grad()
    model(inputs).square().mean().backward()


def data_parallel(rank: int) -> None:
    """Gradients are bit-identical to the mean over ranks, with many small buckets."""
    model, alone = network(), [network() for _ in range(SIZE)]
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        backward(rank, step, parallel)
        for r, other in enumerate(alone):
            other.load_state_dict(model.state_dict())
            backward(r, step, other)
        for found, first, second in zip(*map(gradients, (model, *alone)), strict=True):
            assert torch.equal(found, first / SIZE + second / SIZE)
        optimizer.step()


def data_parallel_bf16(rank: int) -> None:
    """Gradients are sent as bfloat16."""
    model, alone = network(), [network() for _ in range(SIZE)]
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.01)
    parallel.register_comm_hook(None, bf16_compress_hook)
    for step in range(5):
        backward(rank, step, parallel)
        for r, other in enumerate(alone):
            backward(r, step, other)
        for found, first, second in zip(*map(gradients, (model, *alone)), strict=True):
            halves = [(one.bfloat16() / SIZE).float() for one in (first, second)]
            exact = halves[0] + halves[1]
            rounded = exact.bfloat16().float()
            # Without AVX-512, oneCCL drops the lower half of a sum.
            cut = (exact.view(torch.int32) >> 16 << 16).view(torch.float32)
            assert torch.equal(found, rounded) or (
                dist.get_backend() == "oneccl" and torch.equal(found, cut)
            )


def late(rank: int) -> None:
    """If the other rank never joins, the work, its future and a backward raise after the timeout."""
    group = dist.new_group([0, 1], timeout=LATE)
    tensor = ours(10, rank)
    if rank == 0:
        work = dist.all_reduce(tensor, group=group, async_op=True)  # pyright: ignore[reportCallIssue]
        for wait in (work.wait, work.get_future().wait):
            with pytest.raises(RuntimeError, match=SAYS[dist.get_backend()]):
                wait()
    apart = dist.new_group([0, 1], timeout=LATE)
    parallel = DistributedDataParallel(network(), process_group=apart)
    if rank == 0:
        with pytest.raises(RuntimeError, match=SAYS[dist.get_backend()]):
            backward(rank, 0, parallel)


CASES: tuple[Callable[[int], None], ...] = (
    allreduce,
    broadcast,
    allgather,
    reduce_scatter,
    all_to_all,
    barrier,
    in_flight,
    futures,
    objects,
    groups,
    data_parallel,
    data_parallel_bf16,
    # Last, because rank 1 leaves.
    late,
)
ONLY = {"oneccl": (refusals,), "gloo": ()}


def main() -> None:
    """Run all cases."""
    backend, folder, rank = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=SIZE,
        timeout=timedelta(seconds=60),
    )
    assert dist.get_backend() == backend
    results: dict[str, dict[str, Any]] = {}
    for case in (*ONLY[backend], *CASES):
        before = calls(backend)
        try:
            case(rank)
        except BaseException:
            error = traceback.format_exc()
        else:
            error = ""
        after = calls(backend)
        results[case.__name__] = {
            "error": error,
            "calls": {name: after[name] - before[name] for name in after},
        }
        (folder / f"{rank}.json").write_text(json.dumps(results))
    # Do not wait for collectives that never end.
    os._exit(0)


def calls(backend: str) -> dict[str, int]:
    """Calls of each libccl function so far."""
    if backend != "oneccl":
        return {}
    from rowmill.distributed import oneccl

    return oneccl.calls()


if __name__ == "__main__":
    main()
