"""Memory of large results is used again, but never while anything refers to it."""

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import rowmill
from rowmill.ops import outputs

ROWS = 1024
WIDTH = outputs.LEAST_BYTES // ROWS // 4


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    outputs.free_blocks.clear()
    yield
    outputs.free_blocks.clear()


def test_memory_of_a_freed_result_is_used_again() -> None:
    first = outputs.empty(ROWS, WIDTH, torch.float32)
    assert first.shape == (ROWS, WIDTH)
    assert first.dtype == torch.float32
    assert first.is_contiguous()
    address = first.data_ptr()
    del first
    again = outputs.empty(ROWS, WIDTH, torch.float32)
    assert again.data_ptr() == address
    assert outputs.empty(ROWS, WIDTH, torch.float32).data_ptr() != address


HOLDERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "view": lambda result: result.view(-1)[5:],
    "numpy": lambda result: result.numpy()[5:],
    "dlpack": torch.from_dlpack,
    # The product saves the result for its backward pass.
    "graph": lambda result: torch.ones(1, requires_grad=True) * result,
}


@pytest.mark.parametrize("hold", HOLDERS)
def test_memory_is_not_used_again_while_it_can_be_read(hold: str) -> None:
    result = outputs.empty(ROWS, WIDTH, torch.float32)
    result.fill_(1)
    address = result.data_ptr()
    held = HOLDERS[hold](result)
    del result
    gc.collect()
    other = outputs.empty(ROWS, WIDTH, torch.float32)
    assert other.data_ptr() != address
    other.fill_(2)
    del other
    outputs.empty(ROWS, WIDTH, torch.float32).fill_(3)
    assert (held == 1).all()
    del held
    gc.collect()
    addresses = {outputs.empty(ROWS, WIDTH, torch.float32).data_ptr() for _ in range(2)}
    assert address in {block.ctypes.data for block in outputs.free_blocks} | addresses


def test_a_block_is_used_for_a_slightly_smaller_result() -> None:
    address = outputs.empty(2 * ROWS, WIDTH, torch.float32).data_ptr()
    smaller = outputs.empty(2 * ROWS - 1, WIDTH, torch.float32)
    assert smaller.data_ptr() == address
    assert smaller.untyped_storage().nbytes() == smaller.nbytes, "torch.save writes the storage"
    del smaller
    assert outputs.empty(2 * ROWS + 1, WIDTH, torch.float32).data_ptr() != address
    assert outputs.empty(4 * ROWS, WIDTH, torch.bfloat16).data_ptr() == address


def test_few_blocks_are_kept_and_none_of_small_or_huge_results() -> None:
    many = [outputs.empty(ROWS * (1 + number), WIDTH, torch.float32) for number in range(10)]
    many += [outputs.empty(ROWS, WIDTH - 1, torch.float32)]
    many += [outputs.empty(outputs.MOST_BYTES // WIDTH // 4 + 1, WIDTH, torch.float32)]
    many.clear()
    assert len(outputs.free_blocks) == outputs.KEPT


@pytest.mark.parametrize("threads", [1, 2, 8, 16])
def test_threads_never_share_a_result(threads: int) -> None:
    def work(number: int) -> bool:
        for step in range(50):
            result = outputs.empty(ROWS + step % 3, WIDTH, torch.float32)
            result.fill_(number)
            if not bool((result == number).all()):
                return False
        return True

    with ThreadPoolExecutor(threads) as pool:
        assert all(pool.map(work, range(threads)))


def test_lookups_give_correct_vectors_in_used_memory(tmp_path: Path) -> None:
    store = rowmill.open(tmp_path, memory="16MiB")
    table = store.table("t", dim=128, optimizer=rowmill.optim.SGD(lr=1.0), num_rows=4096)
    rows = torch.randn(4096, 128)
    table.put(torch.arange(4096), rows)
    bag = rowmill.nn.EmbeddingBag(4096, 128, table=table)
    with torch.no_grad():
        kept = bag(torch.arange(2048).view(-1, 1))
        passing = bag(torch.arange(2048, 4096).view(-1, 1))
        assert torch.equal(passing, rows[2048:])
        address = passing.data_ptr()
        del passing
        again = bag(torch.arange(1024, 3072).view(-1, 1))
    assert again.data_ptr() == address
    assert torch.equal(again, rows[1024:3072])
    assert torch.equal(kept, rows[:2048])
    # The training result is held by the graph until its backward pass.
    bag(torch.arange(2048).view(-1, 1)).sum().backward()
    assert torch.equal(table.get(torch.arange(2048)), rows[:2048] - 1)
    store.close()
