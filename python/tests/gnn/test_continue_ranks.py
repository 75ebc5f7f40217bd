"""`--continue` of a graph neural network on many ranks: as in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import rowmill
from python.tests.gnn.test_continue_nodes import (
    CLASSES,
    CONFIG,
    DIM,
    FLAGS,
    NODES,
    grown,
)
from python.tests.train.kept import check_whole
from python.tests.train.ranked import run_ranks
from python.tests.train.runs import ended, fork
from rowmill.gnn.planted_nodes import make_nodes
from rowmill.gnn.settings import NodesConfig

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

pytestmark = pytest.mark.slow

NO_DROPOUT = "feature_dropout = 0.0\ndropout = 0.0\n"


@pytest.mark.parametrize(("rows", "choose"), [("learned", "last"), ("features", "best")])
def test_ranks_continue_with_the_steps_of_one_process(
    rows: str,
    choose: str,
    server: ForkServerContext,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    make_nodes(Path("whole.npz"), NodesConfig(nodes=NODES, classes=CLASSES, features=DIM))
    grown("monday.npz", 300)
    grown("tuesday.npz", NODES, 1.0)
    Path("config.toml").write_text(CONFIG.format(rows, choose) + NO_DROPOUT)
    began: dict[str, Any] = {}
    for out, count in (("alone", 1), ("ranks", 2)):
        Path(out).mkdir()
        first = "--data", "monday.npz", "--out", out, "--config", "config.toml", *FLAGS
        again = "--continue", out, "--data", "tuesday.npz"
        for arguments in (first, again):
            told = [
                "train",
                *(str(tmp_path / word) if Path(word).exists() else word for word in arguments),
            ]
            if count > 1:
                run_ranks(server, count, told, tmp_path)
            else:
                assert ended(fork(server, told, tmp_path / "printed")) == 0
        began[out] = json.loads(Path(out, "report.json").read_text())
        check_whole(Path(out, "store"))
    expected, found = began["alone"], began["ranks"]
    assert found["test"] == pytest.approx(expected["test"], abs=2e-2)
    for name in ("steps", "live_rows", "nodes"):
        assert found["run"][name] == expected["run"][name], name
    table = "nodes" if rows == "learned" else "features"
    weights: list[Any] = []
    for out in ("ranks", "alone"):
        with rowmill.load(out) as loaded:
            weights.append(loaded.tables[table].get(np.arange(NODES)))
    np.testing.assert_allclose(weights[0], weights[1], atol=1e-4, rtol=0)
    assert found["run"]["ranks"] == 2
