"""`rowmill export` and `rowmill predict` give the scores of the trainer; export needs no training data."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import rowmill
from python.tests.partition.runs import CLICK_MODELS, ROWS, TRAIN_ROWS, trained, write_log
from python.tests.ports import free_port
from python.tests.train.configs import quiet
from rowmill.cli import main
from rowmill.distributed import versions_of_ranks
from rowmill.errors import StoreSuperseded
from rowmill.partition import Bundle
from rowmill.partition.transform import apply_transform
from rowmill.saved import evaluate, load
from rowmill.train.dense import multiplies_bf16
from rowmill.train.run import open_trainer, train

if TYPE_CHECKING:
    from pathlib import Path

    from rowmill.config.config import Config


def held_out(folder: Path, *, labels: bool) -> Path:
    """The rows of the trainer's test as a separate file."""
    table = pq.read_table(folder / "log" / "log.parquet").slice(TRAIN_ROWS)
    path = folder / f"test-{labels}.parquet"
    pq.write_table(table if labels else table.drop_columns(["y", "bought"]), path)
    return path


def trainer_scores(config: Config) -> torch.Tensor:
    """The scores of the trainer's test, [rows, T]."""
    with open_trainer(
        replace(config, train=replace(config.train, resume=True)), quiet()
    ) as trainer:
        task = trainer.task
        found: list[torch.Tensor] = []
        own = task.predict

        def kept(batch: Any) -> torch.Tensor:
            found.append(own(batch))
            return found[-1]

        task.predict = kept
        task.test()
    return torch.cat(found).reshape(ROWS - TRAIN_ROWS, -1).sigmoid()


def predicted(run: Path, data: Path, out: Path) -> pa.Table:
    assert main(["predict", str(run), "--data", str(data), "--out", str(out)]) == 0
    return pq.read_table(out)


def scores_of(table: pa.Table) -> torch.Tensor:
    names = [name for name in table.column_names if name.startswith("score")]
    return torch.from_numpy(np.stack([table[name].to_numpy() for name in names], axis=1))


@pytest.mark.parametrize("kind", CLICK_MODELS)
def test_predict_and_the_bundle_give_the_scores_of_the_trainer(kind: str, tmp_path: Path) -> None:
    config = trained(tmp_path, kind)
    expected = trainer_scores(config)
    data, unlabelled = held_out(tmp_path, labels=True), held_out(tmp_path, labels=False)
    table = predicted(tmp_path / "run", data, tmp_path / "scores.parquet")
    scores = scores_of(table)
    assert torch.equal(scores, expected)
    tasks = ["bought"] if kind == "mt_wide_deep" else []
    assert table.column_names == ["score", *(f"score_{t}" for t in tasks), "y", *tasks]
    assert table["y"].to_pylist() == pq.read_table(data)["y"].to_pylist()
    bare = predicted(tmp_path / "run", unlabelled, tmp_path / "bare.parquet")
    assert bare.column_names == table.column_names[: 1 + len(tasks)]
    assert torch.equal(scores_of(bare), expected)

    (tmp_path / "log").rename(tmp_path / "moved")  # Export needs no training data.
    bundle = tmp_path / "bundle"
    assert main(["export", str(tmp_path / "run"), "--out", str(bundle)]) == 0
    assert not list(bundle.glob("cpu.pt2")), "the CPU half is a plan"
    transform = json.loads((bundle / "transform.json").read_text())
    with Bundle.open(bundle) as opened:
        assert opened.manifest["notes"] == []
        inputs = apply_transform(transform, pq.read_table(unlabelled))
        assert set(inputs) == {named["name"] for named in opened.signature["inputs"]}
        (answer,) = opened.run(inputs)
        difference = (answer.reshape(scores.shape) - scores).abs().max()
        assert difference <= 1e-6
        one = {name: value[3:4] for name, value in inputs.items()}
        (answer,) = opened.run(one)
        assert (answer.reshape(1, -1) - scores[3:4]).abs().max() <= 1e-6
    per = {named["name"]: named["per"] for named in opened.signature["inputs"]}
    assert per.get("lengths", "user") == "user"
    assert per["ids"] == "item"
    # Only weights: rows of a bundle have no optimizer state.
    files = [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert files == []


def test_a_version_becomes_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path, "ffnn", checkpoint__versions=3, train__checkpoint_every=3)
    run, data = tmp_path / "run", held_out(tmp_path, labels=True)
    first, *_, last = rowmill.versions(run / "store")
    bundles = {version["name"]: tmp_path / version["name"] for version in (first, last)}
    answers: list[torch.Tensor] = []
    for name, bundle in bundles.items():
        assert main(["export", str(run), "--out", str(bundle), "--version", name]) == 0
        with load(run, version=name) as at_version, Bundle.open(bundle) as opened:
            scores = at_version.predict(data)
            transform = json.loads((bundle / "transform.json").read_text())
            (answer,) = opened.run(apply_transform(transform, pq.read_table(data)))
        assert (answer.reshape(scores.shape) - scores).abs().max() <= 1e-6
        answers.append(answer)
    assert (answers[0] - answers[1]).abs().max() > 1e-4
    command = ["export", str(run), "--out", str(tmp_path / "none"), "--version", "step-1"]
    assert main(command) == 2
    assert first["name"] in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("ids", ["full", "hash"])
