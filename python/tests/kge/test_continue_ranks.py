"""`--continue` of a knowledge graph on many ranks: as in one process.

What could break: the row of a reciprocal relation moves to a number that another rank owns, and stays behind.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from python.tests.kge.test_continue_graph import (
    CONFIG,
    ENTITIES,
    FLAGS,
    RELATIONS,
    vectors,
    write,
)
from python.tests.train.kept import check_whole
from python.tests.train.ranked import printed, run_ranks, start
from python.tests.train.runs import ended, fork

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import ForkServerContext

pytestmark = pytest.mark.slow


@pytest.fixture
def command(
    server: ForkServerContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """A function that runs the command on a number of ranks, or in one process."""
    monkeypatch.chdir(tmp_path)
    write(Path("monday"), 0, ENTITIES, range(RELATIONS))
    # Ten further entities, and two further relations.
    write(Path("tuesday"), 20, ENTITIES + 10, range(1, RELATIONS + 2))
    Path("config.toml").write_text(CONFIG.format("true"))

    def run(count: int, *arguments: str) -> None:
        told = [str(tmp_path / word) if Path(word).exists() else word for word in arguments]
        if count > 1:
            run_ranks(server, count, ["train", *told], tmp_path)
        else:
            assert ended(fork(server, ["train", *told], tmp_path / "printed")) == 0

    return run


@pytest.mark.parametrize("placement", ["rows", "rows,relations=replicated", "whole"])
def test_rows_keep_their_names(command: Callable[..., None], placement: str) -> None:
    Path("run").mkdir()
    first = ("--out", "run", "--config", "config.toml", "--placement", placement, *FLAGS)
    command(2, "--data", "monday", *first)
    before = vectors()
    command(2, "--continue", "run", "--data", "tuesday", "--row-lr", "0")
    after = vectors()
    for table in ("entities", "relations"):
        assert {name: after[table][name] for name in before[table]} == before[table], table
    assert len(after["entities"]) == ENTITIES + 10
    assert len(after["relations"]) == 2 * (RELATIONS + 2)
    check_whole(Path("run/store"))


def test_ranks_continue_with_the_steps_of_one_process(command: Callable[..., None]) -> None:
    for out, count in (("alone", 1), ("ranks", 2)):
        Path(out).mkdir()
        command(count, "--data", "monday", "--out", out, "--config", "config.toml", *FLAGS)
        command(count, "--continue", out, "--data", "tuesday", "--epochs", "3")
    expected, found = (
        json.loads(Path(out, "report.json").read_text()) for out in ("alone", "ranks")
    )
    assert [part["data"] for part in found["parts"]] == [part["data"] for part in expected["parts"]]
    for name in ("steps", "live_rows", "entities", "relations"):
        assert found["run"][name] == expected["run"][name], name
    losses = [
        [point["loss"] for point in of["curve"] if "loss" in point] for of in (found, expected)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    rows, other = vectors("ranks"), vectors("alone")
    for table, of_names in other.items():
        for name, row in of_names.items():
            assert rows[table][name] == pytest.approx(row, abs=1e-4), (table, name)


def test_new_entities_on_another_number_of_ranks_are_refused(
    command: Callable[..., None], server: ForkServerContext, tmp_path: Path
) -> None:
    Path("run").mkdir()
    command(2, "--data", "monday", "--out", "run", "--config", "config.toml", *FLAGS)
    before = vectors()
    told = ["train", "--continue", str(tmp_path / "run"), "--data", str(tmp_path / "tuesday")]
    assert [ended(rank) for rank in start(server, 3, [told] * 3, tmp_path)] == [2] * 3
    for said in printed(tmp_path, 3):
        assert "the number of ids of table 'entities' changes, and its rows would also move" in said
    assert vectors() == before
