"""Checkpoints of all ranks are atomic, and any number of ranks can resume from one.

What could break: after a kill, ranks resume from different steps; a resumed run differs in bits from an uninterrupted run;
when the number of ranks changes, rows are lost, duplicated or without state, or memory grows with the number of rows; parts
of different runs are accepted as one checkpoint; ranks wait for a rank that found an error. Ranks are processes and are
killed.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
from typing import TYPE_CHECKING, Any

import pytest

from python.tests.distributed.elastic import Run

if TYPE_CHECKING:
    from pathlib import Path

EVERY = 3
STEPS = {2: 120, 3: 24}
KILLS = 10


@pytest.fixture(scope="module")
def unstopped(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """Uninterrupted runs of 2 and 3 ranks."""
    folder = tmp_path_factory.mktemp("unstopped")
    return {
        count: Run(
            "train", folder / str(count), count=count, until=STEPS[count], every=EVERY
        ).results()
        for count in (2, 3)
    }


def losses_of(runs: list[Run]) -> dict[int, str]:
    """The loss of every step, from the last run that did the step."""
    losses: dict[int, str] = {}
    for run in runs:
        for line in run.steps():
            step, _, loss = line.partition(" ")
            if loss:
                losses[int(step)] = loss
    return losses


def rows_of(results: list[dict[str, Any]]) -> dict[tuple[str, str], list[float]]:
    """The rows of all ranks; fails if two ranks have the same row."""
    rows: dict[tuple[str, str], list[float]] = {}
    for result in results:
        for table, own in result["rows"].items():
            for id_, row in own.items():
                assert (table, id_) not in rows, "two ranks have a row"
                rows[table, id_] = row
    return rows


def test_a_repeatedly_killed_run_ends_bit_identical_to_an_uninterrupted_one(
    tmp_path: Path, unstopped: dict[int, list[dict[str, Any]]]
) -> None:
    chance = random.Random(5)
    runs: list[Run] = []
    for kill in range(KILLS):
        run = Run("train", tmp_path, count=2, until=STEPS[2], every=EVERY)
        runs.append(run)
        # Kill during the next save, or shortly before or after it.
        run.await_steps(chance.randrange(1, 3 * EVERY))
        victim = kill % 2
        run.ranks[victim].join(chance.random() * 0.03)
        run.kill(victim)
        ended = run.end()
        assert ended == ([-signal.SIGKILL, 1] if victim == 0 else [1, -signal.SIGKILL])
        last = run.error(1 - victim).strip().splitlines()[-1]
        assert last.startswith(f"rowmill.errors.RankLost: rank {victim} was lost in step "), last
    runs.append(Run("train", tmp_path, count=2, until=STEPS[2], every=EVERY))
    results = runs[-1].results()
    assert results[0]["begin"] in range(EVERY, STEPS[2], EVERY)
    wanted = unstopped[2]
    for result, other in zip(results, wanted, strict=True):
        for what in ("rows", "counters", "weights", "random"):
            assert result[what] == other[what], what
    for step, loss in losses_of(runs).items():
        assert float.fromhex(loss) == wanted[0]["losses"][step], step
    assert len(losses_of(runs)) == STEPS[2]


@pytest.mark.parametrize(
    ("where", "goes_on"),
    [
        ("before any part", 2 * EVERY),
        ("before the manifest", 2 * EVERY),
        ("after the manifest", 3 * EVERY),
        ("before a commit", 3 * EVERY),
    ],
)
def test_all_ranks_resume_from_the_checkpoint_of_the_manifest(
    tmp_path: Path, unstopped: dict[int, list[dict[str, Any]]], where: str, goes_on: int
) -> None:
    run = Run("train", tmp_path, count=3, until=3 * EVERY, every=EVERY, die=where)
    assert sorted(run.end(), key=lambda ended: ended or 0) == [-signal.SIGKILL, 1, 1]
    # Some stores now have two checkpoints; the manifest decides which is valid.
    results = Run("train", tmp_path, count=3, until=STEPS[3], every=EVERY).results()
    for result, other in zip(results, unstopped[3], strict=True):
        assert result["begin"] == goes_on
        for what in ("rows", "counters", "weights", "random"):
            assert result[what] == other[what], what


def test_other_numbers_of_ranks_take_over_the_rows(tmp_path: Path) -> None:
    alone = Run("train", tmp_path / "alone", count=1, until=80, every=80, random=False).results()
    losses: list[float] = []
    results: list[dict[str, Any]] = []
    for until, count in [(20, 1), (40, 4), (60, 3), (80, 1)]:
        if results:
            opened = Run("look", tmp_path, count=count).results()
            assert rows_of(opened) == rows_of(results), "rows with state must be bit-identical"
            for table, (steps, births) in summed(results).items():
                assert all(result["counters"][table][0] == steps for result in opened)
                assert summed(opened)[table] == (steps, births)
            assert all(any(own for own in result["rows"].values()) for result in opened)
        run = Run("train", tmp_path, count=count, until=until, every=20, random=False)
        results = run.results()
        assert results[0]["begin"] == until - 20
        losses += results[0]["losses"]
        parts = [path.name for path in (tmp_path / "run").iterdir() if path.is_dir()]
        assert len(parts) == 1, f"parts of other numbers of ranks must be removed: {parts}"
    assert losses == pytest.approx(alone[0]["losses"], rel=1e-5)
    rows, wanted = rows_of(results), rows_of(alone)
    assert rows.keys() == wanted.keys()
    for key, row in rows.items():
        assert row == pytest.approx(wanted[key], abs=1e-4), key
    assert results[0]["counters"] == alone[0]["counters"]


def test_other_placements_take_over_the_rows(tmp_path: Path) -> None:
    alone = Run("train", tmp_path / "alone", count=1, until=120, every=120, random=False).results()
    losses: list[float] = []
    results: list[dict[str, Any]] = []
    mixed = "rows,word=pooled,tag=whole:2,user=whole"
    # None keeps the placement: whole on 3 and then on 1 rank.
    for until, count, placement, kept in [
        (20, 2, None, {}),
        (40, 2, "whole", {"user": "whole:0", "item": "whole:1"}),
        (60, 3, None, {"user": "whole:0", "item": "whole:1"}),
        (80, 3, mixed, {"user": "whole:0", "tag": "whole:2", "word": "pooled"}),
        (100, 2, None, {"user": "whole:0", "tag": "whole:0", "word": "pooled"}),
        (120, 2, "pooled", {"user": "pooled", "colour": "pooled"}),
    ]:
        if results:
            opened = Run("look", tmp_path, count=count, placement=placement).results()
            assert rows_of(opened) == rows_of(results), "rows with state must be bit-identical"
            for table, (steps, births) in summed(results).items():
                assert summed(opened)[table] == (steps, births)
        run = Run(
            "train", tmp_path, count=count, until=until, every=20, random=False, placement=placement
        )
        results = run.results()
        losses += results[0]["losses"]
        placements = json.loads((tmp_path / "run" / "CHECKPOINT").read_text().partition("\n")[2])
        found = placements.get("placements", {})
        assert found | kept == found
        assert bool(found) == bool(kept)
        for table, at in found.items():
            for rank, result in enumerate(results):
                if at.startswith("whole:"):
                    assert bool(result["rows"][table]) == (at == f"whole:{rank}"), (table, at)
        parts = [path.name for path in (tmp_path / "run").iterdir() if path.is_dir()]
        assert len(parts) == 1, f"parts of other placements must be removed: {parts}"
    assert losses == pytest.approx(alone[0]["losses"], rel=1e-5)
    rows, wanted = rows_of(results), rows_of(alone)
    assert rows.keys() == wanted.keys()
    for key, row in rows.items():
        assert row == pytest.approx(wanted[key], abs=1e-4), key


def test_replicated_tables_are_copied_and_counted_once(tmp_path: Path) -> None:
    alone = Run("train", tmp_path / "alone", count=1, until=60, every=60, random=False).results()
    of: dict[str, Any] = {"every": 20, "random": False}
    losses = Run("train", tmp_path, count=2, until=20, **of).results()[0]["losses"]
    before = Run("look", tmp_path, count=2).results()
    names = ("user", "tag")
    placement = "rows,user=replicated,tag=replicated"
    for result in Run("look", tmp_path, count=3, placement=placement).results():
        for name in names:
            rows = {id_: row for (table, id_), row in rows_of(before).items() if table == name}
            assert result["rows"][name] == rows
            assert tuple(result["counters"][name]) == summed(before)[name]
    results = Run("train", tmp_path, count=3, until=40, placement=placement, **of).results()
    losses += results[0]["losses"]
    for name in names:
        assert len(results[0]["rows"][name]) > len(before[0]["rows"][name])
        for result in results[1:]:
            for what in ("rows", "counters"):
                assert result[what][name] == results[0][what][name], (name, what)
    # Other numbers of ranks keep the copies; other placements keep one of them.
    for count, other in [(2, None), (2, "whole"), (3, "rows")]:
        opened = Run("look", tmp_path, count=count, placement=other).results()
        for name in names:
            copies = [result["rows"][name] for result in opened]
            births = [result["counters"][name][1] for result in opened]
            if other is None:
                assert copies == [results[0]["rows"][name]] * count
                assert births == [results[0]["counters"][name][1]] * count
            else:
                assert (
                    dict(pair for rows in copies for pair in rows.items())
                    == results[0]["rows"][name]
                )
                assert sum(map(len, copies)) == len(results[0]["rows"][name])
                assert sum(births) == results[0]["counters"][name][1]
    results = Run("train", tmp_path, count=1, until=60, placement="rows", **of).results()
    assert losses + results[0]["losses"] == pytest.approx(alone[0]["losses"], rel=1e-5)
    rows, wanted = rows_of(results), rows_of(alone)
    assert rows.keys() == wanted.keys()
    for key, row in rows.items():
        assert row == pytest.approx(wanted[key], abs=1e-4), key
    assert results[0]["counters"] == alone[0]["counters"]


def test_a_killed_run_keeps_its_placement_and_its_bits(tmp_path: Path) -> None:
    of = {"count": 3, "every": EVERY}
    mixed = "rows,user=whole,tag=whole,word=pooled,colour=replicated"
    wanted = Run("train", tmp_path / "whole", until=STEPS[3], placement=mixed, **of).results()
    # The collection's own setting is kept by the checkpoint, too.
    Run("train", tmp_path, until=2 * EVERY, of_collection=mixed, **of).results()
    Run("train", tmp_path, until=4 * EVERY, die="before the manifest", **of).end()
    results = Run("train", tmp_path, until=STEPS[3], **of).results()
    for result, other in zip(results, wanted, strict=True):
        assert result["begin"] == 3 * EVERY
        for what in ("rows", "counters", "weights", "random"):
            assert result[what] == other[what], what
    # Also if the collection names its placement again, on another number of ranks.
    again = {"every": EVERY, "until": STEPS[3] + EVERY, "of_collection": mixed}
    assert Run("train", tmp_path, count=2, **again).results()[0]["begin"] == STEPS[3]


def summed(results: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """Per table, its number of steps, and rows created on all ranks."""
    tables = results[0]["counters"]
    return {
        name: (steps, sum(result["counters"][name][1] for result in results))
        for name, (steps, _) in tables.items()
    }


def test_an_interrupted_takeover_starts_again(tmp_path: Path) -> None:
    Run("train", tmp_path, count=3, until=EVERY, every=EVERY).results()
    before = rows_of(Run("look", tmp_path, count=3).results())
    # Two ranks have taken over the rows, and are killed in their first save.
    run = Run("train", tmp_path, count=2, until=2 * EVERY, every=EVERY, die="before the manifest")
    run.end()
    for count in (4, 2, 3):
        assert rows_of(Run("look", tmp_path, count=count).results()) == before


def test_a_rank_killed_while_it_takes_over_rows_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    Run("train", tmp_path, count=3, until=EVERY, every=EVERY).results()
    before = rows_of(Run("look", tmp_path, count=3).results())
    moves: list[dict[str, Any]] = [
        {"count": 2, "dies_at": 1},
        {"count": 3, "dies_at": 2, "placement": "pooled,user=whole"},
    ]
    for move in moves:
        run = Run("look", tmp_path, **move)
        ended = run.end(timeout_s=30)
        assert ended[1] == -signal.SIGKILL
        assert [code for rank, code in enumerate(ended) if rank != 1] == [1] * (len(ended) - 1)
        assert "RankLost" in run.error(0), run.error(0)
        assert rows_of(Run("look", tmp_path, count=3).results()) == before
    assert rows_of(Run("look", tmp_path, count=2).results()) == before


def test_rows_are_taken_over_in_bounded_memory(tmp_path: Path) -> None:
    # 160 MB of rows, on ranks with 32 MiB of memory each.
    rows = 160_000
    Run("fill", tmp_path, count=2, rows=rows).results()
    (result,) = Run("peak", tmp_path, count=1).results()
    assert (result["rows"], result["right"]) == (2 * rows, True)
    assert result["bytes"] < 120 << 20


def save_two(folder: Path) -> Path:
    Run("train", folder, count=2, until=EVERY, every=EVERY).results()
    return folder / "run"


@pytest.mark.parametrize(
    ("what", "count", "message"),
    [
        (
            "part",
            2,
            "rank 1: checkpoint 1 in .* lacks the part of rank 1, .*parts-1/1: put it back",
        ),
        (
            "part",
            3,
            "rank 0: checkpoint 1 in .* lacks the part of rank 1, .*parts-1/1: put it back",
        ),
        ("state", 2, "rank 0: checkpoint 1 in .* lacks state-1.pt"),
        ("damaged state", 3, "rank 0: .*state-1.pt is damaged"),
        ("swapped", 2, "rank 0: .*/0 is not a part of checkpoint 1 .* belongs to .*'rank': 1"),
        ("swapped", 1, "rank 0: .*/0 is not a part of checkpoint 1 .* belongs to .*'rank': 1"),
        ("another run", 2, "rank 1: .*/1 is not a part of checkpoint 1"),
        ("older part", 2, "rank 1: .*/parts-1/1 has checkpoint 1, not 2"),
        ("older part", 1, "rank 0: .*/parts-1/1 has checkpoint 1, not 2"),
        ("damaged", 2, "rank 0: .*CHECKPOINT is damaged"),
        ("tables", 2, "rank 0: .* is of another model: it has tables .*, this run has .*another"),
        ("model", 2, "rank 0: .* is of another model: .*size mismatch"),
        ("optimizer", 2, "rank 0: .* is of another model: .*parameter groups"),
        ("another folder", 3, "ranks disagree on the checkpoint, its id: .* rank 2 has None"),
        ("new folders", 3, "rank 2: .*new-1 is not the folder of rank 0"),
        ("seed", 3, "ranks disagree on the checkpoint, the seed: rank 0 has 7, rank 2 has 9"),
        (
            "position",
            3,
            "ranks disagree on the checkpoint, the position: rank 0 has '0', rank 2 has '1'",
        ),
        (
            "no position",
            2,
            "rank 0: position must be numbers, strings, lists or dicts, got <object",
        ),
        (
            "placements",
            2,
            "ranks disagree on the checkpoint, the placement: rank 0 has None, rank 1 has 'user=whole:1'",
        ),
        (
            "placement",
            2,
            "rank 0: placement of table 'user' must name a rank below 2, the number of ranks, got 'whole:9'",
        ),
        (
            "placement of collection",
            2,
            "rank 0: placement of table 'user' must be 'rows', which its checkpoint or another collection has set, got "
            "'whole:1': leave it out here",
        ),
        (
            "no disk",
            2,
            r"rank 1 has 100 B of disk, but its tables take .* with user whole on it: give it more",
        ),
        ("no memory", 2, r"rank 0 has 16.0 MiB of memory for indexes, but its tables take "),
        ("option", 2, "read_only is set by the checkpoint"),
        ("full", 2, "rank 1: no space left"),
    ],
)
def test_all_ranks_raise_the_error_of_a_checkpoint(
    tmp_path: Path, what: str, count: int, message: str
) -> None:
    folder = save_two(tmp_path)
    spoil(folder, what, tmp_path)
    results = Run("bad", tmp_path, count=count, what=what).results()
    first = results[0]["message"]
    assert all(result == results[0] for result in results)
    assert re.match(message, first), first
    if what in ("no disk", "no memory"):
        assert not (folder / "parts-2").exists(), "the room is checked before a row moves"


def spoil(folder: Path, what: str, tmp_path: Path) -> None:
    parts = folder / "parts-1"
    if what == "part":
        shutil.rmtree(parts / "1")
    if what == "state":
        (folder / "state-1.pt").unlink()
    if what == "damaged state":
        content = bytearray((folder / "state-1.pt").read_bytes())
        content[len(content) // 2] ^= 1
        (folder / "state-1.pt").write_bytes(content)
    if what == "swapped":
        (parts / "0").rename(parts / "2")
        (parts / "1").rename(parts / "0")
        (parts / "2").rename(parts / "1")
    if what == "another run":
        other = save_two(tmp_path / "other")
        shutil.rmtree(parts / "1")
        shutil.copytree(other / "parts-1" / "1", parts / "1")
    if what == "older part":
        kept = tmp_path / "kept"
        shutil.copytree(parts / "1", kept)
        Run("train", tmp_path, count=2, until=2 * EVERY, every=EVERY).results()
        shutil.rmtree(parts / "1")
        kept.rename(parts / "1")
    if what == "damaged":
        content = bytearray((folder / "CHECKPOINT").read_bytes())
        content[-3] ^= 1
        (folder / "CHECKPOINT").write_bytes(content)


def test_a_newer_manifest_is_refused(tmp_path: Path) -> None:
    folder = save_two(tmp_path)
    head, _, rest = (folder / "CHECKPOINT").read_text().partition("\n")
    words = head.split()
    assert json.loads(rest)["number"] == 1
    (folder / "CHECKPOINT").write_text(" ".join([words[0], "3", *words[2:]]) + "\n" + rest)
    results = Run("bad", tmp_path, count=2, what="newer").results()
    assert "has format version 3, this build reads up to 2" in results[1]["message"]


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    first = Run("train", tmp_path, count=2, until=100_000, every=EVERY)
    first.await_steps(EVERY)
    results = Run("bad", tmp_path, count=2, what="second").results()
    first.kill(0)
    first.end()
    for result in results:
        assert "rank 0: another run has" in result["message"]
