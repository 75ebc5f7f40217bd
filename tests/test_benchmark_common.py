"""Every figure we publish passes through benchmarks/common.py: a wrong median or a round that
always starts with the same variant would bias all of them.

The work measured here is real arithmetic, but no test looks at a clock: only at the order of the
calls, at the arithmetic on given samples, and at the shape of what is written.
"""

import json
from pathlib import Path

import pytest

from benchmarks import common


def settings(out: Path | None = None) -> common.Settings:
    return common.Settings(quick=True, seed=1, out=out, command="python run.py --quick")


def sample(units: int, wall_s: float, cpu_s: float = 1.0) -> common.Sample:
    return common.Sample("x", 0, units, wall_s, cpu_s, 0, 0, 0)


def test_rounds_rotate_which_variant_goes_first_and_warm_up_is_not_kept() -> None:
    order: list[str] = []

    def work(name: str) -> int:
        order.append(name)
        return len(order)

    bench = common.Benchmark(settings())
    samples = bench.compare({"a": lambda: work("a"), "b": lambda: work("b")}, rounds=2, warm_up=1)
    assert order == ["b", "a", "a", "b", "b", "a"]
    assert [each.units for each in samples["a"]] == [3, 6]
    assert [each.round for each in samples["b"]] == [0, 1]
    assert [cell["variant"] for cell in bench.cells] == ["a", "b", "b", "a"]


def test_median_and_spread() -> None:
    assert common.Median.of([4.0, 1.0, 2.0]) == common.Median(2.0, 1.5)
    assert common.Median.of([0.0]) == common.Median(0.0, 0.0)
    assert common.units_per_s([sample(10, 2.0), sample(30, 2.0)]).value == 10.0
    assert common.cpu_us_per_unit([sample(4, 1.0, cpu_s=2.0)]).value == 500_000.0


def test_ratio_pairs_rounds() -> None:
    # The second round ran on a host half as fast for both: the ratio must not notice.
    ours = [sample(80, 1.0), sample(40, 1.0)]
    theirs = [sample(100, 1.0), sample(50, 1.0)]
    assert common.ratio(ours, theirs) == common.Median(0.8, 0.0)
    with pytest.raises(ValueError, match="shorter"):
        common.ratio(ours, theirs[:1])


def test_result_holds_what_every_benchmark_promises(tmp_path: Path) -> None:
    out = tmp_path / "results" / "question.json"
    bench = common.Benchmark(settings(out))
    bench.compare({"sum": lambda: sum(range(1000)) and 1000}, rounds=1, warm_up=0)
    bench.summarize("rate", common.Median(2.0, 0.5))
    bench.write()
    result = json.loads(out.read_text())
    assert set(result) == {"summary", "cells", "machine", "command"}
    assert result["summary"] == {"rate": 2.0, "rate_spread": 0.5}
    assert result["cells"][0]["units"] == 1000
    assert result["machine"]["cores"] >= 1
    assert result["command"] == "python run.py --quick"


def test_a_program_that_cannot_be_built_says_what_it_needs() -> None:
    with pytest.raises(SystemExit, match="failed, as it says above; it needs libnonesuch-dev"):
        common.bench_program(["nonesuch"])
