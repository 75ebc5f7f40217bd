"""benchmarks/kge_out_of_core and kge_quality in their smallest forms: the graph, the loop over a peer, the comparisons, and
stored results of runs.

Speed is not checked. The peer is an array, because these tests compare the loops and not the engines;
`crates/rowmill-peers` tests the real ones.
"""

import json
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import common
from benchmarks.kge_out_of_core import run as kge_out_of_core
from benchmarks.kge_out_of_core.peer import peer_loop, rows_of
from benchmarks.kge_out_of_core.shape import SKEW, Shape
from benchmarks.kge_out_of_core.stored import filled, training
from benchmarks.kge_quality import run as kge_quality
from benchmarks.memory_group import MOUNT
from benchmarks.outcomes import Outcomes
from benchmarks.provenance import Source
from benchmarks.rounds import Patience
from rowmill.config import StoreConfig
from tests.array_rows import ArrayRows

SHAPE = Shape(entities=20_000, relations=20, dim=16, batch=64, negatives=16, partitions=8, buffer=3)
SIZE = kge_out_of_core.Size(
    shape=SHAPE,
    in_memory=replace(SHAPE, entities=4_000),
    patience=Patience(rounds=2, spread=1e9),
    steps=6,
    warm_up=20,
    peer_steps=3,
    peer_warm_up=2,
    ranked=20,
)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> kge_out_of_core.Run:
    monkeypatch.setattr(kge_out_of_core, "_FIXED_BYTES", 32 << 20)
    return kge_out_of_core.Run(
        common.Benchmark(common.Settings(True, 1, None, "")),
        SIZE,
        tmp_path,
        threads=1,
        lookahead=4,
        probe=lambda store, number: 3.0,  # A device so slow that it limits every engine that reads.
    )


def test_few_entities_occur_in_most_triples() -> None:
    shape = replace(SHAPE, entities=100_000)
    triples = shape.draw(200_000, 1)
    assert triples.min() == 0
    assert (triples.max(axis=0) < [100_000, 20, 100_000]).all()
    assert len(np.unique(triples[:, 1])) == 20
    for column in (0, 2):
        counts = np.bincount(triples[:, column], minlength=100_000)[shape.numbers]
        assert counts[:25_000].sum() / 200_000 == pytest.approx(0.25 ** (1 - SKEW), abs=0.01)
    assert not np.array_equal(triples, shape.draw(200_000, 2))


def test_both_orders_are_compared_with_the_lower_limit(made: kge_out_of_core.Run) -> None:
    rows = ArrayRows(np.full((rows_of(SHAPE), 2 * SHAPE.dim), np.nan, np.float32))
    made.train(SHAPE.graph(), {"rocksdb": rows})  # pyright: ignore[reportArgumentType]
    assert np.isfinite(rows.rows).all()
    # All gets of two loops were announced, but for the first and those after the other loop's announcements.
    assert rows.foretold > rows.gets // 2
    kge_out_of_core.summarize(made.benchmark, SHAPE)
    figures = made.benchmark.summary
    assert figures["live_row_bytes"] == SHAPE.row_bytes == figures["row_memory"] * 4
    for order in ("shuffled", "partitions"):
        cells: dict[str, list[Any]] = {
            side: [c for c in made.benchmark.cells if c["variant"] == f"{order}_{side}"]
            for side in ("quarter", "blind", "in_memory", "rocksdb")
        }
        assert [len(found) for found in cells.values()] == [2, 2, 2, 2]
        # The number of rows prefetched in time depends on the load of the machine.
        hits = {
            side: sum(cell["hit_rate"] for cell in cells[side]) for side in ("quarter", "blind")
        }
        assert hits["quarter"] > hits["blind"]
        assert all(cell["hit_rate"] < 0.95 for cell in cells["blind"])
        assert all(cell["cold_rows_per_step"] > 1 for cell in cells["quarter"])
        assert all(cell["cold_rows_per_step"] == 0 for cell in cells["in_memory"])
        limits = [3.0 / cell["cold_rows_per_step"] * SHAPE.batch for cell in cells["quarter"]]
        found = figures[f"{order}_device_limit_triples_per_s"]
        assert found == pytest.approx(median(limits))
        assert figures[f"{order}_rate_over_limit"] > 1
        rates = {s: [cell["rows_per_s"] for cell in found] for s, found in cells.items()}
        for other in ("blind", "rocksdb"):
            over = np.median(np.divide(rates["quarter"], rates[other]))
            assert figures[f"{order}_rate_over_{other}"] == pytest.approx(over)
            assert figures[f"{order}_{other}_joules_per_batch"] > 0


