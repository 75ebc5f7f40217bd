"""The arithmetic of benchmarks/serving: requests, CPU accounts, ratios, verdicts, and cells that are found again.

What could break: ratios of medians in place of medians of ratios, CPU time of the wrong process or of the dense program itself,
a probe that is added to the wrong side, claims that match no figure, and cells of other settings. How fast anything is, is not
looked at; no server is started.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import common
from benchmarks.claims import Claim, verdicts
from benchmarks.serving import cells as kept
from benchmarks.serving.bundles import names, weights
from benchmarks.serving.cells import Cells
from benchmarks.serving.floor import floor, simulate
from benchmarks.serving.large import parse
from benchmarks.serving.load import program_cpu_s
from benchmarks.serving.overload import padded
from benchmarks.serving.part import rotated
from benchmarks.serving.passes import bytes_available, passes
from benchmarks.serving.requests import requests
from benchmarks.serving.shapes import CLICKS, PADDED, SPLIT, Shape
from benchmarks.serving.socket_probe import probe
from benchmarks.serving.stages import busy, stages_ms
from benchmarks.serving.summary import AIMS, CLAIMS, summarize
from benchmarks.serving.worker import cpu_s, samples


def benchmark() -> common.Benchmark:
    return common.Benchmark(common.Settings(True, 1, None, ""))


def report(
    p50: float, *, in_time: int = 100, seconds: float = 1.0, **counts: int
) -> dict[str, Any]:
    return {
        "latency_ms": {"p50": p50, "p99": 2 * p50},
        "refused_ms": {"p99": 1.5},
        "goodput_per_s": in_time / seconds,
        "answered_per_s": in_time / seconds,
        "seconds": seconds,
        "counts": {"in_time": in_time, "failed": 0, "not_sent": 0, **counts},
    }


def cell(part: str, way: str, number: int, **fields: Any) -> dict[str, Any]:
    return {"part": part, "model": "L", "way": way, "round": number, "cores": 2, **fields}


def test_ways_that_do_not_fit_into_memory_together_are_measured_in_turns() -> None:
    ways, gib = ["all", "shm", "tcp", "netns"], 1 << 30
    assert passes(ways, gib, 15 * gib) == [ways]
    assert passes(ways, 5 * gib, 33 * gib) == [["all", "shm", "tcp"], ["all", "netns"]]
    assert passes(ways, 5 * gib, 16 * gib) == [["all", way] for way in ways[1:]]
    with pytest.raises(
        MemoryError, match=r"14.4 GiB of available memory are needed, there are 9.0"
    ):
        passes(ways, 5 * gib, 9 * gib)
    assert gib // 8 < bytes_available() < 1 << 50


def test_a_way_is_compared_with_the_base_of_its_own_rounds() -> None:
    made = benchmark()
    found = [
        cell("sequential", way, number, report=report(p50))
        for number, base in enumerate([10.0, 20.0])
        for way, p50 in (("all", base), (("shm", "tcp")[number], 2 * base))
    ]
    summarize(made, found)
    assert (
        made.summary["L_sequential_shm_over_all"] == made.summary["L_sequential_tcp_over_all"] == 2
    )


def test_the_ratio_of_latency_is_taken_round_by_round() -> None:
    made = benchmark()
    found = [
        cell("sequential", way, number, report=report(p50))
        for number, round_ in enumerate([(10.0, 11.0), (20.0, 20.0), (40.0, 52.0)])
        for way, p50 in zip(("all", "shm"), round_, strict=True)
    ]
    summarize(made, found)
    assert made.summary["L_sequential_shm_over_all"] == pytest.approx(1.1)
    assert made.ranges["L_sequential_shm_over_all"] == {"rounds": 3, "min": 1.0, "max": 1.3}
    assert made.summary["L_sequential_all_p50_ms"] == 20


def saturated() -> list[dict[str, Any]]:
    alone = [cell("sequential", way, 0, report=report(1.0)) for way in ("all", "shm", "tcp")]
    halves = {"cpu_cpu_s": 6.0, "dense_cpu_s": 4.5, "dense_program_cpu_s": 4.0}
    return [
        *alone,
        cell("saturated", "all", 0, report=report(9.0), all_cpu_s=10.0, all_program_cpu_s=4.0),
        cell("saturated", "shm", 0, report=report(9.0), **halves),
        cell("saturated", "tcp", 0, report=report(9.0, in_time=50), **halves),
        cell("saturated", "probe", 0, cpu_s=3.0, round_trips=30),
    ]


def test_cpu_time_of_all_workers_and_of_the_probe() -> None:
    made = benchmark()
    summarize(made, saturated())
    found = made.summary
    assert found["L_saturated_all_per_cpu_s"] == 10
    assert found["L_saturated_shm_per_cpu_s_over_all"] == pytest.approx(10 / 10.5)
    assert found["L_saturated_tcp_per_cpu_s_over_all"] == pytest.approx(5 / 10.5)
    # A request costs `all` 0.1 s, and 0.1 s of sockets beside it.
    assert found["L_saturated_probe_cpu_ms"] == pytest.approx(100)
    assert found["L_saturated_tcp_per_cpu_s_over_all_and_probe"] == pytest.approx(50 / 10.5 / 5)
    assert "L_saturated_shm_per_cpu_s_over_all_and_probe" not in found


def test_cpu_time_outside_forward_is_of_the_process_that_runs_it() -> None:
    made = benchmark()
    summarize(made, saturated())
    assert made.summary["L_saturated_all_outside_forward_ms"] == pytest.approx(60)
    assert made.summary["L_saturated_shm_outside_forward_ms"] == pytest.approx(5)
    assert made.summary["L_saturated_shm_outside_forward_gain"] == pytest.approx(12)
    assert made.summary["L_saturated_shm_program_ms"] == pytest.approx(40)


def test_stages_of_both_halves_and_what_is_busy() -> None:
    def times(**stages: float) -> dict[str, float]:
        name = 'rowmill_serve_stage_duration_seconds_%s{model="L",stage="%s"}'
        sums = {name % ("sum", stage): 1e-3 * ms * 100 for stage, ms in stages.items()}
        return sums | {name % ("count", stage): 100.0 for stage in stages}

    halves = {
        "cpu_metrics": times(cpu_queue=0.5, cpu=6.0, crossing=5.0),
        "dense_metrics": times(dense_queue=1.0, dense=3.0) | {"rowmill_serve_requests_total": 7.0},
    }
    found = cell("half", "shm", 0, report=report(9.0), **halves)
    assert stages_ms(found) == pytest.approx(
        {"cpu_queue": 0.5, "cpu": 6.0, "crossing": 1.0, "dense_queue": 1.0, "dense": 3.0}
    )
    # 100 requests in a second on 2 cores.
    assert busy(found, 1.2) == pytest.approx({"lookup": 0.3, "dense": 0.3, "cores": 0.6})


def test_the_best_form_of_each_server_is_compared() -> None:
    made = benchmark()
    rates = {
        "rowmill": 400,
        "rowmill_2": 350,
        "fastapi_1x1": 50,
        "fastapi_2x1_onednn": 100,
    }
    rates |= {"mosec_2x1": 200}
    found = [
        {"part": "peers", "way": way, "round": 0, "report": report(1.0, in_time=rate)}
        for way, rate in rates.items()
    ]
    found.append({"part": "calm", "way": "rowmill", "round": 0, "report": report(4.0)})
    found += [
        {"part": "crowd", "way": way, "round": 0, "report": report(1.0, in_time=rate)}
        for way, rate in (("rowmill", 600), ("fastapi_1x1", 40), ("fastapi_2x1", 200))
    ]
    summarize(made, found)
    assert made.summary["peers_rate_over_fastapi"] == 4
    assert made.summary["peers_rate_over_plain_fastapi"] == 8
    assert made.summary["peers_rate_over_mosec"] == 2
    assert made.summary["calm_rowmill_p99_ms"] == 8
    assert made.summary["crowd_rate_over_fastapi"] == 3


def test_an_ideal_server_answers_on_the_core_that_is_free_first() -> None:
    steady = [(at / 10, at / 10 + 0.1) for at in range(100)]
    # A core that is stopped for a second, and works at half speed afterwards.
    stopped = [(0.0, 1.0), *((at / 5, at / 5 + 0.2) for at in range(5, 50))]
    assert simulate([steady, stopped], [0.0, 0.0, 0.0, 0.0]) == pytest.approx([0.1, 1.0, 0.2, 0.3])
    assert simulate([stopped], [2.0, 2.1]) == pytest.approx([0.2, 0.3])
    # The last unit stands for all later ones.
    assert simulate([steady], [20.0]) == pytest.approx([0.1])


def test_the_floor_is_measured_on_all_cores() -> None:
    found = floor(1e-3, 0.5, 0.5, seed=1)
    latency = found["report"]["latency_ms"]
    assert found["capacity_per_s"] > 0
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"]
    assert found["report"]["counts"]["in_time"] > 0


def test_overload_is_compared_with_the_capacity_of_its_round() -> None:
    made = benchmark()
    summarize(
        made,
        [
            cell("capacity", "all", 0, report=report(20.0, in_time=50)),
            cell("overload", "all", 0, report=report(20.0, in_time=470, seconds=10.0, not_sent=3)),
        ],
    )
    assert made.summary["overload_all_goodput_over_capacity"] == pytest.approx(0.94)
    assert made.summary["overload_all_refused_p99_ms"] == 1.5
    assert made.summary["overload_all_failed_or_not_sent"] == 3


def test_the_table_of_round_trips() -> None:
    text = "9 round trips each\ntransport KiB\ntcp 4096 1500.0 2500.5\nshm 4096 500.0 900.0\n"
    copied = text.replace("500.0 900.0", "750.0 950.0")
    made = benchmark()
    found = [
        {"part": "large", "way": way, "round": 0, "messages": parse(table)}
        for way, table in (("messages", text), ("copied", copied))
    ]
    summarize(made, found)
    assert made.summary["large_tcp_4096_messages_p99_ms"] == pytest.approx(2.5005)
    assert made.summary["large_shm_4096_copied_over_messages"] == pytest.approx(1.5)


def test_the_share_of_time_in_stalls() -> None:
    made = benchmark()
    line = {"seconds": 2.0, "stalls": 100, "stalled_s": 0.5}
    summarize(made, [{"part": "stalls", "way": "4GiB", "round": 0, "stalls": line}])
    assert made.summary["stalls_4GiB_percent"] == 25.0
    assert made.summary["stalls_4GiB_per_s"] == 50.0


def test_verdicts_name_each_figure_of_a_claim() -> None:
    summary = {
        "L_sequential_shm_over_all": 1.2,
        "L_sequential_tcp_over_all": 1.4,
        "calm_rowmill_p50_ms": 1.0,
    }
    claims = (Claim("*_sequential_*_over_all", most=1.38), Claim("calm_*_p99_ms", most=10))
    assert verdicts(summary, claims) == [
        ("L_sequential_shm_over_all", 1.2, True),
        ("L_sequential_tcp_over_all", 1.4, False),
    ]


def test_each_claim_is_about_a_figure_that_exists() -> None:
    made = benchmark()
    servers = ("rowmill", "rowmill_2", "rowmill_2x1", "fastapi_1x1", "mosec_2x1")
    reported = {"round": 0, "report": report(1.0)}
    found = [
        *({**one, "model": model} for model in ("S", "XL") for one in saturated()),
        *({"part": "peers", "way": way, **reported} for way in servers),
        {"part": "calm", "way": "rowmill", **reported},
        {"part": "large", "way": "messages", "round": 0, "messages": parse("\n\nshm 4096 1.0 2.0")},
        *(cell(part, "shm", 0, report=report(1.0)) for part in ("capacity", "overload")),
    ]
    summarize(made, found)
    for claim in (*CLAIMS, *AIMS):
        assert verdicts(made.summary, [claim]), claim.figures


def test_the_cpu_clock_of_a_process() -> None:
    before = time.process_time()
    measured = cpu_s(os.getpid())
    assert before <= measured <= time.process_time()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as idle:
        started = cpu_s(idle.pid)
        assert 0 <= started < 60
        assert cpu_s(idle.pid) >= started
        idle.kill()


def test_samples_of_metrics_and_the_cpu_time_of_dense_halves() -> None:
    text = (
        "# TYPE rowmill_serve_program_cpu_seconds counter\n"
        'rowmill_serve_program_cpu_seconds_total{model="a b",half="dense"} 1.5\n'
        'rowmill_serve_program_cpu_seconds_total{model="a b",half="cpu"} 2\n'
        "# EOF\n"
    )
    assert program_cpu_s(samples(text)) == 1.5


def test_requests_are_distinct_repeatable_and_skewed() -> None:
    shape = Shape("small", 64, 4, 3, (8,))
    first, second = requests(shape, 1000, count=2, seed=3)
    again, _ = requests(shape, 1000, count=2, seed=3)
    assert torch.equal(first["ids"], again["ids"])
    assert not torch.equal(first["ids"], second["ids"])
    assert first["ids"].shape == (64, 12)
    assert int(first["ids"].min()) >= 0
    assert int(first["ids"].max()) < 1000
    counts = first["ids"][:, :3].unique(return_counts=True)[1]
    assert counts.max() > 10 * counts.float().mean() / 2, "Zipf: few ids are popular"
    (clicks,) = requests(CLICKS, 1000, count=1, seed=3)
    assert {name: tuple(value.shape) for name, value in clicks.items()} == {
        "dense": (64, 13),
        "ids": (64, 26),
    }


def test_what_crosses_is_what_the_issue_says() -> None:
    mib = {shape.name: round(shape.pooled_bytes / 2**20, 1) for shape in SPLIT}
    assert mib == {"XS": 0.5, "S": 6.8, "M": 3.9, "L": 3.7, "XL": 9.0}


def test_rows_differ_by_table_and_repeat() -> None:
    assert torch.equal(weights(1, 5, 7), weights(1, 5, 7))
    assert not torch.equal(weights(1, 5, 7), weights(2, 5, 7))
    assert names(2) == ["C0", "C1"]


def test_rounds_begin_with_the_next_variant() -> None:
    assert [rotated(["a", "b", "c"], number)[0] for number in range(4)] == ["a", "b", "c", "a"]


def test_the_probe_counts_both_ends() -> None:
    found = probe(1 << 20, 100, seconds=0.05)
    assert found["round_trips"] > 0
    assert found["cpu_s"] > 0


def test_the_padded_model_is_fitted_once(tmp_path: Path) -> None:
    (tmp_path / "padded-layers").write_text("7")
    shape = padded(tmp_path)
    assert shape.repeats == 7
    assert shape.layers == PADDED.layers


def test_cells_are_found_again_with_the_same_settings_and_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = common.Source("a", False, "b", "c")
    monkeypatch.setattr(kept.Source, "now", lambda: source)
    made = Cells(tmp_path, {"rows": 5})
    assert made.measure(lambda: {"value": 1}, part="x", round=0) == {
        "part": "x",
        "round": 0,
        "value": 1,
    }
    again = Cells(tmp_path, {"rows": 5})
    assert again.measure(lambda: {"value": 2}, part="x", round=0)["value"] == 1
    assert again.measure(lambda: {"value": 3}, part="x", round=1)["value"] == 3
    other = Cells(tmp_path, {"rows": 6})
    assert other.measure(lambda: {"value": 4}, part="x", round=0)["value"] == 4
    source = common.Source("a", True, "b", "c")
    dirty = Cells(tmp_path, {"rows": 6})
    assert dirty.measure(lambda: {"value": 5}, part="x", round=0)["value"] == 5
