"""Graphs begin with rows of files too, of each kind of file: a row per entity, relation or node, by its number."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rowmill
from python.tests.train.kept import check_whole
from rowmill.cli import main
from rowmill.gnn.planted_nodes import make_nodes
from rowmill.gnn.settings import NodesConfig

ENTITIES, RELATIONS, NODES = 30, 2, 200
FLAGS = ("--memory", "64MiB", "--threads", "1", "--dim", "8")
TABLES = {"kge": ("entities", "relations"), "gnn": ("nodes",)}


@dataclass
class Graph:
    """A task and its data."""

    task: str
    data: str
    capsys: pytest.CaptureFixture[str]

    def train(self, out: str, *more: str, code: int = 0) -> str:
        """Train in a folder; returns what is printed, in one line."""
        self.capsys.readouterr()
        given = ("--task", self.task, "--data", self.data, "--config", "config.toml", "--out", out)
        ended = main(["train", *given, *FLAGS, *more])
        printed = self.capsys.readouterr()
        assert ended == code, printed.err + printed.out
        return " ".join((printed.out + printed.err).split())


@pytest.fixture(params=["kge", "gnn"])
def graph(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Graph:
    monkeypatch.chdir(tmp_path)
    if request.param == "gnn":
        make_nodes(Path("nodes.npz"), NodesConfig(nodes=NODES, classes=3, features=5))
        Path("config.toml").write_text(
            "[gnn]\nhidden = 8\nfanouts = [3]\nrows = 'learned'\nchoose = 'last'\n"
        )
        return Graph("gnn", "nodes.npz", capsys)
    Path("triples").mkdir()
    triples = [
        f"e{head}\tr{chord}\te{(head + chord + 1) % ENTITIES}\n"
        for head in range(ENTITIES)
        for chord in range(RELATIONS)
    ]
    for part, lines in (("train", triples), ("valid", triples[:4]), ("test", triples[4:8])):
        Path(f"triples/{part}.tsv").write_text("".join(lines))
    Path("config.toml").write_text("[kge]\nnegatives = 4\n")
    return Graph("kge", "triples", capsys)


def rows(run: str) -> dict[str, Any]:
    with rowmill.load(run) as loaded:
        return {
            name: table.get(np.arange(table.num_rows or 0)) for name, table in loaded.tables.items()
        }


@pytest.mark.parametrize("kind", ["npy", "parquet", "pt"])
def test_a_graph_begins_with_rows_of_files(graph: Graph, kind: str) -> None:
    tables = TABLES[graph.task]
    graph.train("before", "--seed", "7")
    before = rows("before")
    assert sorted(before) == sorted(tables)
    if kind == "pt":
        torch.save(
            {f"{name}.weight": torch.from_numpy(before[name]) for name in tables}, "model.pt"
        )
        files = {name: f"model.pt,vectors={name}.weight" for name in tables}
        ids = {name: np.arange(len(before[name])) for name in tables}
    else:
        assert main(["vectors", "before", "--out", "vectors"]) == 0
        files = {name: f"vectors/{name}.{kind}" for name in tables}
        # Nodes that were not sampled have no rows.
        ids = {name: np.load(f"vectors/{name}.ids.npy") for name in tables}
    flags = [part for name, file in files.items() for part in ("--warm-start", f"{name}={file}")]
    said = graph.train("after", "--row-lr", "0", *flags)
    for name in tables:
        assert len(ids[name]) > 10 or name == "relations"
        assert f"Warm start: {len(ids[name]):,} rows of table {name} from" in said
    after = rows("after")
    for name in tables:
        assert after[name][ids[name]].tobytes() == before[name][ids[name]].tobytes(), name
    check_whole(Path("after/store"))
    # A file with a row too many is refused, and leaves no run.
    np.save("long.npy", np.zeros((len(before[tables[0]]) + 1, 8), np.float32))
    said = graph.train("long", "--warm-start", f"{tables[0]}=long.npy", code=2)
    assert f"ids of table '{tables[0]}' are in [0, " in said
    assert not Path("long").exists()
