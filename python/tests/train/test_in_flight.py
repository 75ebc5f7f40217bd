"""With several steps in flight, rows are read early, but never more stale than the bound.

If rows are read too early, they miss updates and the model is silently worse. So at bound 0 results must be bit-identical to
one step at a time, and at bound s a row must include all but its last s updates; the tests check the rows of running steps.
A loop that fails must leave no thread and no clock behind.
"""

from __future__ import annotations

import threading
import time

import pytest
import torch

from python.tests.train.configs import Make, quiet
from rowmill.config import ConfigError
from rowmill.ctr.settings import GenerateConfig
from rowmill.train import train
from rowmill.train.run import Trainer, TrainingDiverged, open_trainer

ROWS = 2560
BATCH = 64
LOG = GenerateConfig(rows=4_000, seed=1, rows_per_table=500)
SETTINGS = {"data__train_rows": ROWS, "train__batch": BATCH}


def threads() -> int:
    return sum(thread.name == "rowmill-in-flight" for thread in threading.enumerate())


def open_steps(trainer: Trainer, expected: int) -> int:
    """The number of steps that hold clocks or wait for some, once no more steps begin."""
    deadline = time.monotonic() + 20
    stats = trainer.rows.store.stats
    while stats()["tickets"] < expected and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.05)  # So that a step too many would show.
    return stats()["tickets"]


@pytest.mark.parametrize("row_memory", [None, "512KiB"])
def test_at_bound_0_steps_in_flight_change_no_bit(make: Make, row_memory: str | None) -> None:
    settings = {"store__row_memory": row_memory, "train__checkpoint_every": 7}
    one = train(make("one", **settings), quiet())
    many = train(make("many", train__in_flight=8, **settings), quiet())
    assert many["test"] == one["test"]
    assert [point["logloss"] for point in many["curve"]] == [
        point["logloss"] for point in one["curve"]
    ]
    assert many["run"]["steps"] == ROWS // BATCH


@pytest.mark.parametrize(
    ("bound", "in_flight", "expected"),
    [
        # Every batch has the first ids of the tables: bound + 1 steps are open, and one waits.
        (0, 16, 2),
        (3, 16, 5),
        (None, 6, 6),
        (20, 6, 6),
    ],
)
def test_open_steps_are_limited_by_bound_and_setting(
    make: Make, bound: int | None, in_flight: int, expected: int
) -> None:
    config = make(store__staleness_bound=bound, train__in_flight=in_flight)
    with open_trainer(config, quiet()) as trainer:
        for number, (batch, pooled) in enumerate(trainer.steps(0)):
            if number in (0, 10):
                assert open_steps(trainer, expected) == expected
            trainer.train_step(batch, pooled)
        assert trainer.rows.store.stats()["tickets"] == 0
    assert threads() == 0


def test_rows_read_early_lack_recent_updates(make: Make) -> None:
    one = train(make("one"), quiet())
    stale = {"store__staleness_bound": None, "train__in_flight": 30}
    many = train(make("many", **stale), quiet())
    assert many["run"]["steps"] == one["run"]["steps"]
    assert many["test"]["logloss"] != one["test"]["logloss"]


def test_a_checkpoint_is_made_between_steps(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"store__staleness_bound": None, "train__in_flight": 6}
    open_then: list[int] = []
    original = Trainer.save

    def save(trainer: Trainer) -> None:
        open_then.append(trainer.rows.store.stats()["tickets"])
        original(trainer)

    monkeypatch.setattr(Trainer, "save", save)
    train(make(train__checkpoint_every=9, train__epochs=2, **settings), quiet())
    assert open_then == [0] * (2 * ROWS // BATCH // 9 + 2)


def test_a_run_resumes_to_the_same_bits(make: Make) -> None:
    settings = {"train__in_flight": 5, "train__checkpoint_every": 10, "train__dense_decay_from": 1}
    whole = train(make("whole", train__epochs=2, **settings), quiet())
    train(make("parts", **settings), quiet())
    again = train(make("parts", train__epochs=2, train__resume=True, **settings), quiet())
    assert again["test"] == whole["test"]
    settings["train__in_flight"] = 4
    with pytest.raises(ConfigError, match=r"train\.in_flight was 5 and is 4"):
        train(make("parts", train__epochs=2, train__resume=True, **settings), quiet())


@pytest.mark.parametrize("bound", [0, None])
def test_a_loop_that_fails_leaves_no_thread_and_no_clock(make: Make, bound: int | None) -> None:
    settings = {"store__staleness_bound": bound, "train__in_flight": 6}
    with open_trainer(make(**settings), quiet()) as trainer:
        steps = trainer.steps(0)
        for _ in range(3):
            trainer.train_step(*next(steps))
        batch, pooled = next(steps)
        batch.dense.fill_(torch.nan)
        with pytest.raises(TrainingDiverged):
            trainer.train_step(batch, pooled)
        steps.close()  # While `pooled` still holds the graph of the failed step.
        assert threads() == 0
        assert trainer.rows.store.stats()["tickets"] == 0


def test_an_error_in_a_lookup_is_raised_in_the_loop(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_trainer(make(train__in_flight=3), quiet()) as trainer:

        def fail(*_: object) -> None:
            raise OSError("the disk is gone")

        monkeypatch.setattr(trainer.rows.embeddings, "forward", fail)
        with pytest.raises(OSError, match="the disk is gone"):
            next(trainer.steps(0))
    assert threads() == 0


def test_in_flight_needs_a_store(make: Make) -> None:
    with pytest.raises(ConfigError, match="in_flight needs a store"):
        make(train__plain=True, train__in_flight=2)
