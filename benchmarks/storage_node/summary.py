"""Figures of cells, and what must hold. Ratios are taken round by round."""

from collections.abc import Callable

from benchmarks import common
from benchmarks.claims import Claim
from benchmarks.serving.cells import Cell
from benchmarks.storage_node.shape import BLOCK_BYTES

BESIDE_BYTES = 32_000_000
"""What a node may need beyond 1.05 times its budget: the interpreter, stacks, and free pages of the heap."""
CLAIMS = (
    Claim("bytes_blocks_over_pooled", least=300),
    Claim("bytes_rows_over_pooled", least=12),
    Claim("pooling_node_rows_per_s", least=10e6),
    Claim("pooling_node_over_store", least=0.5),
    Claim("cold_reads_over_probe", least=0.9),
    Claim("cold_node_cpu_us_per_row", most=5),
    Claim("sample_p50_ms", most=1),
    Claim("fresh_p99_ms", most=500),
    Claim("memory_most_over_bound", most=1),
)
AIMS = (
    Claim("bytes_blocks_over_pooled", least=380),
    Claim("bytes_rows_over_pooled", least=13),
    Claim("pooling_node_rows_per_s", least=20e6),
    Claim("pooling_node_over_store", least=0.7),
    Claim("cold_reads_over_probe", least=0.95),
    Claim("cold_node_cpu_us_per_row", most=4),
    Claim("sample_p50_ms", most=0.3),
    Claim("fresh_p99_ms", most=250),
)


def summarize(benchmark: common.Benchmark, cells: list[Cell]) -> None:
    """Put every figure that follows from these cells into the summary."""

    def add(name: str, cells: list[Cell], figure: Callable[[Cell], float]) -> None:
        if cells:
            benchmark.summarize(name, common.Median.of(map(figure, cells)))

    sent = _of(cells, "bytes")
    for form in ("pooled", "rows", "blocks"):
        add(f"bytes_{form}", sent, lambda cell, form=form: cell[f"{form}_bytes"])
    for form in ("rows", "blocks"):
        add(
            f"bytes_{form}_over_pooled",
            sent,
            lambda cell, form=form: cell[f"{form}_bytes"] / cell["pooled_bytes"],
        )
    add(
        "bytes_commands_blocks_over_pooled",
        sent,
        lambda cell: cell["distinct_blocks"] / cell["pooled_commands"],
    )
    rounds = _rounds(_of(cells, "pooling"))
    for way in ("node", "store"):
        add(f"pooling_{way}_rows_per_s", [of[way] for of in rounds], rows_per_s)
    add(
        "pooling_node_over_store",
        rounds,
        lambda of: rows_per_s(of["node"]) / rows_per_s(of["store"]),
    )
    add(
        "pooling_node_busy",
        [of["node"] for of in rounds],
        lambda cell: cell["node_cpu_s"] / cell["wall_s"],
    )
    add(
        "pooling_host_busy",
        [of["node"] for of in rounds],
        lambda cell: cell["cpu_s"] / cell["wall_s"],
    )
    rounds = _rounds(_of(cells, "cold"))
    asked = [of["node"] for of in rounds]
    add(
        "cold_reads_over_probe",
        rounds,
        lambda of: reads_per_s(of["node"]) / rows_per_s(of["probe"]),
    )
    add("cold_reads_per_s", asked, reads_per_s)
    add("cold_probe_reads_per_s", [of["probe"] for of in rounds], rows_per_s)
    add("cold_node_cpu_us_per_row", asked, lambda cell: cell["node_cpu_s"] * 1e6 / cell["rows"])
    add(
        "cold_node_cpu_us_per_cold_row",
        asked,
        lambda cell: cell["node_cpu_s"] * 1e6 / cell["cold_rows"],
    )
    add("cold_share", asked, lambda cell: cell["cold_rows"] / cell["rows"])
    for figure in ("p50_ms", "p99_ms"):
        add(f"sample_{figure}", _of(cells, "sample"), lambda cell, figure=figure: cell[figure])
    for figure in ("p50_ms", "p99_ms", "max_ms"):
        add(f"fresh_{figure}", _of(cells, "fresh"), lambda cell, figure=figure: cell[figure])
    kept = _of(cells, "memory")
    add("memory_most_over_budget", kept, lambda cell: cell["most_bytes"] / cell["budget_bytes"])
    add("memory_most_over_bound", kept, most_over_bound)


def rows_per_s(cell: Cell) -> float:
    """Rows (of a probe: blocks) per second."""
    return cell["rows"] / cell["wall_s"]


def reads_per_s(cell: Cell) -> float:
    """Blocks per second that the node read from its disk."""
    return cell["read_bytes"] / BLOCK_BYTES / cell["wall_s"]


def most_over_bound(cell: Cell) -> float:
    """The highest resident memory over 1.05 times the budget and `BESIDE_BYTES`."""
    return cell["most_bytes"] / bound_bytes(cell["budget_bytes"])


def bound_bytes(budget: int) -> float:
    """Most resident memory that a node may have."""
    return 1.05 * budget + BESIDE_BYTES


def _of(cells: list[Cell], part: str) -> list[Cell]:
    return [cell for cell in cells if cell["part"] == part]


def _rounds(cells: list[Cell]) -> list[dict[str, Cell]]:
    """The cells of each complete round, by way."""
    found: dict[int, dict[str, Cell]] = {}
    for cell in cells:
        found.setdefault(cell["round"], {})[cell["way"]] = cell
    most = max(map(len, found.values()), default=0)
    return [found[number] for number in sorted(found) if len(found[number]) == most]
