"""`rowmill train --task kge` end to end: it learns, equals plain torch, with any memory budget, and resumes exactly.

The graph is a ring with chords: relation k leads from entity n to n + k + 1. So each missing link follows from the
others, and a trained model ranks it high.
"""

from __future__ import annotations

import io
import json
import signal
import time
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import rowmill
from python.tests.kge.rings import ENTITIES, RELATIONS, graph_config, write_ring
from python.tests.train.cut_off import cut_off
from python.tests.train.runs import ended, epoch, fork, scalars, until
from rowmill.cli import main
from rowmill.config import Config, ConfigError
from rowmill.errors import InvalidInput
from rowmill.kge import ComplEx, GraphBatch
from rowmill.kge.task import GraphTask
from rowmill.train import train
from rowmill.train.dense import multiplies_bf16
from rowmill.train.run import Trainer, open_trainer

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import ForkServerContext
    from pathlib import Path

    Make = Callable[..., Config]


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ring(tmp_path_factory.mktemp("ring"))


@pytest.fixture
def make(ring: Path, tmp_path: Path) -> Make:
    def make_config(name: str = "run", **flags: Any) -> Config:
        return graph_config(tmp_path / name, ring, **{"train__log_every": 3, **flags})

    return make_config


def quiet() -> Console:
    return Console(file=io.StringIO())


def task_of(trainer: Trainer) -> GraphTask:
    assert isinstance(trainer.task, GraphTask)
    return trainer.task


def finished(config: Config) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """The report of a run, and every row with its optimizer state as bits."""
    return train(config, quiet()), rows_of(config.train.out / "store")


