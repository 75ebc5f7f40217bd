"""The arithmetic of benchmarks/storage_node: requests, distinct rows and blocks, counted bytes, stamps of changes, ratios.

What could break: blocks of two tables that count as one, a relay that loses bytes, an answer that counts as fresh while some
of its rows are old, ratios of medians in place of medians of ratios, and claims that match no figure. How fast anything is, is
not looked at; no node is started.
"""

import fnmatch
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import common
from benchmarks.storage_node import run
from benchmarks.storage_node.changes import (
    BATCH_ROWS,
    BATCHES,
    DIM,
    ROWS,
    changed_at,
    ids_of,
    stamped,
)
from benchmarks.storage_node.node import Node, most_resident_bytes
from benchmarks.storage_node.relay import relayed
from benchmarks.storage_node.shape import (
    LOOKUPS,
    TABLES,
    Lookup,
    distinct_blocks,
    distinct_rows,
    draw,
)
from benchmarks.storage_node.stores import FIRST_LONG_ID, row_bytes
from benchmarks.storage_node.summary import AIMS, CLAIMS, bound_bytes, summarize


def summary(cells: list[dict[str, Any]]) -> dict[str, float]:
    made = common.Benchmark(common.Settings(True, 1, None, ""))
    summarize(made, cells)
    return made.summary


def test_requests_are_of_rm1_and_repeat_with_their_seed() -> None:
    first, again = (draw(np.random.default_rng(3), rows=1000, bags=5) for _ in range(2))
    assert np.array_equal(first.ids, again.ids)
    assert first.rows == TABLES * LOOKUPS * 5 == first.offsets[-1]
    assert len(first.offsets) == TABLES * 5 + 1
    assert set(np.diff(first.offsets)) == {LOOKUPS}
    assert 0 <= first.ids.min() < first.ids.max() < 1000
    # A host sends 4 bytes of ids that all fit.
    long = draw(np.random.default_rng(3), rows=1000, bags=5, first=FIRST_LONG_ID)
    assert np.array_equal(long.ids - FIRST_LONG_ID, first.ids)
    assert long.ids.min() >= 1 << 32


def test_distinct_rows_and_blocks_are_counted_by_table() -> None:
    # Row 31 is in the first block of 32 rows, row 32 in the second; all tables ask for the same ids.
    ids = np.tile(np.array([0, 31, 31, 32]), TABLES)
    lookup = Lookup(ids, np.arange(0, len(ids) + 1, 4), 1)
    assert [list(of_table) for of_table in distinct_rows(lookup)] == [[0, 31, 32]] * TABLES
    blocks = distinct_blocks(lookup, rows=33)
    assert list(blocks) == list(range(2 * TABLES)), "33 rows take 2 blocks"
    moved = Lookup(ids + FIRST_LONG_ID, lookup.offsets, 1)
    assert np.array_equal(distinct_blocks(moved, rows=33, first=FIRST_LONG_ID), blocks)


def test_uniform_requests_touch_the_expected_share_of_blocks() -> None:
    rows = 1_000_000
    lookup = draw(np.random.default_rng(1), rows=rows, bags=64)
    blocks = distinct_blocks(lookup, rows=rows)
    assert blocks.max() < row_bytes(rows) // 4096
    per_table = rows // 32
    expected = TABLES * per_table * (1 - (1 - 1 / per_table) ** (64 * LOOKUPS))
    assert len(blocks) == pytest.approx(expected, rel=0.01)


def test_a_relay_counts_both_directions() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                while data := connection.recv(1 << 16):
                    connection.sendall(data + data)

        thread = threading.Thread(target=answer)
        thread.start()
        with relayed(server.getsockname()[1]) as relay:
            assert relay.sent == 0
            with socket.create_connection(("127.0.0.1", relay.port), timeout=10) as host:
                host.sendall(b"x" * 1000)
                left = 2000
                while left:
                    left -= len(host.recv(left))
                assert relay.sent == 3000
        thread.join(10)
        assert not thread.is_alive(), "the end of one side is told to the other"


def test_an_answer_is_fresh_when_every_row_of_a_batch_is_new() -> None:
    for seconds in (0.0, 0.25, 17.125, 59.99):
        rows = np.tile(stamped(seconds), (BATCH_ROWS, 1))
        assert rows.shape == (BATCH_ROWS, DIM)
        assert changed_at(rows.sum(0)) == pytest.approx(seconds, abs=1e-5)
        rows[0] = 0
        assert changed_at(rows.sum(0)) is None
    assert changed_at(np.zeros(DIM, np.float32)) is None
    every = np.concatenate([ids_of(batch) for batch in range(BATCHES)])
    assert np.array_equal(np.sort(every), np.arange(ROWS)), "each row changes at most once"


def test_a_url_leads_through_a_relay() -> None:
    process: Any = None
    node = Node(process, "nvme+tcp://127.0.0.1:4420/nqn.2014-08.org:uuid:4420", "127.0.0.1:1")
    assert node.port == 4420
    assert node.through(99) == "nvme+tcp://127.0.0.1:99/nqn.2014-08.org:uuid:4420"


