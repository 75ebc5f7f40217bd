"""benchmarks/exchange in its smallest form: ranks are processes, all strategies run, and counts are checked.

Speed is not checked. Numbers of messages and bytes are known in advance and are checked.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import common
from benchmarks.exchange import operators
from benchmarks.exchange import run as exchange
from benchmarks.exchange.cells import Cell
from benchmarks.exchange.rank import Stopwatch

CELL = Cell(ranks=2, categories=6, dims=(4, 8), batch=32, zipf=1.05)


def benchmark() -> common.Benchmark:
    return common.Benchmark(common.Settings(True, 1, None, ""))


@pytest.mark.usefixtures("forked")
def test_messages_of_every_strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWMILL_BENCH_DIR", str(tmp_path))
    made = benchmark()
    exchange.measure(made, [CELL], [64], rounds=2)
    assert len(made.cells) == 2 * len(exchange.STRATEGIES)
    found = {
        (strategy, figure): made.summary[f"{CELL.name}_{strategy}_{figure}"]
        for strategy in exchange.STRATEGIES
        for figure in ("rounds_of_rows", "rounds", "entries_per_message", "bytes_per_rank")
    }
    of_rows = {strategy: found[strategy, "rounds_of_rows"] for strategy in exchange.STRATEGIES}
    assert of_rows == {"packed": 1, "fused": 2, "source-hash": 2, "per-category": 6}
    # Counts, and a status word of every rank with its rows; then ids, rows and gradients of every lane.
    assert found["packed", "rounds"] == 2 + 3
    assert found["per-category", "rounds"] == 2 + 3 * 6
    assert found["source-hash", "rounds"] == 2 + 4 * 2
    # The same number of ids in fewer messages.
    entries = {of: found[of, "entries_per_message"] for of in exchange.STRATEGIES}
    assert entries["packed"] == pytest.approx(2 * entries["fused"])
    assert entries["packed"] == pytest.approx(6 * entries["per-category"])
    assert entries["source-hash"] == pytest.approx(entries["fused"])
    assert 0 < entries["packed"] < CELL.batch * CELL.categories
    assert found["packed", "bytes_per_rank"] == found["fused", "bytes_per_rank"]
    assert found["packed", "bytes_per_rank"] < found["source-hash", "bytes_per_rank"]
    assert made.summary["r2_message_64_mb_per_s"] > 0
    assert made.summary[f"{CELL.name}_packed_over_per-category_exchange"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("forked")
def test_batches_prepared_ahead_need_the_same_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROWMILL_BENCH_DIR", str(tmp_path))
    made, ahead = benchmark(), benchmark()
    exchange.measure(made, [CELL], [], rounds=1)
    exchange.measure(ahead, [CELL], [], rounds=1, depth=2)
    for strategy in exchange.STRATEGIES:
        name = f"{CELL.name}_{strategy}"
        for figure in ("rounds_of_rows", "entries_per_message", "bytes_per_message_of_rows"):
            assert made.summary[f"{name}_{figure}"] == ahead.summary[f"{name}_{figure}"]
        # One message per round says that there is no further batch.
        more = ahead.summary[f"{name}_rounds"] - made.summary[f"{name}_rounds"]
        assert 0 < more <= 1


@pytest.mark.usefixtures("forked")
def test_in_bf16_rows_and_gradients_take_half_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROWMILL_BENCH_DIR", str(tmp_path))
    wide, narrow = benchmark(), benchmark()
    exchange.measure(wide, [CELL], [], rounds=1)
    exchange.measure(narrow, [CELL], [], rounds=1, precision="split-bf16")
    for strategy in exchange.STRATEGIES:
        name = f"{CELL.name}_{strategy}"
        of_rows = f"{name}_bytes_per_message_of_rows"
        assert narrow.summary[of_rows] == wide.summary[of_rows] / 2
        assert narrow.summary[f"{name}_rounds"] == wide.summary[f"{name}_rounds"]


def test_waits_for_messages_count_in_the_part_that_sends_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    watch = Stopwatch()
    for leg in ("rows", "keys", "gradients", "rows"):
        with watch.waiting(leg):
            next(clock)
    # `ask` waits for ids itself.
    assert watch.seconds == {"send_rows": 4.0, "send_gradients": 2.0}


def test_all_operators_process_the_same_ids() -> None:
    made = benchmark()
    operators.measure(made, batch=16, rounds=1, repeats=2)
    units = {cell["variant"]: cell["units"] for cell in made.cells}
    assert units["segment_unique_one"] == 2 * 16 * operators.CATEGORIES
    assert units["torch_unique_many"] == 20 * 16 * operators.CATEGORIES
    assert units["torch_unique_many"] == units["numpy_unique_many"]
    assert made.summary["unique_many_over_torch"] > 0
    assert made.summary["rank_sort_one_ns_per_id"] > 0


def test_gpu_operators_run_in_tritons_interpreter() -> None:
    pytest.importorskip("triton", reason="Triton comes with torch for Linux alone")
    from benchmarks.exchange import operators_gpu

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    made = benchmark()
    operators_gpu.measure(made, device, rounds=2, categories=3, lookups=30)
    variants = [cell["variant"] for cell in made.cells]
    assert len(variants) == 2 * len(set(variants)) == 2 * 11
    assert all(made.summary[f"gpu_{variant}_ms"] > 0 for variant in variants)
    assert made.summary["gpu_unique_over_torch_unique_of_keys"] > 0
    if device.type == "cuda":
        assert made.summary["gpu_segment_unique_waits"] == 1
        assert made.summary["gpu_rank_sort_waits"] == 0


def test_device_cuda_without_a_gpu_is_a_one_line_error() -> None:
    if torch.cuda.is_available():
        pytest.skip("here is a GPU")
    ended = subprocess.run(
        [sys.executable, exchange.__file__, "--device", "cuda"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode != 0
    assert ended.stderr.splitlines() == ["--device cuda: torch finds no GPU on this machine"]
