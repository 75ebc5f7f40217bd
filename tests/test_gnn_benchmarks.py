"""benchmarks/gnn_out_of_core and gnn_quality in their smallest forms: the graph, the loop over a peer, the comparisons, and
stored results of splits.

Speed is not checked. The peer is an array, because these tests compare the loops and not the engines;
`crates/rowmill-peers` tests the real ones.
"""

from dataclasses import replace
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import common
from benchmarks.gnn_out_of_core import run as gnn_out_of_core
from benchmarks.gnn_out_of_core.peer import PeerNodeTask
from benchmarks.gnn_out_of_core.shape import DEGREE, DIM, Shape
from benchmarks.gnn_out_of_core.stored import training
from benchmarks.gnn_quality import run as gnn_quality
from benchmarks.peer_loop import PeerLoop
from benchmarks.rounds import Patience
from rowmill.config import StoreConfig
from rowmill.gnn.node_graph import Features
from rowmill.gnn.planted_nodes import make_nodes
from rowmill.gnn.settings import NodesConfig
from rowmill.gnn.splits import best_of_valid
from rowmill.gnn.task import NodeTask
from rowmill.train.run import Trainer
from tests.array_rows import ArrayRows

SHAPE = Shape(bits=13, batch=16)
SIZE = gnn_out_of_core.Size(
    shape=SHAPE,
    in_memory=replace(SHAPE, bits=11),
    patience=Patience(rounds=2, spread=1e9),
    steps=4,
    warm_up=8,
    peer_steps=3,
    peer_warm_up=2,
)


def benchmark() -> common.Benchmark:
    return common.Benchmark(common.Settings(True, 1, None, ""))


