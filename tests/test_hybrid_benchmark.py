"""benchmarks/hybrid in its smallest form, and the arithmetic of its figures on numbers chosen by hand.

What could break: variants that do not do the same work, bytes that differ from the formula, a cell that is measured again,
ratios of medians in place of medians of ratios, and claims that match no figure. Speed is not checked.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import common
from benchmarks.claims import verdicts
from benchmarks.hybrid import run
from benchmarks.hybrid.cells import CELLS, FIXED, QUICK, Cell
from benchmarks.hybrid.rank import check_losses
from benchmarks.hybrid.summary import AIMS, CLAIMS, LEGS, SUMMED, figures, summarize
from benchmarks.provenance import processor

TINY = Cell(
    config="small", ranks=2, link="unlimited", skew="zipf", samples=16, scale=0.001, steps=2
)
BOTH = ("blocking", "overlap")


def benchmark(out: Path | None = None) -> common.Benchmark:
    return common.Benchmark(common.Settings(True, 1, out, ""))


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_all_variants_train_alike_and_a_measured_cell_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROWMILL_BENCH_DIR", str(tmp_path))
    out = tmp_path / "hybrid.json"
    made = benchmark(out)
    # A rank raises if losses of variants differ.
    run.measure_all(made, [TINY], rounds=2)
    (record,) = json.loads(out.read_text())["cells"]
    found = {of["variant"]: of for of in record["variants"]}
    assert list(found) == [variant.name for variant in TINY.variants()]
    assert [found[kind]["placements"] for kind in ("rows", "pooled", "per-category")] == [
        {"rows": 8},
        {"pooled": 8},
        {"rows": 8},
    ]
    assert found["whole"]["placements"] == {"whole:0": 4, "whole:1": 4}
    assert found["replicated"]["placements"] == {"replicated": 8}
    assert sum(found["auto"]["placements"].values()) == 8
    assert min(record["speeds"].values()) > 0
    assert record["processor"] == processor()
    for name, of in found.items():
        assert sum(of["bytes"].values()) == pytest.approx(of["formula_bytes"], rel=0.05), name
        assert len(of["rounds"]) == 2
        for seen in of["rounds"]:
            assert seen["messages_ms"] > 0, name
            assert 0 < seen["sparse_ms"] < seen["blocking_step_ms"], name
            assert 0 <= seen["exposed_ms"] < seen["step_ms"], name
    # A bag has 50 ids, so its rows are more bytes than its vector.
    assert found["rows"]["formula_bytes"] > 1.5 * found["whole"]["formula_bytes"]
    assert made.summary["bytes_off_formula_most"] < 0.05
    assert list(tmp_path.iterdir()) == [out]

    monkeypatch.setattr(run, "measure", lambda *_, **__: pytest.fail("measured again"))
    again = benchmark(out)
    run.measure_all(again, [TINY], rounds=2)
    assert again.summary == made.summary
    assert again.cells == [record]


def ranks_of(ms: float) -> list[dict[str, Any]]:
    """Measurements of two ranks, whose times are `ms` and three times as long."""
    return [
        {
            comm: {
                "step_ms": [10 * time, 30 * time],
                "phase_ms": {"lookup": time, "lookup backward": 2 * time, "top MLP": 9.0},
                "exposed_ms": {leg: time for leg in (*LEGS, SUMMED)},
                "total_ms": {leg: 2 * time for leg in (*LEGS, SUMMED)},
            }
            for comm, time in (("blocking", 10 * share), ("overlap", share))
        }
        for share in (ms, 3 * ms)
    ]


def test_figures_are_means_over_steps_and_ranks() -> None:
    found = figures(ranks_of(1.0))
    assert found["step_ms"] == 40
    assert found["blocking_step_ms"] == 400
    # Work of both phases, and waiting for the four messages of the exchange.
    assert found["sparse_ms"] == 20 + 40 + 4 * 20
    assert found["messages_ms"] == 4 * 40
    assert found["messages_rows_ms"] == 40
    assert found["exposed_ms"] == 5 * 2
    assert found["exposed_allreduce_ms"] == 2


def record(name: str, times: dict[str, list[float]]) -> run.Record:
    """A record with these times of the variants, by round; each has sent 3 % more than the formula says."""
    return {
        "cell": name,
        "variants": [
            {
                "variant": variant,
                "formula_bytes": 400.0,
                "bytes": dict.fromkeys(LEGS, 103.0),
                "rounds": [figures(ranks_of(time)) for time in rounds],
            }
            for variant, rounds in times.items()
        ],
    }


def test_auto_is_compared_with_the_best_fixed_placement_round_by_round() -> None:
    made = benchmark()
    rounds = {"rows": [8.0, 8.0, 8.0], "pooled": [2.0, 4.0, 2.0], "whole": [4.0, 2.0, 4.0]}
    near = record("near", {**rounds, "auto": [2.0, 4.4, 2.2]})
    far = record("far", {**rounds, "auto": [2.3, 4.6, 2.3], "per-category": [1.0, 1.0, 1.0]})
    summarize(made, [near, far])
    found = made.summary
    assert found["near_auto_over_best_step"] == pytest.approx(1.1)
    assert found["far_auto_over_best_step"] == pytest.approx(1.15)
    assert found["near_rows_over_auto_messages"] == pytest.approx(8 / 2.2)
    assert found["auto_within_10_percent_of_best_step"] == 0.5
    assert found["auto_within_20_percent_of_best_sparse"] == 1
    assert found["far_per-category_step_ms"] == 40
    assert found["near_rows_mb"] == pytest.approx(412e-6)
    assert found["bytes_off_formula_most"] == pytest.approx(0.03)


def test_every_claim_is_about_a_figure_of_the_full_form() -> None:
    assert set(QUICK) < set(CELLS)
    made = benchmark()
    times = {variant: [1.0] for variant in (*FIXED, "auto")}
    summarize(made, [record(name, times) for name in CELLS])
    for claim in (*CLAIMS, *AIMS):
        assert verdicts(made.summary, [claim]), claim


def test_losses_of_variants_must_agree() -> None:
    def seen(share: float) -> list[dict[str, Any]]:
        return [{comm: {"losses": [0.25, share]} for comm in BOTH} for _ in range(2)]

    check_losses(seen(0.5), seen(0.500001))
    with pytest.raises(RuntimeError, match=r"losses of variants differ: \[0.5, 1.0\] and"):
        check_losses(seen(0.5), seen(0.51))
