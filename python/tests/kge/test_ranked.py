"""`rowmill train --task kge` on several ranks gives the steps of one process, and resumes from checkpoints of all ranks.

Steps are compared by their losses, and results by all rows and the metrics of the test part. The graph is the ring of
`test_task`. Its last batch of an epoch has two triples, so on three ranks and more some rank has none of it.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from python.tests.kge.test_task import RELATIONS, write_ring
from python.tests.train.ranked import kill_second, printed, run_ranks, start
from python.tests.train.runs import ended, fork
from rowmill.cli import main
from rowmill.config import ConfigError, load_config
from rowmill.distributed._checkpoint.manifest import Manifest
from rowmill.kge.ranked_task import check_ranked_graph
from rowmill.saved.saved_run import SavedRun

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import ForkServerContext
    from pathlib import Path

    from numpy.typing import NDArray

pytestmark = pytest.mark.slow

ENTITIES = 130
"""416 triples to train: six batches of 69 and one of 2."""

COMMON = """
[train]
task = "kge"
threads = 1
log_every = 1
# 203 steps.
batch = 69
epochs = 29

[store]
memory = "64MiB"

[rows]
lr = 0.1
initial_width = 0.3
"""

WAYS = {
    "negatives": """
[model]
kind = "complex"
dim = 8
[kge]
negatives = 16
entity_dropout = 0.2
relation_dropout = 0.1
regularizer = "n3"
entity_penalty = 0.01
relation_penalty = 0.02
""",
    "in batch": """
[model]
kind = "rotate"
dim = 8
[kge]
negatives = 8
in_batch = true
reciprocal = false
loss = "self_adversarial"
margin = 3.0
entity_dropout = 0.1
""",
    "partitions": """
[model]
kind = "transe"
dim = 8
[kge]
negatives = 16
reciprocal = false
loss = "logistic"
margin = 3.0
partitions = 5
buffer_partitions = 3
""",
    "1vsall": """
[model]
kind = "distmult"
dim = 8
[kge]
objective = "1vsall"
entity_dropout = 0.2
smoothing = 0.1
""",
    "kvsall": """