def rows_of(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    with rowmill.open(folder, memory="64MiB", read_only=True) as store:
        found = {}
        for name in ("entities", "relations"):
            table = store.open_table(name)
            ids = np.arange(table.num_rows or 0)
            rows = np.concatenate([table.get(ids), table.get_state(ids)], axis=1)
            found[name] = rows.view(np.int32)
    return found


def same(one: dict[str, np.ndarray[Any, Any]], other: dict[str, np.ndarray[Any, Any]]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "settings",
    [
        {"model__kind": "complex", "kge__objective": "1vsall"},
        {"model__kind": "complex", "kge__objective": "kvsall", "kge__smoothing": 0.1},
        {"model__kind": "complex", "kge__in_batch": True, "kge__negatives": 0},
        {"model__kind": "complex", "kge__reciprocal": False, "kge__loss": "logistic"},
        {"model__kind": "complex", "kge__partitions": 6, "kge__buffer_partitions": 3},
        {"model__kind": "rotate", "kge__loss": "self_adversarial", "kge__margin": 3.0},
        {
            "model__kind": "complex",
            "kge__objective": "1vsall",
            "kge__regularizer": "n3",
            "kge__entity_penalty": 1e-3,
            "kge__relation_penalty": 1e-3,
            "kge__entity_dropout": 0.1,
        },
        {"model__kind": "complex", "kge__objective": "1vsall", "train__precision": "bf16"},
        {"model__kind": "rotate", "kge__loss": "self_adversarial", "train__precision": "bf16"},
    ],
)
def test_missing_links_are_found(make: Make, settings: dict[str, Any]) -> None:
    if settings.get("train__precision") == "bf16" and not multiplies_bf16():
        pytest.skip("this processor does not multiply in bfloat16")
    report = train(make(train__epochs=30, **settings), quiet())
    # Constant scores give 0.037.
    assert report["test"]["mrr"] > 0.4, report["test"]
    assert report["curve"][-1]["valid_mrr"] > 0.4


@pytest.mark.parametrize(
    "settings",
    [
        {"model__kind": "distmult", "kge__objective": "1vsall"},
        {"model__kind": "transe", "kge__loss": "self_adversarial", "kge__margin": 3.0},
    ],
)
def test_transe_and_distmult_rank_neighbours_high(make: Make, settings: dict[str, Any]) -> None:
    test = train(make(train__epochs=30, **settings), quiet())["test"]
    assert test["mrr"] > 0.15
    assert test["hits@10"] > 0.7


@pytest.mark.parametrize(("regularizer", "power"), [("n3", 3), ("l2", 2)])
def test_a_run_equals_plain_torch(make: Make, regularizer: str, power: int) -> None:
    """1vsAll without dropout, with N3 or L2 and Adagrad, for two epochs, against torch modules."""
    penalties = {"kge__entity_penalty": 0.01, "kge__relation_penalty": 0.02}
    config = make(kge__objective="1vsall", kge__regularizer=regularizer, **penalties)
    with open_trainer(config, quiet()) as trainer:
        task = task_of(trainer)
        entities, relations = (
            nn.Embedding.from_pretrained(table.get(torch.arange(table.num_rows or 0)), freeze=False)
            for table in (task.entities, task.relations)
        )
        model = ComplEx(entities, relations)
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.3)
        losses: list[tuple[float, float]] = []
        for batch in task.batches(0, 0):
            triples = triples_of(batch)
            ours = float(trainer.train_step(batch))
            heads, asked, tails = triples.T
            given = torch.cat([heads, tails])
            answers = torch.cat([tails, heads])
            both = torch.cat([asked, asked + RELATIONS])
            scores = model.tail_query(entities(given), relations(both)) @ entities.weight.T
            loss = nn.functional.cross_entropy(scores, answers)
            sizes = [model.magnitudes(entities(x)).pow(power).sum() for x in (given, answers)]
            relation_sizes = model.magnitudes(relations(both)).pow(power).sum()
            loss = loss + (0.01 * sum(sizes) + 0.02 * relation_sizes) / len(given)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append((ours, float(loss.detach())))
        ours, theirs = np.array(losses).T
        assert np.ptp(ours) > 0.02, "the rows must change"
        np.testing.assert_allclose(ours, theirs, rtol=1e-4)
        got = task.entities.get(torch.arange(ENTITIES))
        torch.testing.assert_close(got, entities.weight.detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("reciprocal", [True, False])
def test_a_drawn_entity_that_is_the_answer_is_not_a_negative(make: Make, reciprocal: bool) -> None:
    """Compares with the loss computed by its formula; 400 draws among 150 entities contain nearly every answer."""
    config = make(kge__negatives=400, kge__reciprocal=reciprocal, train__batch=10)
    with open_trainer(config, quiet()) as trainer:
        task = task_of(trainer)
        batch = next(task.batches(0, 0))
        assert batch.candidates is not None
        entities = task.entities.get(torch.arange(ENTITIES))
        relations = task.relations.get(torch.arange(task.relations.num_rows or 0))
        model = ComplEx(nn.Embedding(1, 16), nn.Embedding(1, 16))
        drawn = batch.entities[batch.candidates].tolist()
        total = 0.0
        for head, relation, tail in triples_of(batch).tolist():
            asked = [(model.tail_query(entities[head], relations[relation]), tail)]
            if reciprocal:
                turned = relations[relation + RELATIONS]
                asked.append((model.tail_query(entities[tail], turned), head))
            else:
                asked.append((model.head_query(entities[tail], relations[relation]), head))
            for query, answer in asked:
                wrong = [entity for entity in drawn if entity != answer]
                scores = entities[[answer, *wrong]] @ query
                total -= float(scores.log_softmax(0)[0])
        loss, shown = task.loss(batch, None)
        assert shown == pytest.approx(total / 20, rel=1e-5)
        assert loss.item() == shown


def test_with_in_batch_the_entities_of_the_batch_are_candidates(make: Make) -> None:
    """The candidates of a query are the entities of the batch's triples and the drawn ones, each once."""
    config = make(kge__negatives=7, kge__in_batch=True, train__batch=10)
    with open_trainer(config, quiet()) as trainer:
        task = task_of(trainer)
        batch = next(task.batches(0, 0))
        triples = triples_of(batch)
        ends = set(triples[:, [0, 2]].flatten().tolist())
        candidates = batch.entities.tolist()
        assert ends < set(candidates)
        assert len(ends) < len(candidates) <= len(ends) + 7
        entities = task.entities.get(torch.arange(ENTITIES))
        relations = task.relations.get(torch.arange(2 * RELATIONS))
        model = ComplEx(nn.Embedding(1, 16), nn.Embedding(1, 16))
        heads, asked, tails = triples.T
        queries = model.tail_query(
            entities[torch.cat([heads, tails])], relations[torch.cat([asked, asked + RELATIONS])]
        )
        scores = queries @ entities[candidates].T
        answers = [candidates.index(answer) for answer in torch.cat([tails, heads]).tolist()]
        expected = nn.functional.cross_entropy(scores, torch.tensor(answers))
        assert task.loss(batch, None)[1] == pytest.approx(expected.item(), rel=1e-5)


def test_a_run_can_be_resumed_for_more_epochs(make: Make) -> None:
    whole, expected = finished(make("four", train__epochs=4, kge__validate_every=2))
    shorter, _ = finished(make("two", train__epochs=2))
    # The rows after the best epoch on validation equal those of a run that ends there.
    at_2 = next(point for point in whole["curve"] if "valid_mrr" in point)
    assert shorter["curve"][-1]["valid_mrr"] == at_2["valid_mrr"]
    report, rows = finished(make("two", train__epochs=4, train__resume=True))
    assert same(rows, expected)
    assert report["curve"][-1]["rows"] == 4 * report["run"]["train_rows"]


def triples_of(batch: GraphBatch) -> torch.Tensor:
    n = batch.tail_queries
    return torch.stack(
        [
            batch.entities[batch.given[:n]],
            batch.relations[batch.relation_of[:n]],
            batch.entities[batch.answers[:n]],
        ],
        dim=1,
    )


@pytest.mark.parametrize(
    "order",
    [
        pytest.param({}, marks=pytest.mark.long),
        {"kge__partitions": 8, "kge__buffer_partitions": 3},
    ],
)
def test_row_memory_for_a_tenth_of_the_rows_changes_no_bit(
    make: Make, tmp_path_factory: pytest.TempPathFactory, order: dict[str, Any]
) -> None:
    """2 epochs of negative sampling with memory for a tenth of the rows, with and without lookahead and partitions."""
    entities = 6_000
    large = write_ring(tmp_path_factory.mktemp("large"), entities)
    settings = {
        "data__path": large,
        "model__dim": 128,
        "train__batch": 1000,
        "kge__negatives": 200,
        **order,
    }
    all_report, expected = finished(make("all", **settings))
    live = all_report["run"]["live_row_bytes"]
    assert live >= entities * 128 * 2 * 4
    for name, lookahead in (("tenth", 4), ("tenth, blind", 0)):
        limits = {"store__row_memory": str(live // 10), "store__lookahead": lookahead}
        report, rows = finished(make(name, **settings, **limits))
        assert same(rows, expected)
        assert report["test"] == all_report["test"]
        run = report["run"]
        assert run["row_limit"] <= live / 10
        assert run["device_blocks_read"] > 1000, "rows must have been evicted"
        assert (run["lookahead_loaded"] > 100) == (lookahead > 0)


def test_row_memory_for_a_tenth_of_the_rows_changes_no_bit_of_wn18rr(
    make: Make, shared_data: Path
) -> None:
    """2 epochs of negative sampling on WN18RR."""
    settings = {
        "data__path": shared_data / "kge/wn18rr",
        "kge__unseen": "rank",
        "model__dim": 32,
        "train__batch": 1024,
    }
    all_report, expected = finished(make("all", **settings))
    live = all_report["run"]["live_row_bytes"]
    report, rows = finished(make("tenth", **settings, store__row_memory=str(live // 10)))
    assert same(rows, expected)
    assert report["test"] == all_report["test"]
    assert report["run"]["entities"] == 40_943
    assert report["run"]["row_limit"] <= live / 10
    assert report["run"]["device_blocks_read"] > 10_000, "rows must have been evicted"


@pytest.mark.parametrize(
    "settings",
    [
        {"kge__entity_dropout": 0.2, "kge__partitions": 5, "kge__buffer_partitions": 2},
        {"kge__objective": "kvsall"},
        {"train__in_flight": 3},
    ],
)
def test_a_run_stopped_at_any_step_resumes_to_the_same_bits(
    make: Make, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    settings = {"train__checkpoint_every": 4, "kge__validate_every": 1, **settings}
    whole, expected = finished(make("whole", **settings))
    steps = whole["run"]["steps"]
    for cut in (2, 4, steps // 2, steps // 2 + 1, steps - 1):
        name = f"cut {cut}"
        with cut_off(cut, monkeypatch):
            train(make(name, **settings), quiet())
        report, rows = finished(make(name, train__resume=True, **settings))
        assert same(rows, expected)
        assert report["test"] == whole["test"]
        figures = [
            [(point["step"], point.get("loss"), point.get("valid_mrr")) for point in one["curve"]]
            for one in (report, whole)
        ]
        assert figures[0] == figures[1]
    # Each validation has a training point at its step before it, so that validation time is not counted as training.
    steps_of = [point["step"] for point in whole["curve"]]
    for place, point in enumerate(whole["curve"]):
        assert "valid_mrr" not in point or steps_of[place - 1] == point["step"]


def test_a_killed_run_resumes_to_the_same_bits(
    make: Make, server: ForkServerContext, ring: Path, tmp_path: Path
) -> None:
    """`kill -9` of the command, four times, at times drawn from a seed."""
    settings = {
        "train__epochs": 12,
        "train__checkpoint_every": 2,
        "kge__validate_every": 5,
        "kge__relation_dropout": 0.1,
    }
    whole, expected = finished(make("whole", **settings))
    file = tmp_path / "run.toml"
    file.write_text(
        f"""
        [data]
        path = "{ring}"
        [model]
        kind = "complex"
        dim = 16
        [kge]
        negatives = 32
        validate_every = 5
        relation_dropout = 0.1
        [rows]
        lr = 0.3
        initial_width = 0.3
        [store]
        memory = "64MiB"
        [train]
        task = "kge"
        batch = 50
        epochs = 12
        threads = 1
        log_every = 3
        checkpoint_every = 2
        out = "{tmp_path / "killed"}"
        """
    )
    store, random = tmp_path / "killed/store", Random(4)
    command = ["train", "--config", str(file), "--resume"]
    for _ in range(4):
        process = fork(server, command, tmp_path / "printed.txt")
        least = epoch(store) + random.randrange(1, 6)
        until(lambda least=least: epoch(store) >= least, process.is_alive)
        time.sleep(random.random() * 0.02)
        process.kill()
        assert ended(process) == -signal.SIGKILL
    assert ended(fork(server, command, tmp_path / "printed.txt")) == 0
    report, rows = json.loads((tmp_path / "killed/report.json").read_text()), rows_of(store)
    assert same(rows, expected)
    assert report["test"] == whole["test"]
    assert (tmp_path / "printed.txt").read_text().count("Resuming at step") == 4


@pytest.mark.parametrize(("objective", "expected"), [("negatives", [2, 3, 4, 4]), ("1vsall", [])])
def test_batches_are_prefetched_unless_each_needs_all_rows(
    make: Make, monkeypatch: pytest.MonkeyPatch, objective: str, expected: list[int]
) -> None:
    with open_trainer(make(kge__objective=objective, store__lookahead=3), quiet()) as trainer:
        announced: list[int] = []

        def note(ids: dict[Any, torch.Tensor], *, steps: int) -> None:
            assert {table.name for table in ids} == {"entities", "relations"}
            announced.append(steps)

        monkeypatch.setattr(task_of(trainer).rows.store, "lookahead", note)
        stream = trainer.ahead(0)
        next(stream), next(stream)
        assert announced == expected


def test_the_command_prints_metrics_and_writes_a_report(
    ring: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    task = ["train", "--task", "kge", "--model", "distmult", "--data", str(ring)]
    flags = ["--dim", "8", "--epochs", "2", "--batch", "100", "--threads", "1", "--log-every", "2"]
    assert main([*task, "--out", str(out), "--memory", "64MiB", *flags]) == 0
    report = json.loads((out / "report.json").read_text())
    printed = capsys.readouterr().out
    assert f"test MRR            {report['test']['mrr']:.4f}" in printed
    assert f"test hits@10        {report['test']['hits@10']:.4f}" in printed
    assert "examples per second" in printed
    assert "of 960 examples  loss " in printed
    assert {point["step"] for point in report["curve"] if "valid_mrr" in point} == {10}
    assert report["run"]["entities"] == ENTITIES
    assert (out / "entities.txt").read_text().count("\n") == ENTITIES
    assert (out / "relations.txt").read_text().count("\n") == RELATIONS
    page = (out / "report.html").read_text()
    assert "Test MRR" in page
    assert "Validation MRR" in page
    assert len(scalars(out / "events", "train/valid_mrr")["train/valid_mrr"]) == 1
    assert main([*task, "--out", str(out), "--memory", "64MiB", *flags, "--resume"]) == 0
    assert "Nothing to do: the run is complete, at step 10" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"model__kind": "dlrm"}, r"model\.kind must be .* for a knowledge graph, got 'dlrm'"),
        (
            {"train__plain": True},
            r"train\.plain applies only to --task ctr; remove it for --task kge",
        ),
        (
            {"data__train_rows": 9},
            r"data\.train_rows applies only to --task ctr; remove it for --task kge",
        ),
        ({"kge__negatives": 0}, r"kge\.negatives = 0 and kge\.in_batch = false leave no"),
        ({"kge__objective": "1vsall", "kge__partitions": 4}, r"kge\.partitions = 4 works"),
        ({"kge__partitions": 3, "kge__buffer_partitions": 4}, r"kge\.buffer_partitions = 4, but"),
        ({"kge__objective": "kvsall", "kge__loss": "self_adversarial"}, "self_adversarial"),
        ({"kge__smoothing": 0.1}, r"kge\.smoothing = 0\.1 works only"),
        ({"kge__entity_penalty": 0.1}, r'kge\.regularizer = "none"'),
        ({"kge__partitions": 151}, r"kge\.partitions = 151, but the graph has 150 entities"),
        ({"model__dim": 7}, "dim must be even, got 7"),
        ({"gnn__splits": 3}, r"gnn\.splits applies only to --task gnn; remove it for --task kge"),
    ],
)
def test_contradicting_settings_are_refused(
    make: Make, flags: dict[str, Any], message: str
) -> None:
    config = make(**flags)
    with pytest.raises(InvalidInput, match=message):
        train(config, quiet())
    assert not config.train.out.exists(), "no output folder was made"


def test_task_ctr_refuses_models_of_triples(make: Make, ring: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.kind = 'complex' is not a click model"):
        train(make(train__task="ctr"), quiet())


def test_resume_refuses_another_graph_or_other_settings(make: Make, tmp_path: Path) -> None:
    train(make(), quiet())
    (tmp_path / "other").mkdir()
    other = write_ring(tmp_path / "other", ENTITIES)
    lines = (other / "train.tsv").read_text().splitlines(keepends=True)
    (other / "train.tsv").write_text("".join([lines[1], lines[0], *lines[2:]]))
    for flags, message in (
        ({"data__path": other}, "checksum of the triples was"),
        ({"kge__negatives": 33}, r"kge\.negatives was 32 and is 33"),
        ({"train__batch": 51}, r"train\.batch was 50 and is 51"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(make(train__resume=True, **flags), quiet())
