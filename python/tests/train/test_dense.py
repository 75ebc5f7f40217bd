"""Dense layers in bfloat16: with float32 weights, and with split weights.

Metrics change little, and resuming changes no bit. A run refuses bfloat16 on a processor without bfloat16 instructions,
because it would be slower with the same results; these tests run anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from python.tests.train.configs import Make, quiet
from rowmill.config import ConfigError
from rowmill.ctr.settings import GenerateConfig
from rowmill.optim import SplitSGD
from rowmill.train import dense, train
from rowmill.train.run import open_trainer
from rowmill.train.state import dense_state

if TYPE_CHECKING:
    from rowmill.train.run import Trainer

LOG = GenerateConfig(rows=6_000, seed=1, rows_per_table=2_000)
SETTINGS = {"train__batch": 128, "train__dense_optimizer": "adagrad", "train__dense_lr": 0.01}


@pytest.fixture(autouse=True)
def _any_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "multiplies_bf16", lambda: True)


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in dense_state(trainer.task.model).items()}


def test_metrics_are_close_to_float32(make: Make) -> None:
    reports = {
        precision: train(make(precision, train__precision=precision, rows__dtype=rows), quiet())
        for precision, rows in (("fp32", "fp32"), ("bf16", "fp32"), ("split-bf16", "split-bf16"))
    }
    exact = reports.pop("fp32")
    assert exact["test"]["auc"] > 0.6
    for report in reports.values():
        # Of 1,200 test rows: the AUC of another sample of that size would differ as much.
        assert abs(report["test"]["auc"] - exact["test"]["auc"]) < 0.03
        assert abs(report["test"]["logloss"] - exact["test"]["logloss"]) < 0.02
        assert report["test"] != exact["test"]


@pytest.mark.parametrize("optimizer", ["adagrad", "sgd"])
def test_a_run_with_split_weights_resumes_to_the_same_bits(make: Make, optimizer: str) -> None:
    flags = {
        "train__precision": "split-bf16",
        "train__dense_optimizer": optimizer,
        "train__dense_decay_from": 1.0,
        "rows__dtype": "split-bf16",
    }
    found = []
    for name, epochs in (("straight", [2]), ("parts", [1, 2])):
        for part, count in enumerate(epochs):
            config = make(name, **flags, train__epochs=count, train__resume=part > 0)
            report = train(config, quiet())
        with open_trainer(make(name, **flags, train__epochs=2, train__resume=True), quiet()) as one:
            assert all(
                weight.dtype == torch.bfloat16
                for group in one.task.optimizer.param_groups
                for weight in group["params"]
            )
            found.append((report["test"], weights(one), one.task.optimizer.state_dict()["state"]))
    straight, parts = found
    assert straight[0] == parts[0]
    for one, other in zip(straight[1].values(), parts[1].values(), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(straight[2].values(), parts[2].values(), strict=True):
        assert one["lower"].any()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_precision_selects_split_or_plain_weights(make: Make) -> None:
    config = make("sgd", train__precision="split-bf16", train__dense_optimizer="sgd")
    with open_trainer(config, quiet()) as trainer:
        assert isinstance(trainer.task.optimizer, SplitSGD)
        assert {value.dtype for value in weights(trainer).values()} == {torch.bfloat16}
    with open_trainer(make("bf16", train__precision="bf16"), quiet()) as trainer:
        assert isinstance(trainer.task.optimizer, torch.optim.Adagrad)
        assert {value.dtype for value in weights(trainer).values()} == {torch.float32}
        trainer.train_step(next(iter(trainer.ahead(0))))


@pytest.mark.parametrize("setting", ["train__precision", "train__dense_optimizer"])
def test_resume_refuses_another_precision(make: Make, setting: str) -> None:
    with open_trainer(make(), quiet()) as trainer:
        trainer.save()
    other = {"train__precision": "bf16", "train__dense_optimizer": "sgd"}[setting]
    said = setting.replace("__", r"\.")
    with (
        pytest.raises(ConfigError, match=rf"cannot resume: {said} was '\w+' and is '{other}'"),
        open_trainer(make(**{setting: other}, train__resume=True), quiet()),
    ):
        pass


def test_unsupported_optimizers_and_processors_are_refused(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="'split-bf16' needs --dense-optimizer adagrad or sgd"):
        make(train__precision="split-bf16", train__dense_optimizer="adam")
    with pytest.raises(
        ConfigError, match=r"dense_optimizer applies only to --task ctr; remove it for --task kge"
    ):
        make(train__task="kge")
    for task, precision, takes in (("kge", "split-bf16", "fp32 or bf16"), ("gnn", "bf16", "fp32")):
        flags = {"train__dense_optimizer": "adam", "train__precision": precision}
        with pytest.raises(
            ConfigError,
            match=f"train.precision must be {takes} for --task {task}, got '{precision}'",
        ):
            make(train__task=task, **flags)
    monkeypatch.setattr(dense, "multiplies_bf16", lambda: False)
    for precision in ("bf16", "split-bf16"):
        with (
            pytest.raises(ConfigError, match=rf"'{precision}' needs .* AVX512-BF16 or AMX"),
            open_trainer(make(train__precision=precision), quiet()),
        ):
            pass
