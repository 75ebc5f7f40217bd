"""Benchmarks that train click models, in their smallest forms, with trainer and store.

Benchmarks run rarely. Without these tests they could break unnoticed, or not measure what they claim: all rows in memory, no
steps in flight, an inverted ratio. Speed is not checked.
"""

from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from benchmarks import common
from benchmarks.click_models import run as click_models
from benchmarks.criteo_quality import run as criteo_quality
from benchmarks.out_of_core import generated
from benchmarks.out_of_core.peer import load, peer_loop
from benchmarks.precision_quality import run as precision_quality
from benchmarks.quickstart import run as quickstart
from benchmarks.rounds import Patience
from benchmarks.staleness_quality import quality, rate, run
from benchmarks.training import Shape, config_of, loaded
from rowmill.config import StoreConfig, TrainConfig
from rowmill.ctr.data.generate import generate, table_ids
from rowmill.ctr.settings import GenerateConfig, SequencesConfig
from rowmill.train import dense
from rowmill.train.rows import StoredRows
from tests.array_rows import ArrayRows

SHAPE = Shape(rows_per_table=4_000, steps=70, tables=3, batch=64)


@pytest.fixture
def benchmark() -> common.Benchmark:
    return common.Benchmark(common.Settings(True, 1, None, ""))


def cells(benchmark: common.Benchmark, variant: str) -> list[Any]:
    return [cell for cell in benchmark.cells if cell["variant"] == variant]


class MappedRows(ArrayRows):
    """Rows by arbitrary ids."""

    keys_max = 1000

    def __init__(self) -> None:
        super().__init__({})

    def get(self, keys: Any) -> Any:
        places = super().get_places(keys)
        found: list[Any] = [self.rows[place] for place in places]
        return np.stack(found)

    def put(self, keys: Any, rows: Any, how: str = "put") -> None:
        assert how in ("put", "append")
        assert (keys[1:] > keys[:-1]).all()
        self.rows |= zip(keys.tolist(), rows.copy(), strict=True)


def test_out_of_core_compares_with_the_lower_of_both_limits(
    benchmark: common.Benchmark, tmp_path: Path
) -> None:
    probed: list[str] = []

    def probe(store: Path, number: int) -> float:
        assert (store / "group-0.log").stat().st_size > 0
        probed.append(f"round {number}")
        return 3.0  # A device so slow that it is the limit.

    rows: Any = MappedRows()
    load(rows, SHAPE, generated.DIM)
    generated.measure(
        benchmark,
        SHAPE,
        probe,
        tmp_path,
        patience=Patience(rounds=2, spread=1e9),
        steps=8,
        warm_up=4,
        lead=8,
        peers={"faster": rows},
    )
    assert len(rows.rows) == SHAPE.tables * SHAPE.rows_per_table
    assert rows.foretold == rows.gets - 1
    assert [cell["units"] for cell in cells(benchmark, "faster")] == [8 * SHAPE.batch] * 2
    assert probed == ["round 0", "round 1"]
    for own, memory in zip(cells(benchmark, "quarter"), cells(benchmark, "in_memory"), strict=True):
        assert own["units"] == memory["units"] == 8 * SHAPE.batch
        assert own["cold_rows_per_step"] > 1, "rows must have been evicted"
        assert memory["cold_rows_per_step"] == 0
    quarter = cells(benchmark, "quarter")
    limits = [3.0 / cell["cold_rows_per_step"] * SHAPE.batch for cell in quarter]
    assert all(limit < cell["rows_per_s"] for limit, cell in zip(limits, quarter, strict=True))
    figures = benchmark.summary
    assert figures["rate_with_a_quarter_over_limit"] > 1
    assert figures["rate_with_a_quarter_over_in_memory"] < 5
    assert figures["device_limit_rows_per_s"] == pytest.approx(median(limits))
    over = [
        own["rows_per_s"] / peer["rows_per_s"]
        for own, peer in zip(quarter, cells(benchmark, "faster"), strict=True)
    ]
    assert figures["rate_over_faster"] == pytest.approx(median(over))


