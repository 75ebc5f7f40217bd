"""Every click model in the trainer: compared with plain torch, resumed, with steps in flight, and with unsuitable data.

Logs are small and generated; one test uses real interactions if they are available.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console

from rowmill.cli import main
from rowmill.config import Config, ConfigError, load_config
from rowmill.ctr.data.sequences import make_sequences
from rowmill.ctr.metrics import ListMetrics
from rowmill.ctr.settings import SequencesConfig
from rowmill.train import dense, train
from rowmill.train.run import open_trainer

if TYPE_CHECKING:
    from pathlib import Path

KINDS = ["ffnn", "dcn_v2", "wide_deep", "mt_wide_deep", "ncf", "two_tower", "din", "dien", "bst"]
Make = Callable[..., Config]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sequences")
    make_sequences(folder, SequencesConfig(users=60, items=80, events=20, places=5, candidates=20))
    return folder


@pytest.fixture
def make(log: Path, tmp_path: Path) -> Make:
    def make_config(kind: str, name: str = "run", **flags: Any) -> Config:
        values: dict[tuple[str, str], Any] = {
            ("data", "path"): log,
            ("model", "kind"): kind,
            ("model", "deep"): [16, 8],
            ("model", "attention"): [8],
            ("model", "dim"): 8,
            ("train", "out"): tmp_path / name,
            ("train", "threads"): 1,
            ("train", "batch"): 128,
            ("train", "checkpoint_every"): 0,
            ("store", "memory"): "128MiB",
        }
        for key, value in flags.items():
            section, _, entry = key.partition("__")
            values[section, entry] = value
        return load_config(None, values)

    return make_config


def quiet() -> Console:
    return Console(file=io.StringIO())


def losses(config: Config, steps: int) -> list[float]:
    with open_trainer(config, quiet()) as trainer:
        stream = trainer.ahead(0)
        return [
            float(trainer.train_step(batch)) for _, batch in zip(range(steps), stream, strict=False)
        ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ids", ["full", "vocabulary"])
def test_a_model_trains_as_in_plain_torch(make: Make, kind: str, ids: str) -> None:
    stored = losses(make(kind, data__ids=ids), 12)
    plain = losses(make(kind, "plain", train__plain=True, data__ids=ids), 12)
    assert np.allclose(stored, plain, rtol=0, atol=1e-5)
    assert abs(stored[-1] - stored[0]) > 1e-3, "the loss must change"


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_trains_in_bfloat16_as_in_float32(
    make: Make, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    # Other processors compute the same, but slower.
    monkeypatch.setattr(dense, "multiplies_bf16", lambda: True)
    flags = {"train__dense_optimizer": "adagrad", "train__dense_lr": 0.01}
    exact = losses(make(kind, **flags), 12)
    for precision, dtype in (("bf16", "fp32"), ("split-bf16", "split-bf16")):
        if kind == "bst" and precision == "split-bf16":
            with pytest.raises(ConfigError, match=r"does not work with model\.kind = 'bst'"):
                make(kind, precision, train__precision=precision, **flags)
            continue
        config = make(kind, precision, train__precision=precision, rows__dtype=dtype, **flags)
        found = losses(config, 12)
        assert np.allclose(found, exact, rtol=0, atol=0.02)
        assert found != exact


@pytest.mark.parametrize("kind", ["dien", "two_tower"])
def test_a_model_over_histories_resumes_with_the_same_bits(make: Make, kind: str) -> None:
    whole = train(make(kind, "whole", train__epochs=2), quiet())
    train(make(kind, train__epochs=1, train__dense_decay_from=1.0), quiet())
    straight = train(make(kind, "two", train__epochs=2, train__dense_decay_from=1.0), quiet())
    resumed = train(
        make(kind, train__epochs=2, train__dense_decay_from=1.0, train__resume=True), quiet()
    )
    assert resumed["test"] == straight["test"]
    assert set(whole["test"]) == {"auc", "logloss", "ne", "hr_at_10", "ndcg_at_10"}


def test_resume_refuses_another_history(make: Make, log: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.toml"
    text = 'label = "label"\ndense = []\nids = ["user", "item"]\nplaces = {}\n[histories]\nitem = "items_before"\n'
    flags = {"data__schema": schema, "data__train_rows": 500}
    schema.write_text(text.format(3))
    train(make("din", **flags), quiet())
    schema.write_text(text.format(4))
    with pytest.raises(ConfigError, match="cannot resume: histories was"):
        train(make("din", train__resume=True, **flags), quiet())


def test_steps_in_flight_do_not_change_results_with_histories(make: Make) -> None:
    alone = train(make("din"), quiet())
    flying = train(make("din", "flying", train__in_flight=4, store__lookahead=0), quiet())
    assert flying["test"] == alone["test"]


def test_further_tasks_have_their_own_metrics(make: Make) -> None:
    test = train(make("mt_wide_deep"), quiet())["test"]
    assert {"auc", "auc_liked", "hr_at_10"} <= set(test)
    assert "auc_liked" not in train(make("wide_deep", "one"), quiet())["test"]


def test_ranks_of_lists_count_half_of_ties() -> None:
    metrics = ListMetrics(12)
    logits = torch.arange(12.0).repeat(3, 1)
    labels = torch.zeros(3, 12)
    labels[0, 11] = labels[1, 2] = labels[2, 0] = 1  # Ranks 1, 10 and 12.
    logits[2] = 0.5  # All are equal: rank 6.5.
    metrics.update(logits.view(-1)[:17], labels.view(-1)[:17])
    metrics.update(logits.view(-1)[17:], labels.view(-1)[17:])
    gains = [1 / np.log2(1 + rank) for rank in (1, 10, 6.5)]
    assert metrics.compute() == pytest.approx({"hr_at_10": 1.0, "ndcg_at_10": np.mean(gains)})
    metrics.update(torch.zeros(5), torch.zeros(5))
    with pytest.raises(ValueError, match="end inside a list of 12"):
        metrics.compute()
    with pytest.raises(ValueError, match="must have exactly one click"):
        metrics.update(torch.zeros(7), torch.zeros(7))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"kind": "dlrm"}, "model.kind = 'dlrm' needs numeric columns, but the log has none"),
        ({"kind": "ncf", "model__dim": 5}, "model.dim = 5, .* two vectors .* use --dim 6"),
        ({"kind": "wide_deep", "model__dim": 1}, "model.dim = 1, .* use --dim 2"),
        (
            {"kind": "bst", "model__heads": 3},
            "model.heads must divide the width of an item vector, 8, got 3",
        ),
        (
            {"kind": "din", "data__train_rows": 100},
            r"data.train_rows = 100, but the log of sequences .* drop",
        ),
    ],
)
def test_errors_of_models_and_settings_that_contradict(
    make: Make, flags: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said), open_trainer(make(**flags), quiet()):
        pass


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (
            "din",
            r"'din' needs a history, but the log has none: name its column under \[histories\]",
        ),
        (
            "two_tower",
            r"'two_tower' needs id columns of items .* \(now \[\] of \['a', 'b', 'c'\]\)",
        ),
        ("ncf", "'ncf' takes 2 id columns, user and item, but the log has 3"),
        ("mt_wide_deep", "'mt_wide_deep' needs at least 2 labels, but the log has 1"),
    ],
)
def test_errors_of_models_and_logs_that_contradict(
    make: Make, tmp_path: Path, kind: str, said: str
) -> None:
    columns = ("label", "x", "a", "b", "c")
    pq.write_table(pa.table({name: [0, 1] * 20 for name in columns}), tmp_path / "log.parquet")
    (tmp_path / "s.toml").write_text('label = "label"\ndense = ["x"]\nids = ["a", "b", "c"]\n')
    flags = {"data__path": tmp_path / "log.parquet", "data__schema": tmp_path / "s.toml"}
    with pytest.raises(ConfigError, match=said), open_trainer(make(kind, **flags), quiet()):
        pass


def test_two_sections_that_generate_data_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"\[generate\] and \[sequences\] both write data\.path"):
        load_config(None, {("generate", "rows"): 10, ("sequences", "users"): 10})


def test_the_commands_make_sequences_and_train_on_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, out = str(tmp_path / "log"), str(tmp_path / "run")
    words = ["--users", "20", "--items", "40", "--events", "8", "--candidates", "20"]
    assert main(["data", "sequences", "--out", log, *words]) == 0
    assert "sequences.json" in capsys.readouterr().out
    assert main(["train", "--data", log, "--model", "din", "--out", out, "--threads", "1"]) == 0
    assert "test HR@10" in capsys.readouterr().out
    assert "Test HR@10" in (tmp_path / "run/report.html").read_text()
    assert main(["data", "sequences", "--out", log, "--places", "0"]) == 2
    assert "sequences.places must be" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["train_rows", "candidates"])
def test_incomplete_lists_are_an_error_before_training(
    make: Make, log: Path, tmp_path: Path, key: str
) -> None:
    shutil.copytree(log, tmp_path / "part")
    sidecar = tmp_path / "part/sequences.json"
    content = json.loads(sidecar.read_text())
    content[key] += 1_000_000
    sidecar.write_text(json.dumps(content))
    config = make("din", data__path=tmp_path / "part")
    with pytest.raises(ConfigError, match="a file is missing or incomplete; make the log again"):
        train(config, quiet())
    assert not config.train.out.exists(), "no output folder was made"


def test_real_interactions_train_as_in_plain_torch(
    make: Make, tmp_path: Path, shared_data: Path
) -> None:
    path = shared_data / "ml-100k/ml-100k.inter"
    if not path.is_file():
        pytest.skip(f"no {path}: set ROWMILL_DATA to the folder of real data")
    make_sequences(tmp_path / "ml", SequencesConfig(interactions=path, negatives=2))
    flags = {"data__path": tmp_path / "ml", "train__batch": 2048, "rows__lr": 0.1}
    stored = train(make("two_tower", **flags), quiet())["test"]
    plain = train(make("two_tower", "plain", train__plain=True, **flags), quiet())["test"]
    assert stored["hr_at_10"] > 0.25
    assert stored["hr_at_10"] == pytest.approx(plain["hr_at_10"], abs=0.02)
    assert stored["auc"] == pytest.approx(plain["auc"], abs=0.005)