def test_every_id_mapping_can_be_exported(ids: str, tmp_path: Path) -> None:
    config = trained(tmp_path, "dlrm", data__ids=ids, data__buckets=30)
    scores = scores_of(
        predicted(tmp_path / "run", held_out(tmp_path, labels=True), tmp_path / "s.parquet")
    )
    assert torch.equal(scores, trainer_scores(config))
    assert main(["export", str(tmp_path / "run" / "store"), "--out", str(tmp_path / "b")]) == 0
    transform = json.loads((tmp_path / "b" / "transform.json").read_text())
    with Bundle.open(tmp_path / "b") as opened:
        (answer,) = opened.run(
            apply_transform(transform, pq.read_table(held_out(tmp_path, labels=True)))
        )
    assert (answer - scores[:, 0]).abs().max() <= 1e-6


@pytest.mark.skipif(not multiplies_bf16(), reason="this processor has no bfloat16 instructions")
@pytest.mark.parametrize("precision", ["bf16", "split-bf16"])
@pytest.mark.parametrize("dtype", ["bf16", "split-bf16"])
def test_bfloat16_runs_can_be_exported(precision: str, dtype: str, tmp_path: Path) -> None:
    config = trained(
        tmp_path,
        "dlrm",
        train__precision=precision,
        train__dense_optimizer="adagrad",
        rows__dtype=dtype,
    )
    scores = scores_of(
        predicted(tmp_path / "run", held_out(tmp_path, labels=True), tmp_path / "s.parquet")
    )
    assert torch.equal(scores, trainer_scores(config))
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "b")]) == 0
    transform = json.loads((tmp_path / "b" / "transform.json").read_text())
    with Bundle.open(tmp_path / "b") as opened:
        (answer,) = opened.run(
            apply_transform(transform, pq.read_table(held_out(tmp_path, labels=True)))
        )
    assert (answer - scores[:, 0]).abs().max() <= 2**-7


def test_the_files_of_a_run_are_written_once_and_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = trained(tmp_path, "dlrm")
    store = tmp_path / "run" / "store"
    files = sorted(store.glob("run-*.json"))
    assert len(files) == 3
    before = {file: file.stat().st_mtime_ns for file in files}
    resumed = replace(config, train=replace(config.train, resume=True, epochs=2))
    train(resumed, quiet())
    assert {file: file.stat().st_mtime_ns for file in files} == before
    # Other settings give another file; schema and vocabulary are the same.
    assert len(list(store.glob("run-*.json"))) == 4
    out = ["--out", str(tmp_path / "b")]
    arguments = ["export", str(tmp_path / "run"), *out]
    for damage in ("absent", "changed"):
        for file in files:
            kept = file.read_bytes()
            if damage == "absent":
                file.unlink()
            else:
                file.write_bytes(kept + b" ")
            code = main(arguments)
            error = capsys.readouterr().err
            # No checkpoint refers to the settings of the first one any more.
            assert (code, file.name in error) in ((1, True), (0, False))
            if code == 0:
                assert b'"epochs": 1' in kept
                shutil.rmtree(tmp_path / "b")
            file.write_bytes(kept)
    assert main(arguments) == 0
    assert main(arguments) == 2
    assert "b exists: remove it, or give another path" in capsys.readouterr().err


def test_errors_name_file_row_and_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, "dlrm")
    data, out = held_out(tmp_path, labels=True), tmp_path / "s.parquet"
    table = pq.read_table(data)

    def error(change: pa.Table) -> str:
        pq.write_table(change, tmp_path / "bad.parquet")
        arguments = ["predict", str(tmp_path / "run"), "--data", str(tmp_path / "bad.parquet")]
        assert main([*arguments, "--out", str(out)]) == 2
        assert not out.exists()
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
        return capsys.readouterr().err

    prices = table["price"].to_pylist()
    prices[7] = float("inf")
    at = table.column_names.index("price")
    assert "bad.parquet, row 7 (from 0): 'price' is infinite" in error(
        table.set_column(at, "price", pa.array(prices, pa.float32()))
    )
    assert "has no column 'user'" in error(table.drop_columns(["user"]))
    assert "bad.parquet, row 0 (from 0): id column 'user' must hold 64-bit integers" in error(
        table.set_column(table.column_names.index("user"), "user", table["user"].cast(pa.string()))
    )
    assert main(["predict", str(tmp_path), "--data", str(data), "--out", str(out)]) == 2
    assert "has no checkpoint: give the folder" in capsys.readouterr().err
    out.touch()
    assert main(["predict", str(tmp_path / "run"), "--data", str(data), "--out", str(out)]) == 2
    assert "exists: remove it" in capsys.readouterr().err


