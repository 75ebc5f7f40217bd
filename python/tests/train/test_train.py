"""Training end to end: compared with plain torch, with hardly any memory, and interrupted.

The store must not change any number: not by the placement of rows, not by prefetching, not by closing and reopening. Plain
torch updates the same model in the same order, but sums in another order, so losses agree within 1e-5.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from python.tests.train.configs import Make, quiet
from python.tests.train.cut_off import CutOffError
from rowmill import optim
from rowmill.config import Config, ConfigError, load_config
from rowmill.ctr.settings import GenerateConfig
from rowmill.optim.specs import optimizer_to_dict
from rowmill.train import train
from rowmill.train.progress import RunProgress
from rowmill.train.report import figures_of
from rowmill.train.run import Trainer, open_trainer

if TYPE_CHECKING:
    from pathlib import Path

LOG = GenerateConfig(rows=6_000, seed=1, rows_per_table=2_000)
SETTINGS = {"train__batch": 128}


def losses(trainer: Trainer, steps: int) -> list[float]:
    stream = trainer.ahead(0)
    return [
        float(trainer.train_step(batch)) for _, batch in zip(range(steps), stream, strict=False)
    ]


def fit(trainer: Trainer, out: Path) -> None:
    with RunProgress(
        quiet(), out / "events", figures=figures_of({"train": {}, "data": {}}), total=1, done=0
    ) as progress:
        trainer.fit(progress)


def all_rows(trainer: Trainer) -> dict[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Weights and optimizer state of every table, ordered by id."""
    found = {}
    for table in trainer.rows.tables:
        ids = np.sort(np.concatenate([ids for ids, _ in table.scan()]))
        found[table.name] = (ids, np.concatenate([table.get(ids), table.get_state(ids)], axis=1))
    return found


def same_rows(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, (ids, values) in one.items():
        np.testing.assert_array_equal(ids, other[name][0])
        np.testing.assert_array_equal(values.view(np.int32), other[name][1].view(np.int32))


@pytest.mark.parametrize("optimizer", ["adagrad", "sgd"])
@pytest.mark.parametrize("model", ["dlrm", "dcn_v2", "ffnn"])
def test_losses_agree_with_plain_torch(make: Make, model: str, optimizer: str) -> None:
    rate = 0.02 if optimizer == "adagrad" else 0.5
    settings = {"model__kind": model, "rows__optimizer": optimizer, "rows__lr": rate}
    with open_trainer(make("stored", **settings), quiet()) as stored:
        ours = losses(stored, 50)
    with open_trainer(make("plain", train__plain=True, **settings), quiet()) as plain:
        theirs = losses(plain, 50)
    assert ours[0] != ours[-1]
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def test_rows_change_with_and_without_a_store(make: Make) -> None:
    with open_trainer(make(), quiet()) as trainer:
        losses(trainer, 5)
        for table in trainer.rows.tables[:3]:
            ids, weights = next(table.scan())
            assert len(ids) > 0
            assert abs(weights).max() > 0.01


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"eps": 1e-6, "initial_accumulator": 0.1}, optim.Adagrad(0.5, 1e-6, 0.1)),
        ({"momentum": 0.8, "nesterov": True}, optim.MomentumSGD(0.5, 0.8, nesterov=True)),
        ({"beta1": 0.8}, optim.RowwiseAdam(0.5, beta1=0.8)),
        ({"beta": 0.5, "l1": 0.01, "l2": 0.1}, optim.FTRL(0.5, 0.5, 0.01, 0.1)),
        ({}, optim.FTRL(0.5)),
    ],
)
def test_rows_use_the_optimizer_of_the_settings(
    make: Make, tmp_path: Path, parameters: dict[str, Any], expected: optim.OptimizerSpec
) -> None:
    kind = optimizer_to_dict(expected)["kind"]
    lines = [f"{key} = {json.dumps(value)}" for key, value in parameters.items()]
    file = tmp_path / "run.toml"
    file.write_text("\n".join(["[rows]", f'optimizer = "{kind}"', "lr = 0.5", *lines]))
    rows = load_config(file).rows
    with open_trainer(replace(make(), rows=rows), quiet()) as trainer:
        losses(trainer, 3)
        for table in trainer.rows.tables:
            assert table.optimizer == expected
            ids, _ = next(table.scan())
            assert (table.get_state(ids) != table.get_state([-1])).any(axis=1).mean() > 0.5


