"""Figures of cells, and whether they are as they must be.

Ratios are taken round by round, because a round moves all variants of it alike.
"""

from benchmarks import common
from benchmarks.claims import Claim
from benchmarks.serving.cells import Cell
from benchmarks.serving.peers import OURS
from benchmarks.serving.split import PROBE
from benchmarks.serving.stages import busy, stages_ms

Rounds = dict[int, Cell]
"""Cells of one variant, by round."""


CLAIMS = (
    Claim("*_sequential_*_over_all", most=1.38),
    Claim("*_saturated_shm_per_cpu_s_over_all", least=0.94),
    Claim("*_saturated_tcp_per_cpu_s_over_all_and_probe", least=0.94),
    Claim("[SML]*_saturated_shm_outside_forward_gain", least=15),
    Claim("XL_saturated_shm_outside_forward_gain", least=15),
    Claim("peers_rate_over_fastapi", least=2),
    Claim("calm_rowmill_p99_ms", most=10),
    Claim("large_*_4096_messages_p50_ms", most=3),
    Claim("large_*_4096_messages_p99_ms", most=6),
    Claim("overload_*_goodput_over_capacity", least=0.9),
    Claim("overload_*_refused_p99_ms", most=50),
)
AIMS = (Claim("*_sequential_shm_over_all", most=1.1), Claim("peers_rate_over_fastapi", least=4))


def summarize(benchmark: common.Benchmark, cells: list[Cell]) -> None:
    """Put every figure that follows from these cells into the summary."""
    models = dict.fromkeys(cell["model"] for cell in cells if cell["part"] == "sequential")
    for model in models:
        of = [cell for cell in cells if cell.get("model") == model]
        loads = {load: _variants(of, load) for load in ("sequential", "half", "saturated")}
        probes = loads["saturated"].pop(PROBE, {})
        _sequential(benchmark, model, loads["sequential"])
        for load, ways in loads.items():
            stem = f"{model}_{load}"
            _stages(benchmark, stem, ways)
            if load != "sequential" and ways:
                _loaded(benchmark, stem, ways)
                _per_cpu(benchmark, stem, ways, probes)
                _outside(benchmark, stem, ways)
    for senders in ("peers", "crowd"):
        _peers(benchmark, senders, _variants(cells, senders))
    _calm(benchmark, _variants(cells, "calm"))
    _large(benchmark, _variants(cells, "large"))
    _overload(benchmark, _variants(cells, "capacity"), _variants(cells, "overload"))
    _stalls(benchmark, _variants(cells, "stalls"))


def in_time(cell: Cell) -> int:
    """Requests answered in time."""
    return cell["report"]["counts"]["in_time"]


def cpu_s(cell: Cell) -> float:
    """CPU time of all workers."""
    return sum(cell.get(f"{role}_cpu_s", 0.0) for role in ("all", "cpu", "dense"))


def outside_s(cell: Cell) -> float:
    """CPU time per answer, outside of the dense program, of the process that runs it."""
    role = _dense_role(cell)
    return (cell[f"{role}_cpu_s"] - cell[f"{role}_program_cpu_s"]) / in_time(cell)


def program_s(cell: Cell) -> float:
    """CPU time of the dense program per answer."""
    return cell[f"{_dense_role(cell)}_program_cpu_s"] / in_time(cell)


def per_cpu_s(cell: Cell, probe: Cell | None = None) -> float:
    """Answers in time per CPU second; the cost of a request's bytes on a plain socket is added where a probe is given."""
    extra = 0.0 if probe is None else in_time(cell) * probe["cpu_s"] / probe["round_trips"]
    return in_time(cell) / (cpu_s(cell) + extra)


def _dense_role(cell: Cell) -> str:
    return "all" if "all_cpu_s" in cell else "dense"


def _variants(cells: list[Cell], part: str) -> dict[str, Rounds]:
    found: dict[str, Rounds] = {}
    for cell in cells:
        if cell["part"] == part:
            found.setdefault(cell["way"], {})[cell["round"]] = cell
    return found