def test_the_loop_over_a_peer_gives_the_losses_of_the_store(tmp_path: Path) -> None:
    options = {"share": None, "store": StoreConfig(lookahead=3), "train": TrainConfig(threads=1)}
    config = config_of(SHAPE, tmp_path, "store", **options)  # pyright: ignore[reportArgumentType]
    tables = [table_ids(SHAPE.log, number) for number in range(SHAPE.tables)]
    rows: Any = MappedRows()
    with loaded(config, SHAPE) as trainer:
        stored = trainer.trainer.rows
        assert isinstance(stored, StoredRows)

        def whole() -> dict[int, Any]:
            found: dict[int, Any] = {}
            for table, ids in zip(stored.tables, tables, strict=True):
                parts = np.concatenate([table.get(ids), table.get_state(ids)], axis=1)
                found |= zip(ids.view(np.uint64).tolist(), parts, strict=True)
            return found

        before = whole()
        rows.rows = {key: row.copy() for key, row in before.items()}
        peer = config_of(SHAPE, tmp_path, "peer", **options)  # pyright: ignore[reportArgumentType]
        with peer_loop(rows, peer, 1) as loop:
            assert loop.train(20) == trainer.train(20) == 20 * SHAPE.batch
        after = whole()
    moved = max(np.abs(after[key] - before[key]).max() for key in after)
    assert moved > 0.01
    for key, row in after.items():
        np.testing.assert_allclose(rows.rows[key], row, rtol=1e-3, atol=1e-5)