[model]
kind = "complex"
dim = 8
[kge]
objective = "kvsall"
loss = "logistic"
reciprocal = false
""",
}


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ring(tmp_path_factory.mktemp("ring"), ENTITIES)


def arguments(ring: Path, way: str, out: Path, *more: str) -> list[str]:
    config = ring / f"{way}.toml"
    if not config.exists():
        config.write_text(COMMON + WAYS[way])
    return ["train", "--config", str(config), "--data", str(ring), "--out", str(out), *more]


@pytest.fixture(scope="module")
def alone(
    ring: Path, server: ForkServerContext, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """The files of a run of one process."""

    @cache
    def run(way: str) -> Path:
        out = tmp_path_factory.mktemp("alone")
        assert ended(fork(server, arguments(ring, way, out), out / "printed")) == 0
        return out

    return run


def losses(out: Path) -> list[float]:
    curve = json.loads((out / "report.json").read_text())["curve"]
    return [point["loss"] for point in curve if "loss" in point]


def rows_of(out: Path) -> dict[str, NDArray[Any]]:
    """The weights of every table, in the order of ids."""
    found: dict[str, tuple[list[Any], list[Any]]] = {}
    with SavedRun.open(out) as saved:
        for name, ids, weights in saved.rows():
            of_table = found.setdefault(name, ([], []))
            of_table[0].append(ids)
            of_table[1].append(weights)
    ordered: dict[str, NDArray[Any]] = {}
    for name, (ids, weights) in found.items():
        order = np.argsort(np.concatenate(ids))
        assert len(set(np.concatenate(ids).tolist())) == len(order), "a row is on two ranks"
        ordered[name] = np.concatenate(weights)[order]
    return ordered


def alike(out: Path, other: Path) -> None:
    """Check that two runs have the same steps, except for the order of sums."""
    assert losses(out) == pytest.approx(losses(other), rel=1e-5, abs=1e-5)
    rows, expected = rows_of(out), rows_of(other)
    assert rows.keys() == expected.keys() == {"entities", "relations"}
    for name, weights in rows.items():
        np.testing.assert_allclose(weights, expected[name], atol=1e-4, rtol=0)
    reports = [json.loads((run / "report.json").read_text()) for run in (out, other)]
    assert reports[0]["test"] == pytest.approx(reports[1]["test"], abs=2e-3)
    for name in ("steps", "live_rows", "train_rows", "test_rows", "entities", "relations"):
        assert reports[0]["run"][name] == reports[1]["run"][name], name


@pytest.mark.parametrize(
    ("way", "count"),
    [
        ("negatives", 2),
        ("negatives", 4),
        ("in batch", 3),
        ("partitions", 2),
        ("1vsall", 3),
        ("kvsall", 4),
    ],
)
def test_ranks_give_the_steps_of_one_process(
    way: str,
    count: int,
    alone: Callable[[str], Path],
    ring: Path,
    server: ForkServerContext,
    tmp_path: Path,
) -> None:
    first, *others = run_ranks(server, count, arguments(ring, way, tmp_path), tmp_path)
    assert len(losses(tmp_path)) >= 200
    alike(tmp_path, alone(way))
    assert "test MRR" in first or "mrr" in first
    assert others == [""] * (count - 1), "only one rank prints"
    assert json.loads((tmp_path / "report.json").read_text())["run"]["ranks"] == count


def test_one_rank_gives_the_bits_of_one_process(
    alone: Callable[[str], Path], ring: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    run_ranks(server, 1, arguments(ring, "negatives", tmp_path), tmp_path)
    assert losses(tmp_path) == losses(alone("negatives"))
    for name, weights in rows_of(tmp_path).items():
        assert np.array_equal(weights, rows_of(alone("negatives"))[name]), name


def test_placements_and_steps_in_flight_give_the_same_steps(
    alone: Callable[[str], Path], ring: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    more = "--placement", "rows,relations=replicated", "--in-flight", "3"
    run_ranks(server, 2, arguments(ring, "negatives", tmp_path, *more), tmp_path)
    alike(tmp_path, alone("negatives"))
    manifest = Manifest.load(tmp_path / "store")
    assert manifest is not None
    assert manifest.placements == {"relations": "replicated"}


def test_a_killed_run_resumes_to_the_same_bits_or_on_another_number_of_ranks(
    alone: Callable[[str], Path], ring: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    every = "--checkpoint-every", "20"
    whole, killed, fewer = (tmp_path / name for name in ("whole", "killed", "fewer"))
    run_ranks(server, 2, arguments(ring, "negatives", whole, *every), whole)
    said = kill_second(server, arguments(ring, "negatives", killed, *every), killed)
    assert "rowmill: rank 1 was lost in step" in said
    first, _ = run_ranks(
        server, 2, arguments(ring, "negatives", killed, *every, "--resume"), killed
    )
    assert "Resuming at step" in first
    assert losses(killed) == losses(whole)
    for name, weights in rows_of(killed).items():
        assert np.array_equal(weights, rows_of(whole)[name]), name

    kill_second(server, arguments(ring, "negatives", fewer, *every), fewer)
    resumed = arguments(ring, "negatives", fewer, *every, "--resume")
    first, *_ = run_ranks(server, 3, resumed, fewer)
    assert "Warning: ranks was 2 and is 3" in first
    alike(fewer, alone("negatives"))


def test_a_run_of_ranks_is_evaluated_and_asked_like_one_of_one_process(
    ring: Path, server: ForkServerContext, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_ranks(server, 2, arguments(ring, "negatives", tmp_path), tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    assert main(["evaluate", str(tmp_path), "--data", str(ring), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mrr"] == report["test"]["mrr"]
    assert len((tmp_path / "relations.txt").read_text().splitlines()) == RELATIONS


def test_ranks_report_a_wrong_graph_and_different_settings(
    ring: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    other = write_ring(tmp_path, ENTITIES)
    with (other / "train.tsv").open("a") as file:
        file.write("e0\tr0\te7\n")
    told = [
        arguments(graph, "negatives", tmp_path / "out", "--config", str(ring / "negatives.toml"))
        for graph in (ring, other)
    ]
    assert [ended(rank) for rank in start(server, 2, told, tmp_path)] == [2, 2]
    for said in printed(tmp_path, 2):
        assert "rowmill: ranks disagree on the settings, checksum of the first rows: rank 0" in said
    (other / "test.tsv").unlink()
    told = [arguments(other, "negatives", tmp_path / "out")] * 2
    assert [ended(rank) for rank in start(server, 2, told, tmp_path)] == [2, 2]
    for said in printed(tmp_path, 2):
        assert "test.tsv does not exist; give a folder with train.tsv" in said


@pytest.mark.parametrize(
    ("section", "key", "value", "named"),
    [
        ("train", "backend", "nccl", "train.backend = 'nccl', which is for models with dense"),
    ],
)
def test_settings_of_a_single_process_are_refused_with_ranks(
    section: str, key: str, value: Any, named: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check_ranked_graph(load_config(None, {("train", "task"): "kge", (section, key): value}))
    assert str(refused.value).startswith(named)
    assert "without torchrun" in str(refused.value)