def _ratios(benchmark: common.Benchmark, name: str, ours: list[float], base: list[float]) -> None:
    ratios = [our / their for our, their in zip(ours, base, strict=True)]
    benchmark.summarize(name, common.Median.of(ratios))


def _goodput(cell: Cell) -> float:
    return cell["report"]["goodput_per_s"]


def _latency(cell: Cell, quantile: str) -> float:
    return cell["report"]["latency_ms"][quantile]


def _base(rounds: Rounds, ways: dict[str, Rounds]) -> list[Cell]:
    """The cells of one process in the same rounds."""
    return [ways["all"][number] for number in rounds]


def _sequential(benchmark: common.Benchmark, model: str, ways: dict[str, Rounds]) -> None:
    for way, rounds in ways.items():
        stem = f"{model}_sequential_{way}"
        p50 = [_latency(cell, "p50") for cell in rounds.values()]
        benchmark.summarize(f"{stem}_p50_ms", common.Median.of(p50))
        p99 = [_latency(cell, "p99") for cell in rounds.values()]
        benchmark.summarize(f"{stem}_p99_ms", common.Median.of(p99))
        if way != "all":
            base = [_latency(cell, "p50") for cell in _base(rounds, ways)]
            _ratios(benchmark, f"{stem}_over_all", p50, base)


def _loaded(benchmark: common.Benchmark, stem: str, ways: dict[str, Rounds]) -> None:
    for way, rounds in ways.items():
        for quantile in ("p50", "p99"):
            figure = common.Median.of(_latency(cell, quantile) for cell in rounds.values())
            benchmark.summarize(f"{stem}_{way}_{quantile}_ms", figure)
        goodput = [_goodput(cell) for cell in rounds.values()]
        benchmark.summarize(f"{stem}_{way}_goodput_per_s", common.Median.of(goodput))
        if way != "all":
            alone = [_goodput(cell) for cell in _base(rounds, ways)]
            _ratios(benchmark, f"{stem}_{way}_goodput_over_all", goodput, alone)


def _stages(benchmark: common.Benchmark, stem: str, ways: dict[str, Rounds]) -> None:
    for way, rounds in ways.items():
        stages = [stages_ms(cell) for cell in rounds.values()]
        # A stage without requests is in no cell of a way.
        for stage in stages[0]:
            figure = common.Median.of(of.get(stage, 0.0) for of in stages)
            benchmark.summarize(f"{stem}_{way}_{stage}_ms", figure)
        shares = [busy(cell, cpu_s(cell)) for cell in rounds.values()]
        for share in shares[0]:
            figure = common.Median.of(of[share] for of in shares)
            benchmark.summarize(f"{stem}_{way}_busy_{share}", figure)


def _per_cpu(
    benchmark: common.Benchmark, stem: str, ways: dict[str, Rounds], probes: Rounds
) -> None:
    base = ways["all"]
    cost = [1e3 * probe["cpu_s"] / probe["round_trips"] for probe in probes.values()]
    benchmark.summarize(f"{stem}_probe_cpu_ms", common.Median.of(cost))
    for way, rounds in ways.items():
        rates = [per_cpu_s(cell) for cell in rounds.values()]
        benchmark.summarize(f"{stem}_{way}_per_cpu_s", common.Median.of(rates))
        if way == "all":
            continue
        alone = [per_cpu_s(cell) for cell in _base(rounds, ways)]
        _ratios(benchmark, f"{stem}_{way}_per_cpu_s_over_all", rates, alone)
        with_probe = [per_cpu_s(base[number], probes[number]) for number in rounds]
        name = f"{stem}_{way}_per_cpu_s_over_all_and_probe"
        if way != "shm":
            _ratios(benchmark, name, rates, with_probe)


