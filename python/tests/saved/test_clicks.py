"""A trained click model is used: `rowmill.load`, `evaluate`, versions, and what is left of a killed run.

What could break: figures or scores differ from the trainer's; a version gives the rows of one checkpoint and the weights of
another; a failing command leaves a file, or an error that does not say what to do.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import rowmill
from python.tests.nodes import serving
from python.tests.partition.runs import TRAIN_ROWS
from python.tests.saved.scores import click_scores
from python.tests.train.kept import check_whole, contents
from python.tests.train.runs import fork, until
from rowmill.cli import main
from rowmill.ctr import LoadedClicks
from rowmill.errors import StoreReadOnly
from rowmill.saved.saved_run import Rows

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext
    from pathlib import Path

    from python.tests.saved.conftest import Trained


@pytest.fixture
def held_out(clicks: Trained, tmp_path: Path) -> Path:
    path = tmp_path / "held_out.parquet"
    pq.write_table(pq.read_table(clicks.data).slice(TRAIN_ROWS), path)
    return path


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, float | None]:
    capsys.readouterr()
    assert main(["evaluate", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_evaluate_gives_the_figures_of_the_trainer(
    clicks: Trained, held_out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = clicks.report["test"]
    assert evaluated(capsys, clicks.run, "--data", held_out) == test
    assert evaluated(capsys, clicks.run, "--data", clicks.data, "--part", "test") == test
    assert evaluated(capsys, clicks.run / "store", "--data", clicks.data) == test
    assert evaluated(capsys, clicks.run, "--data", clicks.data, "--part", "all") != test
    assert main(["evaluate", str(clicks.run), "--data", str(held_out)]) == 0
    assert f"AUC                 {test['auc']:.4f}\n" in capsys.readouterr().out


def test_load_gives_model_transform_and_tables(clicks: Trained, held_out: Path) -> None:
    expected = click_scores(clicks.config, clicks.run)[:, 0]
    before = contents(clicks.run)
    torch.set_num_threads(2)  # The run has 16.
    with rowmill.load(clicks.run) as loaded:
        assert isinstance(loaded, LoadedClicks)
        assert loaded.step == clicks.report["run"]["steps"]
        assert not loaded.model.training
        table = pq.read_table(held_out).drop_columns(["y", "bought"])
        for raw in (table, held_out, str(held_out)):
            assert np.array_equal(loaded.predict(raw).numpy(), expected)
        with torch.no_grad(), loaded.threads():
            logits = loaded.model(*loaded.transform(table))
        assert np.array_equal(logits.sigmoid().numpy(), expected)
        assert set(loaded.tables) == {"user", "item", "shop"}
        with pytest.raises(StoreReadOnly):
            loaded.tables["user"].put([1], np.zeros((1, 8), np.float32))
        assert "model='din'" in repr(loaded)
    assert torch.get_num_threads() == 2
    assert contents(clicks.run) == before


def test_a_version_is_read_with_its_rows_and_weights(
    clicks: Trained, held_out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = rowmill.versions(clicks.run / "store")
    assert len(kept) == 3
    version = kept[0]
    copy = clicks.copy(tmp_path / "copy")
    assert main(["rollback", str(copy), version["name"]]) == 0
    expected = clicks.tested_by_trainer(copy)
    assert expected != clicks.report["test"]
    for named in (version["name"], str(version["number"])):
        found = evaluated(capsys, clicks.run, "--data", held_out, "--version", named)
        assert found == expected
    with rowmill.load(clicks.run, version=version["number"]) as loaded:
        assert loaded.step == version["step"]
        assert np.array_equal(
            loaded.predict(held_out).numpy(), click_scores(clicks.config, copy)[:, 0]
        )
    command = ["predict", str(clicks.run), "--data", str(held_out), "--version", version["name"]]
    assert main([*command, "--out", str(tmp_path / "scores.npy")]) == 0
    scores = np.load(tmp_path / "scores.npy")
    assert scores.dtype == np.float32
    assert np.array_equal(scores, click_scores(clicks.config, copy)[:, 0])
    # Both ways to read all rows give the same ones.
    for run, more in ((clicks.run, ["--version", version["name"]]), (copy, [])):
        assert main(["vectors", str(run), "--out", str(tmp_path / f"{len(more)}"), *more]) == 0
    tables = [pq.read_table(tmp_path / f"{n}" / "item.parquet").sort_by("id") for n in (0, 2)]
    assert tables[0].equals(tables[1])
    assert main(["evaluate", str(clicks.run), "--data", str(held_out), "--version", "step-1"]) == 2
    error = capsys.readouterr().err
    assert version["name"] in error
    assert 'got "step-1"' in error


def test_the_best_version_is_found_by_its_metric(
    clicks: Trained, triples: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    found = rowmill.versions(clicks.run / "store")
    best = max(found, key=lambda version: version["metric"])
    with rowmill.load(clicks.run, version="best") as loaded:
        assert loaded.step == best["step"]
    command = ["kge", "query", str(triples.run), "e1", "r1", "?", "--version", "best"]
    assert main(command) == 2
    assert "has no checkpoint.best" in capsys.readouterr().err


def test_a_checkpoint_that_is_replaced_while_it_is_opened_is_opened_again(
    clicks: Trained, held_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = clicks.copy(tmp_path / "copy")
    opened = Rows.open
    made: list[int] = []

    def open_late(rows: Rows, memory: int | str) -> rowmill.Store:
        if not made:
            with closing(rowmill.open(rows.folder, memory="32MiB")) as store:
                names = store.attachment_names()
                kept = {name: store.attachment(name) or b"" for name in names}
                made.append(store.checkpoint(attachments=kept)["epoch"])
        return opened(rows, memory)

    monkeypatch.setattr(Rows, "open", open_late)
    with rowmill.load(copy) as loaded:
        assert loaded.saved.parts[0].at == made[0]
        assert np.array_equal(
            loaded.predict(held_out).numpy(), click_scores(clicks.config, clicks.run)[:, 0]
        )


def test_a_killed_run_is_used_as_of_its_last_checkpoint(
    clicks: Trained,
    server: ForkServerContext,
    held_out: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = clicks.config
    flags: dict[str, object] = {
        "--data": config.data.path,
        "--schema": config.data.schema,
        "--train-rows": TRAIN_ROWS,
        "--ids": "vocabulary",
        "--model": "din",
        "--dim": 8,
        "--memory": "32MiB",
        "--batch": 64,
        "--checkpoint-every": 2,
        "--threads": 1,
        "--out": tmp_path / "run",
    }
    arguments = ["train", *(str(word) for flag in flags.items() for word in flag)]
    process = fork(server, arguments, tmp_path / "printed", tell=(5, tmp_path / "step"))
    until((tmp_path / "step").exists, process.is_alive)
    process.kill()
    process.join()
    found = evaluated(capsys, tmp_path / "run", "--data", held_out)
    with rowmill.load(tmp_path / "run") as loaded:
        assert loaded.step in (4, 6, 8)
        settings = loaded.config
    killed = replace(clicks, config=settings)
    assert found == killed.tested_by_trainer(tmp_path / "run")


def test_errors_say_what_is_wrong_and_change_nothing(
    clicks: Trained, held_out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "plain"
    with rowmill.open(plain, memory="16MiB") as store:
        store.table("t", dim=2, optimizer=rowmill.optim.SGD(lr=0.1)).put([1], [[1.0, 2.0]])
    bare = tmp_path / "bare.parquet"
    pq.write_table(pq.read_table(held_out).drop_columns(["y", "bought"]), bare)
    lacking = tmp_path / "lacking.parquet"
    pq.write_table(pq.read_table(held_out).drop_columns(["user"]), lacking)
    out, run = tmp_path / "scores.parquet", str(clicks.run)
    (tmp_path / "splits" / "split-3" / "store").mkdir(parents=True)
    before = contents(clicks.run)
    cases = [
        (
            ["evaluate", str(tmp_path / "no"), "--data", held_out],
            "has no checkpoint: give the folder",
        ),
        (["evaluate", plain, "--data", held_out], "names no settings"),
        (["evaluate", run, "--data", bare], "has no column 'y'"),
        (["evaluate", run, "--data", lacking], "has no column 'user'"),
        (["evaluate", run, "--data", tmp_path / "no.parquet"], "no.parquet does not exist"),
        (
            ["evaluate", run, "--data", held_out, "--part", "valid"],
            "--part must be one of all, test",
        ),
        (["evaluate", run, "--data", held_out, "--part", "test"], "has 700 rows, got one of 200"),
        (["evaluate", run, "--data", held_out, "--graph", bare], "needs no graph: drop --graph"),
        (["predict", run, "--data", held_out, "--out", tmp_path / "no" / "s"], "is not a folder"),
        (["predict", run, "--data", lacking, "--out", out], "has no column 'user'"),
        (["kge", "query", run, "a", "b", "?"], "only a knowledge graph"),
        (["evaluate", tmp_path / "splits", "--data", held_out], "such as"),
        (["vectors", plain, "--out", tmp_path / "v"], "names no settings"),
        (["vectors", run, "--out", tmp_path], "exists: remove it"),
    ]
    for arguments, expected in cases:
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == 2, arguments
        assert expected in capsys.readouterr().err, arguments
    assert contents(clicks.run) == before
    assert not out.exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    check_whole(clicks.run / "store")


def test_vectors_are_the_rows_that_exist_with_the_values_of_the_log(
    clicks: Trained, tmp_path: Path
) -> None:
    out = tmp_path / "vectors"
    assert main(["vectors", str(clicks.run), "--out", str(out)]) == 0
    assert len(list(out.iterdir())) == 9
    log = pq.read_table(clicks.data).slice(0, TRAIN_ROWS)
    with rowmill.load(clicks.run) as loaded:
        for name, table in loaded.tables.items():
            rows = pq.read_table(out / f"{name}.parquet")
            ids = rows["id"].to_numpy()
            assert len(np.unique(ids)) == len(ids) == len(table)
            vectors = np.array(rows["vector"].to_pylist(), np.float32)
            assert np.array_equal(vectors, table.get(ids))
            assert np.array_equal(np.load(out / f"{name}.npy"), vectors)
            assert np.array_equal(np.load(out / f"{name}.ids.npy"), ids)
            values = [value for value in rows["value"].to_pylist() if value is not None]
            assert set(values) <= set(log[name].to_pylist())
            assert len(values) == (ids >= 2).sum()


def test_predict_with_rows_of_a_storage_node(clicks: Trained, tmp_path: Path) -> None:
    command = ["predict", str(clicks.run), "--data", str(clicks.data), "--out"]
    assert main([*command, str(tmp_path / "own.npy")]) == 0
    with serving(clicks.run / "store", tmp_path / "node") as (url, _):
        assert main([*command, str(tmp_path / "node.npy"), "--rows", url]) == 0
        assert main([*command, str(tmp_path / "no.npy"), "--access", "access.toml"]) == 2
    own, node = (np.load(tmp_path / f"{name}.npy") for name in ("own", "node"))
    assert np.array_equal(own.view(np.int32), node.view(np.int32))