def test_rows_of_a_later_checkpoint_are_not_mixed_with_earlier_weights(tmp_path: Path) -> None:
    trained(tmp_path, "dlrm")
    data = held_out(tmp_path, labels=False)
    before = scores_of(predicted(tmp_path / "run", data, tmp_path / "before.parquet"))
    with load(tmp_path / "run") as loaded:
        with rowmill.open(loaded.folder, memory="64MiB") as store:
            for name in store.table_names():
                table = store.open_table(name)
                for ids, weights in list(table.scan()):
                    table.put(ids, weights + 1)
            store.checkpoint()
        try:
            found = [scored.scores for scored in loaded.scored(data)]
        except StoreSuperseded:
            return
    assert torch.equal(torch.from_numpy(np.concatenate(found)).reshape(-1, 1), before)


def test_a_restored_run_can_be_exported(tmp_path: Path) -> None:
    trained(tmp_path, "ffnn")
    url = (tmp_path / "copies").as_uri()
    assert main(["push", str(tmp_path / "run" / "store"), url]) == 0
    assert main(["restore", url, str(tmp_path / "restored")]) == 0
    assert main(["export", str(tmp_path / "restored"), "--out", str(tmp_path / "bundle")]) == 0
    data = held_out(tmp_path, labels=False)
    there = predicted(tmp_path / "run", data, tmp_path / "there.parquet")
    here = predicted(tmp_path / "restored", data, tmp_path / "here.parquet")
    assert torch.equal(scores_of(here), scores_of(there))


def test_rows_of_two_ranks_are_merged(tmp_path: Path) -> None:
    write_log(tmp_path / "log", "din")
    log = tmp_path / "log"
    flags = {
        "--data": log / "log.parquet",
        "--schema": log / "schema.toml",
        "--train-rows": TRAIN_ROWS,
        "--ids": "vocabulary",
        "--model": "din",
        "--dim": 8,
        "--memory": "64MiB",
        "--out": tmp_path / "run",
        "--threads": 1,
        "--batch": 64,
        "--checkpoint-every": 4,
        "--versions": 2,
        "--placement": "rows,user=replicated,item=whole",
    }
    command = [sys.executable, "-m", "rowmill", "train", *map(str, chain(*flags.items()))]
    ranks = {
        **os.environ,
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    running = [
        subprocess.Popen(command, env={**ranks, "RANK": str(rank)}, stdout=subprocess.DEVNULL)
        for rank in range(2)
    ]
    assert [process.wait() for process in running] == [0, 0]
    data = held_out(tmp_path, labels=True)
    table = predicted(tmp_path / "run", data, tmp_path / "scores.parquet")
    scores = scores_of(table)
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "bundle")]) == 0
    transform = json.loads((tmp_path / "bundle" / "transform.json").read_text())
    with Bundle.open(tmp_path / "bundle") as opened:
        (answer,) = opened.run(apply_transform(transform, pq.read_table(data)))
    assert torch.allclose(answer, scores[:, 0], rtol=0, atol=1e-6)
    labels = torch.tensor(table["y"].to_pylist(), dtype=torch.float64)
    logloss = torch.nn.functional.binary_cross_entropy(scores[:, 0].double(), labels)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert float(logloss) == pytest.approx(report["test"]["logloss"], rel=1e-6)
    # The figures of the trainer, up to the rounding of halves of batches.
    found = evaluate(tmp_path / "run", data)[0]
    assert found == pytest.approx(report["test"], rel=1e-6)
    # Versions of all ranks, and the rows of all ranks as vectors.
    versions = versions_of_ranks(tmp_path / "run" / "store")
    assert [version["step"] for version in versions] == [4, 8]
    with load(tmp_path / "run", version="step-4", scratch=tmp_path) as early:
        assert early.step == 4
        rows = {name: len(table) for name, table in early.tables.items()}
        before = early.predict(data)
    assert not torch.equal(before, scores[:, 0])
    # Both ranks have the users.
    assert sum(rows.values()) + rows["user"] == versions[0]["rows"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    command = ["vectors", str(tmp_path / "run"), "--out", str(tmp_path / "early")]
    assert main([*command, "--version", "step-4"]) == 0
    for name, count in rows.items():
        ids = np.load(tmp_path / "early" / f"{name}.ids.npy")
        assert len(ids) == len(np.unique(ids)) == count
    assert main(["rollback", str(tmp_path / "run"), "step-4"]) == 0
    with load(tmp_path / "run") as rolled_back:
        assert torch.equal(rolled_back.predict(data), before)