def _outside(benchmark: common.Benchmark, stem: str, ways: dict[str, Rounds]) -> None:
    for way, rounds in ways.items():
        outside = [outside_s(cell) for cell in rounds.values()]
        figure = common.Median.of(1e3 * seconds for seconds in outside)
        benchmark.summarize(f"{stem}_{way}_outside_forward_ms", figure)
        program = common.Median.of(1e3 * program_s(cell) for cell in rounds.values())
        benchmark.summarize(f"{stem}_{way}_program_ms", program)
        if way != "all":
            whole = [outside_s(cell) for cell in _base(rounds, ways)]
            _ratios(benchmark, f"{stem}_{way}_outside_forward_gain", whole, outside)


def _peers(benchmark: common.Benchmark, stem: str, ways: dict[str, Rounds]) -> None:
    rates = {way: [_goodput(cell) for cell in rounds.values()] for way, rounds in ways.items()}
    medians = {way: common.Median.of(of) for way, of in rates.items()}
    for way, figure in medians.items():
        benchmark.summarize(f"{stem}_{way}_per_s", figure)
    if ways:
        best = max((way for way in OURS if way in medians), key=lambda way: medians[way].value)
        fastapi, mosec = (
            [way for way in ways if way.startswith(of)] for of in ("fastapi", "mosec")
        )
        plain = [way for way in fastapi if not way.endswith("onednn")]
        for name, of in (("fastapi", fastapi), ("plain_fastapi", plain), ("mosec", mosec)):
            if of:
                theirs = max(of, key=lambda way: medians[way].value)
                _ratios(benchmark, f"{stem}_rate_over_{name}", rates[best], rates[theirs])


def _calm(benchmark: common.Benchmark, calm: dict[str, Rounds]) -> None:
    for way, rounds in calm.items():
        for quantile in ("p50", "p99"):
            figure = common.Median.of(_latency(cell, quantile) for cell in rounds.values())
            benchmark.summarize(f"calm_{way}_{quantile}_ms", figure)


def _large(benchmark: common.Benchmark, ways: dict[str, Rounds]) -> None:
    found: dict[tuple[str, int, str], list[Cell]] = {}
    for way, rounds in ways.items():
        for cell in rounds.values():
            for line in cell["messages"]:
                found.setdefault((line["transport"], line["kib"], way), []).append(line)
    for (transport, kib, way), lines in found.items():
        for quantile in ("p50", "p99"):
            figure = common.Median.of(line[f"{quantile}_us"] / 1e3 for line in lines)
            benchmark.summarize(f"large_{transport}_{kib}_{way}_{quantile}_ms", figure)
        if way == "copied":
            uncopied = found[transport, kib, "messages"]
            ours, base = ([line["p50_us"] for line in of] for of in (lines, uncopied))
            _ratios(benchmark, f"large_{transport}_{kib}_copied_over_messages", ours, base)


def _stalls(benchmark: common.Benchmark, ways: dict[str, Rounds]) -> None:
    for way, rounds in ways.items():
        found = [cell["stalls"] for cell in rounds.values()]
        percent = common.Median.of(100 * of["stalled_s"] / of["seconds"] for of in found)
        benchmark.summarize(f"stalls_{way}_percent", percent)
        per_s = common.Median.of(of["stalls"] / of["seconds"] for of in found)
        benchmark.summarize(f"stalls_{way}_per_s", per_s)


def _overload(
    benchmark: common.Benchmark, capacity: dict[str, Rounds], ways: dict[str, Rounds]
) -> None:
    for way, rounds in ways.items():
        calm = [_goodput(cell) for cell in capacity[way].values()]
        benchmark.summarize(f"overload_{way}_capacity_per_s", common.Median.of(calm))
        goodput = [_goodput(cell) for cell in rounds.values()]
        _ratios(benchmark, f"overload_{way}_goodput_over_capacity", goodput, calm)
        none = {"p99": 0.0}
        refused = [cell["report"].get("refused_ms", none)["p99"] for cell in rounds.values()]
        benchmark.summarize(f"overload_{way}_refused_p99_ms", common.Median.of(refused))
        lost = [
            cell["report"]["counts"]["failed"] + cell["report"]["counts"]["not_sent"]
            for cell in rounds.values()
        ]
        benchmark.summarize(f"overload_{way}_failed_or_not_sent", common.Median.of(lost))