def test_the_most_frequent_quarter_of_nodes_is_half_of_the_neighbours(tmp_path: Path) -> None:
    shape = Shape(bits=16, batch=16)
    graph = shape.graph(tmp_path)
    assert len(graph.indices) / shape.nodes == pytest.approx(DEGREE, rel=0.05)
    counts = np.bincount(graph.indices, minlength=shape.nodes)
    ranked = counts[shape.at_ranks(np.arange(shape.nodes, dtype=np.uint64))]
    assert len(ranked) == len(counts) == shape.nodes
    assert ranked[: shape.nodes // 4].sum() / ranked.sum() == pytest.approx(0.5, abs=0.01)
    # Node numbers do not depend on frequency.
    assert counts[: shape.nodes // 4].sum() / counts.sum() == pytest.approx(0.25, abs=0.01)


def test_every_variant_is_compared_with_a_quarter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gnn_out_of_core, "_FIXED_BYTES", 32 << 20)
    probed: list[int] = []

    def probe(store: Path, number: int) -> float:
        assert (store / "group-0.log").stat().st_size > 0
        probed.append(number)
        return 3.0  # A device so slow that it is the limit.

    made = gnn_out_of_core.Run(benchmark(), SIZE, threads=1, lookahead=4, probe=probe)
    graph = SHAPE.graph(tmp_path)
    rows = ArrayRows(np.full((SHAPE.nodes, DIM), np.nan, np.float32))
    made.train(graph, tmp_path, {"rocksdb": rows})  # pyright: ignore[reportArgumentType]
    assert rows.foretold == rows.gets - 1
    gnn_out_of_core.compare(made.benchmark, SHAPE.batch)
    assert probed == [0, 1]
    cells: dict[str, list[Any]] = {
        variant: [cell for cell in made.benchmark.cells if cell["variant"] == variant]
        for variant in ("quarter", "blind", "in_memory", "rocksdb")
    }
    assert [len(found) for found in cells.values()] == [2, 2, 2, 2]
    assert {cell["units"] for cell in cells["quarter"] + cells["in_memory"]} == {4 * SHAPE.batch}
    assert {cell["units"] for cell in cells["rocksdb"]} == {3 * SHAPE.batch}
    assert all(cell["cold_rows_per_step"] > 100 for cell in cells["quarter"] + cells["blind"])
    assert all(cell["cold_rows_per_step"] == 0 for cell in cells["in_memory"])

    def read_by_steps(cell: Any) -> float:
        return (1 - cell["hit_rate"]) * cell["distinct_rows_per_step"]

    # Without lookahead, steps read every cold row themselves.
    for cell in cells["blind"]:
        assert read_by_steps(cell) == pytest.approx(cell["cold_rows_per_step"])
    for cell in cells["quarter"]:
        assert read_by_steps(cell) < cell["cold_rows_per_step"]
    figures = made.benchmark.summary
    assert figures["row_memory"] * 4 == figures["feature_bytes"] == SHAPE.nodes * DIM * 4
    limits = [3.0 / cell["cold_rows_per_step"] * SHAPE.batch for cell in cells["quarter"]]
    assert figures["device_limit_rows_per_s"] == pytest.approx(median(limits))
    assert figures["rate_with_a_quarter_over_limit"] > 1
    rates = {side: [cell["rows_per_s"] for cell in found] for side, found in cells.items()}
    for other in ("blind", "rocksdb"):
        over = np.median(np.divide(rates["quarter"], rates[other]))
        assert figures[f"rate_over_{other}"] == pytest.approx(over)
        assert figures[f"{other}_joules_per_batch"] > 0
    assert figures["quarter_blocks_read_per_step"] > 0


def test_the_loop_over_a_peer_gives_the_losses_of_the_store(tmp_path: Path) -> None:
    graph = SHAPE.graph(tmp_path)
    learned: list[list[torch.Tensor]] = []
    for side in ("store", "peer"):
        store_config = StoreConfig(memory="64MiB")
        config = SHAPE.config(tmp_path / side, store=store_config, threads=1)
        with training(config, SHAPE, graph, threads=1) as trainer:
            task = trainer.trainer.task
            assert isinstance(task, NodeTask)
            weights = list(task.model.network.parameters())
            before = [weight.detach().clone() for weight in weights]
            if side == "store":
                assert trainer.train(6) == 6 * SHAPE.batch
            else:
                rows: Any = ArrayRows(task.table.get(torch.arange(SHAPE.nodes)).numpy())
                # The graph of this task is the large one itself.
                small = replace(graph, features=Features(DIM))
                over = PeerNodeTask(config, small, trainer.store, SHAPE, graph, rows)
                loop = PeerLoop(rows, over)
                weights = list(over.model.network.parameters())
                assert loop.train(2) + loop.train(4) == 6 * SHAPE.batch
            moved = [(now - then).abs().max() for now, then in zip(weights, before, strict=True)]
            assert min(moved) > 1e-4
            learned.append([weight.detach() for weight in weights])
    for stored, peers in zip(*learned, strict=True):
        assert torch.equal(stored, peers)


NAME = "planted-graphsage"


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small graph and a settings file for it."""
    graph = tmp_path / "planted.npz"
    make_nodes(graph, NodesConfig(nodes=400, classes=3, features=8))
    (tmp_path / f"{NAME}.toml").write_text(
        """
        [model]
        kind = "graphsage"
        [gnn]
        train_per_class = 10
        valid_per_class = 10
        isolated = "keep"
        [store]
        memory = "64MiB"
        [train]
        task = "gnn"
        epochs = 3
        batch = 10
        """
    )
    monkeypatch.setattr(gnn_quality, "EXAMPLES", tmp_path)
    monkeypatch.setitem(gnn_quality.ASKED, NAME, 0.5)
    return graph


def test_results_of_finished_splits_are_reused(planted: Path, tmp_path: Path) -> None:
    settings = gnn_quality.Settings(NAME, planted, tmp_path / "kept")
    made = benchmark()
    for split in range(3):
        settings.measure(split)
        gnn_quality.summarize(made, settings, split + 1)
    assert sorted(path.name for path in (tmp_path / "kept" / NAME).iterdir()) == [
        "split-0.json",
        "split-1.json",
        "split-2.json",
    ]
    found: list[Any] = [cell["accuracy"] for cell in made.cells]
    assert [cell["round"] for cell in made.cells] == [0, 1, 2]
    assert len(set(found)) > 1, "splits and seeds must differ"
    assert made.summary[f"{NAME}_accuracy"] == pytest.approx(mean(found))
    assert made.summary[f"{NAME}_accuracy_deviation"] == pytest.approx(stdev(found))
    assert (made.summary[f"{NAME}_splits"], made.summary[f"{NAME}_asked"]) == (3, 0.5)

    planted.unlink()  # So that training is impossible.
    again = benchmark()
    settings.measure(1)
    gnn_quality.summarize(again, gnn_quality.Settings(NAME, planted, tmp_path / "kept"), 3)
    assert (again.cells, again.summary) == (made.cells, made.summary)

    file = tmp_path / f"{NAME}.toml"
    file.write_text(file.read_text().replace("epochs = 3", "epochs = 4"))
    changed = gnn_quality.Settings(NAME, planted, tmp_path / "kept")
    assert changed.results(3) == {}, "the stored results belong to other settings"


def test_an_interrupted_split_is_resumed(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = gnn_quality.Settings(NAME, planted, tmp_path / "whole")
    whole.measure(1)
    parts = gnn_quality.Settings(NAME, planted, tmp_path / "parts")

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr(NodeTask, "test", interrupted)
        with pytest.raises(KeyboardInterrupt):
            parts.measure(1)
    assert parts.results(2) == {}
    with monkeypatch.context() as during:
        # All steps ran before the interruption.
        during.setattr(Trainer, "train_step", interrupted)
        parts.measure(1)
    one, other = (settings.results(2)[1] for settings in (whole, parts))
    assert one["test"] == other["test"]
    assert best_of_valid(one["curve"]) == best_of_valid(other["curve"])