def test_staleness_quality_reports_every_bound_with_loss_0_at_bound_0(
    benchmark: common.Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROWMILL_DATA", "")
    monkeypatch.setattr(common, "REPOSITORY", tmp_path)  # So that there is no Criteo sample.
    size = run.Size(seeds=2, bounds=(0, 4, None), log_rows=6_000)
    run.measure_quality(benchmark, size, tmp_path)
    assert {(cell["bound"], cell["seed"]) for cell in cells(benchmark, "quality_generated")} == {
        (bound, seed) for bound in ("0", "4", "infinite") for seed in (1, 2)
    }
    assert all(cell["cold_reads"] > 0 for cell in cells(benchmark, "quality_generated"))
    figures = benchmark.summary
    assert figures["quality_generated_bound_0_auc_loss_percent"] == 0
    assert (
        figures["quality_generated_bound_infinite_auc"] < figures["quality_generated_bound_0_auc"]
    )
    assert figures["quality_generated_bound_infinite_auc_loss_percent"] > 0


def test_staleness_quality_measures_every_point_of_its_curves(
    benchmark: common.Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate, "IN_FLIGHT", 6)
    size = run.Size(
        bounds=(0, None),
        shares=(1 / 4,),
        rows_per_table=2_000,
        batch=32,
        rounds=1,
        steps=4,
        warm_up=4,
    )
    run.measure_rate(benchmark, size, tmp_path)
    names = [str(cell["variant"]) for cell in benchmark.cells]
    expected = {
        "none_bound_0",
        *(
            f"{mode}_bound_{bound}"
            for mode in ("conventional", "lookahead")
            for bound in ("0", "10", "infinite")
        ),
    }
    assert set(names) == {f"rate_{name}_memory_0.25" for name in expected}
    for name in names:
        assert benchmark.summary[f"{name}_rows_per_s"] > 0
        assert benchmark.summary[f"{name}_cold_rows_per_step"] > 0, "rows must have been evicted"
    assert not list(tmp_path.glob("rate_*")), "the store of every point must be deleted"


def test_more_steps_are_in_flight_than_any_bound_allows() -> None:
    assert max(bound for bound in quality.BOUNDS if bound is not None) + 1 < quality.IN_FLIGHT
    assert max(bound for bound in quality.BOUNDS if bound is not None) + 1 <= rate.IN_FLIGHT


def test_click_models_compares_store_and_torch(benchmark: common.Benchmark, tmp_path: Path) -> None:
    sequences = SequencesConfig(users=50, items=60, events=15, places=5, candidates=20)
    click_models.measure(benchmark, ["din", "ncf"], tmp_path, sequences, seeds=2, epochs=1)
    assert [cell["variant"] for cell in benchmark.cells[:4]] == ["din_stored", "din_plain"] * 2
    figures = benchmark.summary
    for kind in ("din", "ncf"):
        assert figures[f"{kind}_auc_largest_difference"] < 0.02
        mean = (
            cells(benchmark, f"{kind}_stored")[0]["auc"]
            + cells(benchmark, f"{kind}_stored")[1]["auc"]
        ) / 2
        assert figures[f"{kind}_stored_auc"] == pytest.approx(mean)
        assert figures[f"{kind}_stored_auc_spread"] > 0


def test_click_models_generates_a_log_if_movielens_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROWMILL_DATA", "")
    monkeypatch.setattr(common, "REPOSITORY", tmp_path)
    assert click_models.log(quick=True)[0] == "generated"
    (tmp_path / "data/ml-100k").mkdir(parents=True)
    (tmp_path / "data/ml-100k/ml-100k.inter").touch()
    monkeypatch.setenv("ROWMILL_DATA", str(tmp_path / "data"))
    assert click_models.log(quick=True)[0] == "ml-100k"


def test_precisions_are_compared_within_a_seed(
    benchmark: common.Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        dense, "multiplies_bf16", lambda: True
    )  # Other processors compute the same, but slower.
    monkeypatch.setenv("ROWMILL_DATA", "")
    monkeypatch.setattr(common, "REPOSITORY", tmp_path)
    precision_quality.measure(benchmark, precision_quality.log(), tmp_path, seeds=2, rows=4000)
    assert [cell["variant"] for cell in benchmark.cells] == ["fp32", "split-bf16"] * 2
    auc = [float(str(cell["auc"])) for cell in benchmark.cells]
    less = [auc[0] - auc[1], auc[2] - auc[3]]
    assert benchmark.summary["split-bf16_loses_auc"] == pytest.approx(sum(less) / 2)
    assert benchmark.summary["split-bf16_loses_auc_at_most"] == max(less)
    assert 0 < max(map(abs, less)) < 0.02, "the precisions must differ, but little"


def test_criteo_quality_has_the_mean_and_range_of_seeds(
    benchmark: common.Benchmark, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    generate(log, GenerateConfig(rows=3000, rows_per_table=100))
    criteo_quality.measure(benchmark, log, tmp_path / "kept", seeds=2)
    auc = [float(str(cell["auc"])) for cell in benchmark.cells]
    assert benchmark.summary["auc"] == pytest.approx(sum(auc) / 2)
    assert benchmark.ranges["auc"] == {"rounds": 2, "min": min(auc), "max": max(auc)}
    assert auc[0] != auc[1], "seeds must differ"

    again = common.Benchmark(benchmark.settings)
    (tmp_path / "kept/seed-2.json").unlink()
    criteo_quality.measure(again, log, tmp_path / "kept", seeds=2)
    assert again.cells == benchmark.cells, "equal seeds, equal bits"


@pytest.mark.usefixtures("forked")
def test_quickstart_and_demo_are_timed_from_empty_folders(
    benchmark: common.Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = quickstart.CONFIG.read_text()
    for name, value, small in (("rows", "600_000", "4000"), ("rows_per_table", "180_000", "500")):
        assert f"{name} = {value}" in settings
        settings = settings.replace(f"{name} = {value}", f"{name} = {small}")
    config = tmp_path / "small.toml"
    config.write_text(settings)
    monkeypatch.setattr(common, "REPOSITORY", tmp_path)
    demo = tmp_path / "demo.py"
    demo.write_text("from pathlib import Path\nassert not list(Path().iterdir())\n")
    quickstart.measure(benchmark, config, demo, rounds=2)
    trained = [cell for cell in benchmark.cells if cell["variant"] == "quickstart"]
    assert [cell["units"] for cell in trained] == [3200, 3200]
    assert benchmark.ranges["make_seconds"]["rounds"] == 2
    reported = max(float(cell["run"]["seconds"]) for cell in trained)  # pyright: ignore
    assert benchmark.ranges["seconds"]["max"] > reported, "the command takes longer than its steps"
    assert benchmark.ranges["auc"]["min"] == benchmark.ranges["auc"]["max"], "one seed, equal bits"
    assert {path.name for path in tmp_path.iterdir()} == {"small.toml", "demo.py"}, (
        "the folders must be cleaned up"
    )