def test_the_highest_resident_memory_is_read_from_a_status() -> None:
    assert most_resident_bytes("Name:\tx\nVmHWM:\t    1024 kB\nVmRSS:\t 7 kB\n") == 1 << 20
    assert most_resident_bytes(Path("/proc/self/status").read_text()) > 1 << 20
    with pytest.raises(ValueError, match="no VmHWM"):
        most_resident_bytes("Name:\tx\n")


def test_ratios_are_taken_round_by_round() -> None:
    cells = [
        {"part": "pooling", "way": way, "round": number, "rows": rows, "wall_s": 1.0}
        | {"cpu_s": 0.25, "node_cpu_s": 0.5}
        for number, base in enumerate((100, 300, 200))
        for way, rows in (("store", base), ("node", base // 2))
    ]
    # A round that was interrupted does not count.
    cells.append({**cells[0], "round": 3, "rows": 1})
    found = summary(cells)
    assert found["pooling_node_over_store"] == 0.5
    assert found["pooling_node_rows_per_s"] == 100
    assert (found["pooling_node_busy"], found["pooling_host_busy"]) == (0.5, 0.25)


def test_cold_reads_are_compared_with_the_probe_of_their_round() -> None:
    node = {"part": "cold", "way": "node", "round": 0, "rows": 4000, "wall_s": 2.0}
    # 3,000 rows were cold, some of them in the same blocks.
    node |= {"cold_rows": 3000.0, "read_bytes": 2500 * 4096, "node_cpu_s": 0.012}
    probe = {"part": "cold", "way": "probe", "round": 0, "rows": 5000, "wall_s": 2.0}
    found = summary([node, probe])
    assert found["cold_reads_over_probe"] == 0.5
    assert found["cold_reads_per_s"] == 1250
    assert found["cold_node_cpu_us_per_row"] == pytest.approx(3)
    assert found["cold_node_cpu_us_per_cold_row"] == pytest.approx(4)
    assert found["cold_share"] == 0.75


def test_bytes_lags_and_memory_are_summarized() -> None:
    found = summary(
        [
            {"part": "bytes", "pooled_bytes": 10, "rows_bytes": 130, "blocks_bytes": 4000}
            | {"pooled_commands": 10, "distinct_blocks": 40},
            {"part": "sample", "p50_ms": 0.5, "p99_ms": 2.0},
            {"part": "fresh", "p50_ms": 100.0, "p99_ms": 200.0, "max_ms": 300.0},
            {"part": "memory", "most_bytes": 137_000_000, "budget_bytes": 100_000_000},
        ]
    )
    assert found["bytes_blocks_over_pooled"] == 400
    assert found["bytes_rows_over_pooled"] == 13
    assert found["bytes_commands_blocks_over_pooled"] == 4
    assert (found["sample_p50_ms"], found["fresh_p99_ms"], found["fresh_max_ms"]) == (0.5, 200, 300)
    assert found["memory_most_over_bound"] == 1
    assert bound_bytes(0) == 32_000_000


def test_every_claim_and_aim_is_about_a_figure() -> None:
    both = {"wall_s": 1.0, "rows": 1, "cpu_s": 1.0, "node_cpu_s": 1.0, "round": 0}
    cold = {"cold_rows": 1.0, "read_bytes": 4096}
    found = summary(
        [
            {"part": "bytes", "pooled_bytes": 1, "rows_bytes": 1, "blocks_bytes": 1}
            | {"pooled_commands": 1, "distinct_blocks": 1},
            *({"part": "pooling", "way": way, **both} for way in ("node", "store")),
            *({"part": "cold", "way": way, **both, **cold} for way in ("node", "probe")),
            {"part": "sample", "p50_ms": 1.0, "p99_ms": 1.0},
            {"part": "fresh", "p50_ms": 1.0, "p99_ms": 1.0, "max_ms": 1.0},
            {"part": "memory", "most_bytes": 1, "budget_bytes": 1},
        ]
    )
    for claim in (*CLAIMS, *AIMS):
        assert fnmatch.filter(found, claim.figures), claim
    assert summary([]) == {}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(["--only", "sampel"], "no part sampel"), (["--tiny", "--out", "x.json"], "leave one")],
)
def test_wrong_arguments_are_told(
    arguments: list[str],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["run.py", *arguments])
    with pytest.raises(SystemExit, match="2"):
        run.parsed_arguments()
    assert reason in capsys.readouterr().err


def test_parts_run_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["run.py", "--tiny", "--only", "memory,bytes"])
    parsed = run.parsed_arguments()
    assert parsed.only == ["bytes", "memory"]
    assert parsed.tiny
    monkeypatch.setattr("sys.argv", ["run.py"])
    parsed = run.parsed_arguments()
    assert (parsed.only, parsed.tiny) == (list(run.PARTS), False)