def test_hardly_any_memory_and_any_lookahead_change_no_bit(make: Make) -> None:
    results = []
    for name, flags in {
        "all": {},
        "tenth": {"store__row_memory": "512KiB"},
        "tenth, blind": {"store__row_memory": "512KiB", "store__lookahead": 0},
        "tenth, far": {"store__row_memory": "512KiB", "store__lookahead": 20},
    }.items():
        config = make(name, **flags)
        with open_trainer(config, quiet()) as trainer:
            fit(trainer, config.train.out)
            results.append((trainer.test(), all_rows(trainer)))
            summary = trainer.report(trainer.test())["run"]
            if name != "all":
                assert summary["device_blocks_read"] > 1000, "rows must have been evicted"
    for test, rows in results[1:]:
        assert test == results[0][0]
        same_rows(rows, results[0][1])


def test_a_run_stopped_at_any_step_resumes_to_the_same_bits(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"train__checkpoint_every": 10, "train__epochs": 2, "store__row_memory": "1MiB"}
    settings["train__batch"] = 300
    whole = make("whole", **settings)
    with open_trainer(whole, quiet()) as trainer:
        fit(trainer, whole.train.out)
        expected = (trainer.test(), all_rows(trainer), dense(trainer))
        curve = trainer.state.curve
    # Before the first checkpoint, just after one, between two, and in the second epoch.
    for cut in (4, 11, 15, 27):
        config = make(f"cut {cut}", **settings)
        cut_off(config, cut, monkeypatch)
        again = make(f"cut {cut}", train__resume=True, **settings)
        with open_trainer(again, quiet()) as trainer:
            assert trainer.state.step == cut // 10 * 10
            fit(trainer, again.train.out)
            assert trainer.test() == expected[0]
            same_rows(all_rows(trainer), expected[1])
            for name, weight in dense(trainer).items():
                assert torch.equal(weight, expected[2][name]), name
            measured = [
                (point["step"], point["rows"], point["logloss"]) for point in trainer.state.curve
            ]
            assert measured == [(point["step"], point["rows"], point["logloss"]) for point in curve]


