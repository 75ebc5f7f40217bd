"""A run of many ranks is exported, scored and copied to a storage node with any placement of its tables.

What could break: rows of a table that one rank keeps are looked for on another one, or rows that every rank keeps are counted
and sent once per rank.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from python.tests.train.ranked import run_ranks
from rowmill.cli import main
from rowmill.ctr.settings import GenerateConfig
from rowmill.partition import Bundle
from rowmill.partition.transform import apply_transform

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext
    from pathlib import Path

pytestmark = pytest.mark.slow

LOG = GenerateConfig(rows=1_500, seed=3, rows_per_table=100)
PLACEMENTS = ["auto", "pooled,C1=replicated,C2=whole,C3=rows"]
NODE = """
listen = "127.0.0.1:0"
metrics = "127.0.0.1:0"
wire_memory = "96MiB"

[[subsystem]]
folder = "node"
filled = true
memory = "64MiB"
any_host = "write"
"""


def trained(server: ForkServerContext, log: Path, out: Path, placement: str) -> dict[str, Any]:
    """Train on two ranks; returns the report."""
    settings = {
        "--data": log,
        "--out": out,
        "--memory": "64MiB",
        "--batch": 64,
        "--dim": 4,
        "--threads": 1,
        "--placement": placement,
    }
    flags = [str(part) for setting in settings.items() for part in setting]
    run_ranks(server, 2, ["train", *flags], out)
    return json.loads((out / "report.json").read_text())


def predicted(run: Path, data: Path, out: Path, *more: str) -> Any:
    assert main(["predict", str(run), "--data", str(data), "--out", str(out), *more]) == 0
    return np.load(out)


@pytest.fixture(scope="module")
def first_scores(
    log: Path, server: ForkServerContext, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """The scores of the log with a run whose tables all have the same placement."""
    folder = tmp_path_factory.mktemp("first")
    trained(server, log, folder / "run", "rows")
    return predicted(folder / "run", log, folder / "scores.npy")


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_run_is_used_with_any_placement(
    placement: str,
    first_scores: Any,
    log: Path,
    server: ForkServerContext,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    report = trained(server, log, run, placement)
    rows = report["run"]["live_rows"]
    scores = predicted(run, log, tmp_path / "scores.npy")
    np.testing.assert_allclose(scores, first_scores, rtol=0, atol=1e-4)

    assert main(["evaluate", str(run), "--data", str(log), "--part", "test", "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert metrics == pytest.approx(report["test"], rel=1e-6)

    bundle = tmp_path / "bundle"
    assert main(["export", str(run), "--out", str(bundle)]) == 0
    transform = json.loads((bundle / "transform.json").read_text())
    with Bundle.open(bundle) as opened:
        (answer,) = opened.run(
            apply_transform(transform, pq.read_table(sorted(log.glob("*.parquet"))))
        )
    assert torch.allclose(answer.view(-1), torch.from_numpy(scores), rtol=0, atol=1e-6)

    (tmp_path / "node.toml").write_text(NODE)
    command = [sys.executable, "-m", "rowmill", "storage", "serve", "--config"]
    with subprocess.Popen(
        [*command, str(tmp_path / "node.toml")], stdout=subprocess.PIPE, text=True
    ) as node:
        assert node.stdout is not None
        try:
            (url,) = json.loads(node.stdout.readline())["ready"]
            capsys.readouterr()
            assert main(["storage", "fill", str(run), url]) == 0
            filled = capsys.readouterr().out
            of_node = predicted(run, log, tmp_path / "node.npy", "--rows", url)
        finally:
            node.kill()
    assert f"filled 26 tables with {rows:,} rows, " in filled
    assert np.array_equal(of_node.view(np.int32), scores.view(np.int32))
    assert main(["storage", "plan", str(run)]) == 0
    planned = capsys.readouterr().out.splitlines()
    counts = [int(line.split()[1].replace(",", "")) for line in planned if line.startswith("C")]
    assert sum(counts) == rows