def test_the_loop_over_a_peer_gives_the_losses_of_the_store(tmp_path: Path) -> None:
    graph = SHAPE.graph()
    store_config = StoreConfig(memory="64MiB")
    config = SHAPE.config(tmp_path, partitioned=True, store=store_config, threads=1)
    with (
        filled(config, SHAPE, graph, threads=1) as store,
        training(config, graph, store) as trainer,
    ):
        tables = [store.open_table(name) for name in ("entities", "relations")]

        def stored() -> Any:
            ids = [torch.arange(table.num_rows or 0) for table in tables]
            parts = [
                np.concatenate([table.get(i), table.get_state(i)], axis=1)
                for table, i in zip(tables, ids, strict=True)
            ]
            return np.concatenate(parts)

        before = stored()
        rows = ArrayRows(before.copy())
        options = {"partitioned": True, "lookahead": 3, "threads": 1}
        with peer_loop(rows, SHAPE, graph, tmp_path / "peer", **options) as loop:  # pyright: ignore[reportArgumentType]
            assert loop.train(10) == trainer.train(10) == 640
        assert (rows.gets, rows.foretold) == (10, 9)
        after = stored()
    assert np.abs(after - before).max() > 0.05
    np.testing.assert_allclose(rows.rows, after, rtol=1e-3, atol=1e-5)


def test_ranking_stays_within_its_memory_group(
    made: kge_out_of_core.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the memory limit has its real size, because it includes the memory of a process with torch."""
    try:
        (MOUNT / "rowmill-test").mkdir()
        (MOUNT / "rowmill-test").rmdir()
    except OSError as error:
        pytest.skip(f"no memory groups of cgroup v1: {error}")
    made.train(SHAPE.graph(), {})
    budget = 64 << 20
    monkeypatch.setattr(kge_out_of_core.Size, "row_memory", budget)
    made.evaluate(SHAPE.graph())
    figures = made.benchmark.summary
    assert figures["ranking_triples"] == 20
    assert 0 < figures["ranking_most_bytes"] <= figures["ranking_limit"] == budget + (1 << 30)
    assert 1 / SHAPE.entities < figures["ranking_mrr"] < 1


def test_results_of_finished_runs_are_reused_and_summarized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = tmp_path / "graph"
    graph.mkdir()
    lines = [
        f"e{head}\tr{kind}\te{(head + kind + 1) % 40}\n" for head in range(40) for kind in (0, 1)
    ]
    parts = {"valid": lines[::20], "test": lines[7::20]}
    held = {line for part in parts.values() for line in part}
    parts["train"] = [line for line in lines if line not in held]
    for part, chosen in parts.items():
        (graph / f"{part}.tsv").write_text("".join(chosen))
    (tmp_path / "ring-distmult.toml").write_text(
        """
        [model]
        kind = "distmult"
        dim = 8
        [store]
        memory = "64MiB"
        [train]
        task = "kge"
        epochs = 2
        """
    )
    monkeypatch.setattr(kge_quality, "EXAMPLES", tmp_path)
    monkeypatch.setattr(kge_quality, "ASKED", {"ring-distmult": 0.5, "absent-complex": 0.5})
    monkeypatch.setattr(kge_quality, "GRAPHS", {"ring": str(graph), "absent": "nowhere"})
    out = tmp_path / "found.json"
    arguments = ["run.py", "--folder", str(tmp_path / "kept"), "--allow-dirty", "--out", str(out)]
    monkeypatch.setattr("sys.argv", arguments)
    kge_quality.main()
    found = json.loads(out.read_text())
    assert found["summary"]["ring-distmult_asked"] == 0.5
    assert [(cell["seed"], cell["epochs"]) for cell in found["cells"]] == [(1, 2), (2, 2), (3, 2)]
    range_of_seeds = found["ranges"]["ring-distmult_mrr"]
    assert range_of_seeds["rounds"] == 3
    assert 0 < range_of_seeds["min"] < range_of_seeds["max"] <= 1, "seeds must differ"

    monkeypatch.setattr(
        "sys.argv", [*arguments[:4], "--quick", "--out", str(tmp_path / "quick.json")]
    )
    kge_quality.main()
    quick = json.loads((tmp_path / "quick.json").read_text())
    assert [cell["epochs"] for cell in quick["cells"]] == [1]
    monkeypatch.setattr("sys.argv", arguments)

    (graph / "train.tsv").unlink()  # So that training is impossible.
    kge_quality.main()
    assert json.loads(out.read_text())["summary"] == found["summary"]

    monkeypatch.setattr("sys.argv", [*arguments, "--settings", "ring-complex"])
    with pytest.raises(SystemExit):
        kge_quality.main()

    file = tmp_path / "kept/ring-distmult-1.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"source": content["source"] | {"dirty": True}}))
    config = kge_quality.config_of("ring-distmult", graph, seed=1, quick=False)
    for dirty in (True, False):
        now = Source("commit", dirty, "crates", "python")
        monkeypatch.setattr(Source, "now", lambda now=now: now)
        result = Outcomes(tmp_path / "kept").result("ring-distmult-1", config)
        assert (result is not None) == dirty, "a clean tree ignores results of a dirty one"
