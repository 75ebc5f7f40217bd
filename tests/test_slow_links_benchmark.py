"""The arithmetic of benchmarks/slow_links and of the model in benchmarks/dlrm_scaling, on numbers chosen by hand.

What could break: ratios of variants that differ in two flags, parts of a step that do not add up, and a model in which every
rank does the work of all. Speed is not checked, and no links are made, because they need root.
"""

from typing import Any

import pytest

from benchmarks import common
from benchmarks.cost_model.model import Curve, Link
from benchmarks.dlrm_scaling import run as scaling
from benchmarks.dlrm_scaling.settings import Settings
from benchmarks.slow_links import run as slow_links
from benchmarks.slow_links.run import Cell, Variant

BLOCKING, OVERLAP = Variant("blocking"), Variant("overlap")
NARROW = Variant("overlap", "bf16")


def test_ratios_compare_variants_that_differ_in_one_flag() -> None:
    made = common.Benchmark(common.Settings(True, 1, None, ""))
    figures = {name: 0.0 for name in slow_links.FIGURES}
    rounds = {
        BLOCKING: [{**figures, "step_ms": 40.0}, {**figures, "step_ms": 80.0}],
        OVERLAP: [{**figures, "step_ms": 20.0}, {**figures, "step_ms": 20.0}],
        NARROW: [{**figures, "step_ms": 10.0}, {**figures, "step_ms": 5.0}],
    }
    for seen in (one for of in rounds.values() for one in of):
        seen |= {name: seen["step_ms"] for name in slow_links.FIGURES}
    slow_links.summarize(made, Cell("small", 2, "1gbit"), rounds)
    stem = "small_2048x2_1gbit"
    assert made.summary[f"{stem}_overlap_fp32_step_ms"] == 20
    # The median of ratios per round, not the ratio of medians.
    assert made.summary[f"{stem}_overlap_fp32_over_blocking_fp32_exposed"] == (0.5 + 0.25) / 2
    assert made.summary[f"{stem}_overlap_bf16_over_overlap_fp32_step"] == (0.5 + 0.25) / 2
    assert not any("bf16_over_blocking" in name for name in made.summary)


def test_names_of_cells_and_variants_are_distinct() -> None:
    cells = slow_links.CELLS
    assert len({cell.name for cell in cells}) == len(cells)
    for cell in cells:
        names = [variant.name for variant in cell.variants]
        assert len(set(names)) == len(names), cell.name
    assert Variant("overlap", pin="apart", backend="oneccl").name == "overlap_fp32_apart_oneccl"
    assert Variant("blocking", placement="auto").name == "blocking_fp32_auto"


def test_parts_of_a_step_add_up() -> None:
    collective = {"exposed_ms": 1.0, "total_ms": 4.0}
    run: dict[str, Any] = {
        "step_ms": 12.0,
        "exposed_ms": 2.0,
        "phase_ms": {"lookup": 4.0, "other": 6.0},
        "collectives": {"rows": collective, "allreduce": collective},
    }
    found = slow_links.figures(run)
    assert found == {"step_ms": 12, "exposed_ms": 2, "messages_ms": 8, "work_ms": 10}


def test_gains_are_over_one_rank_and_ratios_over_gloo() -> None:
    made = common.Benchmark(common.Settings(True, 1, None, ""))
    gloo, oneccl = scaling.Ranks(2, "gloo"), scaling.Ranks(2, "oneccl")
    rounds = {
        scaling.ONE: [{"step_ms": 40.0, "samples_per_s": 10.0}] * 2,
        gloo: [{"step_ms": 20.0, "samples_per_s": 20.0}, {"step_ms": 30.0, "samples_per_s": 15.0}],
        oneccl: [
            {"step_ms": 10.0, "samples_per_s": 40.0},
            {"step_ms": 30.0, "samples_per_s": 20.0},
        ],
    }
    scaling.summarize(made, scaling.CELLS["small_weak"], rounds)
    medians = {k: v for k, v in made.summary.items() if not k.endswith("_spread")}
    assert medians == {
        "small_weak_r1_step_ms": 40,
        "small_weak_r2_step_ms": 25,
        "small_weak_r2_gain": 1.75,
        "small_weak_r2_oneccl_step_ms": 20,
        "small_weak_r2_oneccl_gain": 3,
        # The median of ratios per round, not the ratio of medians.
        "small_weak_r2_oneccl_over_gloo_step": 0.75,
    }


def test_the_model_divides_samples_but_not_the_optimizer() -> None:
    settings = Settings(config="mlperf", scale=0.002, batch=128)
    one = {"phase_ms": {"lookup": 900.0, "optimizer": 100.0}}
    free = Link(*[Curve(0.0)] * 4)
    gains = scaling.modelled(settings, one, [1e6], free)
    assert gains[2] == 1
    assert gains[26] == pytest.approx((0.9 / 2 + 0.1) / (0.9 / 26 + 0.1))
    # The two passes of a ring of 26 ranks take 25 times the steps of two ranks.
    rings = Link(Curve(0), Curve(0), Curve(0.01), Curve(0))
    gains = scaling.modelled(settings, one, [1e6, 1e6], rings)
    assert gains[26] == pytest.approx((0.55 + 0.02) / (0.9 / 26 + 0.1 + 25 * 0.02))


def test_bytes_sent_by_a_rank_are_proportional_to_its_samples() -> None:
    settings = Settings(config="mlperf", scale=0.002, batch=128)
    two, many = (scaling.sends_of(settings, ranks, [8.0, 8.0]) for ranks in (2, 26))
    ids, rows, gradients = two.to_all
    assert 26 * 8 <= ids <= 8 * 64 * 26
    assert rows == gradients == ids / 8 * 4 * 128
    assert many.to_all[0] < ids
    assert two.to_each[0] == 8 * (2 + 26)
    assert two.sums == many.sums == (8.0, 8.0)