def cut_off(config: Config, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run `steps` steps, then fail inside the next one, after its backward pass."""
    with open_trainer(config, quiet()) as trainer, monkeypatch.context() as patched:
        original = trainer.optimizer.step

        def step() -> None:
            if trainer.state.step == steps:
                raise CutOffError
            original()

        patched.setattr(trainer.optimizer, "step", step)
        with pytest.raises(CutOffError):
            fit(trainer, config.train.out)


def dense(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {
        name: weight.detach().clone()
        for name, weight in trainer.task.model.named_parameters()
        if not name.startswith("embeddings")
    }


def test_resuming_another_run_is_refused(make: Make) -> None:
    settings = {"train__checkpoint_every": 5, "data__train_rows": 1280}
    with open_trainer(make(**settings), quiet()) as trainer:
        fit(trainer, trainer.config.train.out)
    for change, name in [
        ({"train__batch": 64}, r"train\.batch was 128 and is 64"),
        ({"data__train_rows": 640}, "train rows was 1280 and is 640"),
        ({"model__top": [7]}, r"model\.top was"),
    ]:
        with (
            pytest.raises(ConfigError, match=name),
            open_trainer(make(train__resume=True, **{**settings, **change}), quiet()),
        ):
            pass


def test_a_finished_run_resumes_to_its_report(make: Make) -> None:
    first = train(make(data__train_rows=2560), quiet())
    again = train(make(data__train_rows=2560, train__resume=True), quiet())
    assert again["test"] == first["test"]
    assert again["run"]["steps"] == first["run"]["steps"] == 20
    assert again["curve"] == first["curve"]


def test_a_given_store_must_be_empty(make: Make, tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/LOCK").touch()
    with pytest.raises(ConfigError, match="is not empty: pass --resume"):
        train(make(store__path=tmp_path / "rows", data__train_rows=256), quiet())


def test_each_batch_is_announced_once_in_order(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make(store__lookahead=3, data__train_rows=128 * 8)
    with open_trainer(config, quiet()) as trainer:
        announced: list[torch.Tensor] = []
        ahead: list[int] = []

        def announce(ids: torch.Tensor, *, steps: int) -> None:
            announced.append(ids)
            ahead.append(steps)

        monkeypatch.setattr(trainer.rows, "lookahead", announce)
        seen = []
        for batch in trainer.ahead(0):
            seen.append(batch.ids)
            # The store knows at most three batches after this one, and exactly three while there are enough.
            assert len(announced) == min(len(seen) + 2, 7)
        assert ahead == [2, 3, 4, 4, 4, 4, 4], "batch 1 is announced before batch 0 begins"
        plain = trainer.ahead(0)
        assert all(torch.equal(a, b.ids) for a, b in zip(seen, plain, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(announced[:7], seen[1:], strict=True))


def test_a_step_makes_one_store_call_forward_and_one_backward(make: Make) -> None:
    with open_trainer(make(), quiet()) as trainer:
        losses(trainer, 1)
        before = trainer.rows.store.stats()
        losses(trainer, 3)
        after = trainer.rows.store.stats()
    assert after["calls"] - before["calls"] == 3
    assert after["updates"] - before["updates"] == 3


def test_evaluation_inserts_no_rows(make: Make) -> None:
    with open_trainer(make(data__train_rows=1000), quiet()) as trainer:
        losses(trainer, 7)
        before = {table.name: len(table) for table in trainer.rows.tables}
        trainer.test()
        assert {table.name: len(table) for table in trainer.rows.tables} == before


@pytest.mark.parametrize("way", ["hash", "vocabulary"])
def test_all_id_mappings_train(make: Make, way: str) -> None:
    config = make(data__ids=way, data__buckets=1000, data__train_rows=2560)
    report = train(config, quiet())
    assert report["run"]["live_rows"] > 1000
    assert report["test"]["auc"] is not None


def test_bf16_and_split_rows_learn_as_well(make: Make) -> None:
    reports = {
        dtype: train(make(dtype, rows__dtype=dtype, train__epochs=2), quiet())
        for dtype in ("fp32", "bf16", "split-bf16")
    }
    full, half, split = reports["fp32"], reports["bf16"], reports["split-bf16"]
    assert full["test"]["auc"] > 0.6
    for other in (half, split):
        assert abs(other["test"]["auc"] - full["test"]["auc"]) < 0.01
        assert other["test"] != full["test"]
        assert other["run"]["live_rows"] == full["run"]["live_rows"]
    # 16 weights and 16 floats of state: 96 bytes instead of 128.
    assert half["run"]["live_row_bytes"] == full["run"]["live_row_bytes"] * 3 // 4
    assert split["run"]["live_row_bytes"] == full["run"]["live_row_bytes"]


def test_resume_refuses_another_dtype(make: Make) -> None:
    with open_trainer(make("run", rows__dtype="bf16"), quiet()) as trainer:
        trainer.save()
    with (
        pytest.raises(ConfigError, match=r"rows\.dtype was 'bf16' and is 'fp32'"),
        open_trainer(make("run", train__resume=True), quiet()),
    ):
        pass


def test_raw_criteo_files_can_be_trained_on(make: Make, shared_data: Path) -> None:
    report = train(make(data__path=shared_data / "criteo-raw"), quiet())
    assert (report["run"]["train_rows"], report["run"]["test_rows"]) == (6400, 1600)
    assert report["test"]["auc"] > 0.6


def test_the_criteo_sample_reaches_the_documented_metrics(make: Make, shared_data: Path) -> None:
    """Default settings, first 64,000 rows for training, last 16,000 for testing; bit-identical with a tenth of the memory."""
    flags = {"data__path": shared_data / "criteo/criteo80k.parquet", "train__batch": 256}
    report = train(make("criteo", **flags), quiet())
    assert report["run"]["train_rows"] == 64_000
    assert report["test"]["auc"] >= 0.768
    assert report["test"]["logloss"] <= 0.444
    tenth = report["run"]["live_row_bytes"] // 10
    small = train(make("small", store__row_memory=str(tenth), **flags), quiet())
    assert small["test"] == report["test"]
    read = small["run"]["cold_reads"] + small["run"]["lookahead_loaded"]
    assert read > 50_000
