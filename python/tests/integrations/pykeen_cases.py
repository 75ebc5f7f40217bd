"""Models of the real PyKEEN over stored rows, in PyKEEN's own training loops and evaluator.

Every model is compared with a twin over PyKEEN's own `Embedding`: same weights, batches and negatives, and torch's
optimizer of the same name.
"""

from __future__ import annotations

import gc
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from pykeen.evaluation import RankBasedEvaluator
from pykeen.losses import MarginRankingLoss, NSSALoss
from pykeen.models import ERModel
from pykeen.nn import Embedding
from pykeen.regularizers import LpRegularizer
from pykeen.sampling import BasicNegativeSampler
from pykeen.stoppers import EarlyStopper
from pykeen.training import LCWATrainingLoop, SLCWATrainingLoop
from pykeen.triples import CoreTriplesFactory
from torch import Tensor, nn

import rowmill
from benchmarks import common
from benchmarks.peer_frameworks import kge
from rowmill import optim
from rowmill.errors import InvalidInput
from rowmill.integrations.pykeen import RowUpdates, StoredRepresentation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENTITIES, RELATIONS, DIM = 40, 3, 8
RATE = 0.1


@pytest.fixture(autouse=True, scope="module")
def _imported_is_no_garbage() -> Iterator[None]:
    """PyKEEN collects garbage after every epoch; this excludes all imported objects from the scan."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a temporary folder as PyKEEN's checkpoint folder."""
    monkeypatch.setattr("pykeen.training.training_loop.PYKEEN_CHECKPOINTS", tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[rowmill.Store]:
    with rowmill.open(tmp_path / "store", memory="64MiB", wait_deadline_s=2.0) as opened:
        yield opened


@pytest.fixture
def factory() -> CoreTriplesFactory:
    """A ring: every entity is linked to the entities 1, 2 and 3 places further."""
    triples = [[n, k, (n + k + 1) % ENTITIES] for n in range(ENTITIES) for k in range(RELATIONS)]
    return CoreTriplesFactory(torch.tensor(triples), ENTITIES, RELATIONS)


def given(weights: Tensor) -> Callable[[Tensor], Tensor]:
    """An initializer that ignores its argument."""
    return lambda _: weights.clone()


class Pair:
    """A model over stored entities, and its twin with equal weights."""

    def __init__(
        self,
        store: rowmill.Store,
        factory: CoreTriplesFactory,
        *,
        dim: int = DIM,
        interaction: str = "DistMult",
        dtype: torch.dtype = torch.float32,
        regularizer: bool = False,
        loss: Any = None,
    ) -> None:
        shape = (dim,)
        complex_ = dtype.is_complex
        real = (*shape, 2) if complex_ else shape
        entities, relations = (torch.randn(count, *real) * 0.3 for count in (ENTITIES, RELATIONS))
        options: dict[str, Any] = (
            {"regularizer": LpRegularizer(weight=0.02, normalize=True)} if regularizer else {}
        )
        self.table = store.table(
            "entities",
            dim=dim * (2 if complex_ else 1),
            num_rows=ENTITIES,
            optimizer=optim.Adagrad(lr=RATE),
        )
        self.table.put(torch.arange(ENTITIES), entities.flatten(1))

        def plain(weights: Tensor, **more: Any) -> Embedding:
            return Embedding(
                len(weights), shape=shape, dtype=dtype, initializer=given(weights), **more
            )

        def model(representation: Any) -> ERModel:
            return ERModel(
                triples_factory=factory,
                interaction=interaction,
                interaction_kwargs={"p": 1} if interaction == "TransE" else None,
                entity_representations=representation,
                relation_representations=plain(relations),
                loss=loss or MarginRankingLoss(),
                random_seed=1,
            )

        self.factory = factory
        self.stored = model(
            StoredRepresentation(ENTITIES, shape, table=self.table, dtype=dtype, **options)
        )
        if regularizer:
            options = {"regularizer": LpRegularizer(weight=0.02, normalize=True)}
        self.plain = model(plain(entities, **options))

    def rows(self) -> Tensor:
        return self.table.get(torch.arange(ENTITIES))

    def plain_rows(self) -> Tensor:
        return self.plain.entity_representations[0]._embeddings.weight.detach()

    def train(self, *, loop: Any = SLCWATrainingLoop, epochs: int = 2, **options: Any) -> None:
        """Train both; their losses must agree."""
        losses = [
            run(model, self.factory, loop=loop, epochs=epochs, **options)
            for model in (self.stored, self.plain)
        ]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
        assert losses[0][-1] < losses[0][0]

    def check(self) -> None:
        """Rows and relations must equal the twin's, up to rounding, and must have changed."""
        assert torch.allclose(self.rows(), self.plain_rows(), atol=1e-4)
        relations = [m.relation_representations[0]._embeddings.weight for m in self.both]
        assert torch.allclose(*relations, atol=1e-4)

    @property
    def both(self) -> tuple[ERModel, ERModel]:
        return self.stored, self.plain


def run(
    model: ERModel,
    factory: CoreTriplesFactory,
    *,
    loop: Any = SLCWATrainingLoop,
    epochs: int = 2,
    memory_optimization: bool = False,
    rate: float = RATE,
    **options: Any,
) -> list[float]:
    """Train by a PyKEEN loop with the same batches and negatives for both models."""

    def reset() -> None:
        # The twin has one more module, whose initialization uses random numbers.
        type(model).reset_parameters_(model)
        torch.manual_seed(5)

    model.reset_parameters_ = reset
    more = {}
    if loop is SLCWATrainingLoop:
        more = {
            "negative_sampler": BasicNegativeSampler,
            "negative_sampler_kwargs": {"num_negs_per_pos": 3},
        }
    trained = loop(
        model=model,
        triples_factory=factory,
        optimizer=torch.optim.Adagrad,
        optimizer_kwargs={"lr": rate, "eps": 1e-10},
        automatic_memory_optimization=memory_optimization,
        **more,
    ).train(factory, num_epochs=epochs, batch_size=32, use_tqdm=False, **options)
    assert trained is not None
    return trained


@pytest.mark.parametrize(
    ("interaction", "dtype"),
    [("DistMult", torch.float32), ("ComplEx", torch.complex64), ("TransE", torch.float32)],
)
def test_training_with_negatives_equals_pykeens_embedding(
    store: rowmill.Store, factory: CoreTriplesFactory, interaction: str, dtype: torch.dtype
) -> None:
    pair = Pair(store, factory, interaction=interaction, dtype=dtype, loss=NSSALoss())
    before = pair.rows().clone()
    pair.train()
    pair.check()
    assert (pair.rows() - before).abs().max() > 0.05
    assert store.stats()["tickets"] == 0


def test_training_against_all_entities_equals_pykeens_embedding(
    store: rowmill.Store, factory: CoreTriplesFactory
) -> None:
    pair = Pair(store, factory)
    pair.train(loop=LCWATrainingLoop)
    pair.check()


def test_the_gradient_of_a_regularizer_reaches_rows(
    store: rowmill.Store, factory: CoreTriplesFactory
) -> None:
    pair = Pair(store, factory, regularizer=True)
    pair.train()
    pair.check()


def test_the_evaluator_gives_equal_ranks_and_changes_nothing(
    store: rowmill.Store, factory: CoreTriplesFactory
) -> None:
    pair = Pair(store, factory)
    pair.train(epochs=6)
    before = pair.rows().clone()
    found = [
        RankBasedEvaluator()
        .evaluate(
            model,
            factory.mapped_triples,
            batch_size=16,
            slice_size=slice_size,
            use_tqdm=False,
            additional_filter_triples=[factory.mapped_triples],
        )
        .get_metric("mrr")
        for model, slice_size in ((pair.stored, None), (pair.stored, 7), (pair.plain, None))
    ]
    assert found[0] == found[1] == pytest.approx(found[2], rel=1e-3)
    assert found[0] > 0.15  # Random scores give 0.1.
    assert torch.equal(pair.rows(), before)


def test_evaluation_inserts_no_rows(store: rowmill.Store) -> None:
    table = store.table("entities", dim=DIM, num_rows=ENTITIES, optimizer=optim.SGD(lr=RATE))
    representation = StoredRepresentation(ENTITIES, table=table).eval()
    assert torch.equal(representation(), table.get(torch.arange(ENTITIES)))
    assert len(table) == 0


def test_rows_on_disk_train_as_rows_in_memory(tmp_path: Path, factory: CoreTriplesFactory) -> None:
    trained: list[Tensor] = []
    reads: list[int] = []
    for row_memory in (None, "200KiB"):
        folder = tmp_path / f"{row_memory}"
        with rowmill.open(folder, memory="64MiB", row_memory=row_memory) as store:
            torch.manual_seed(0)
            pair = Pair(store, factory, dim=1024)
            run(pair.stored, factory, epochs=2)
            trained.append(pair.rows())
            reads.append(store.stats()["cold_reads"])
    assert torch.equal(*trained)
    assert reads[0] == 0 < reads[1]


def test_frozen_rows_do_not_change(store: rowmill.Store, factory: CoreTriplesFactory) -> None:
    table = store.table("entities", dim=DIM, num_rows=ENTITIES, optimizer=optim.SGD(lr=RATE))
    table.put(torch.arange(ENTITIES), torch.randn(ENTITIES, DIM))
    before = table.get(torch.arange(ENTITIES))
    model = ERModel(
        triples_factory=factory,
        interaction="DistMult",
        entity_representations=StoredRepresentation,
        entity_representations_kwargs={"table": table, "trainable": False},
        relation_representations=Embedding,
        relation_representations_kwargs={"shape": DIM},
    )
    run(model, factory, epochs=2)
    assert torch.equal(table.get(torch.arange(ENTITIES)), before)


def test_new_models_and_new_trainings_do_not_reset_rows(
    store: rowmill.Store, factory: CoreTriplesFactory
) -> None:
    pair = Pair(store, factory)
    before = pair.rows().clone()
    pair.stored.reset_parameters_()
    assert torch.equal(pair.rows(), before)


def test_a_state_dict_saves_and_restores_rows(
    store: rowmill.Store, factory: CoreTriplesFactory
) -> None:
    pair = Pair(store, factory)
    state = pair.stored.state_dict()
    kept = pair.rows().clone()
    assert torch.equal(state["entity_representations.0.rows.weight"], kept)
    pair.train()
    assert not torch.equal(pair.rows(), kept)
    pair.stored.load_state_dict(state)
    assert torch.equal(pair.rows(), kept)
    dense = rowmill.nn.dense_state_dict(pair.stored)
    assert [key for key in dense if "rows" in key] == []


def test_the_early_stopper_restores_the_best_rows(
    store: rowmill.Store, factory: CoreTriplesFactory
) -> None:
    pair = Pair(store, factory)
    stoppers: list[EarlyStopper] = []
    for model in pair.both:
        stopper = EarlyStopper(
            model=model,
            evaluator=RankBasedEvaluator(),
            training_triples_factory=factory,
            evaluation_triples_factory=factory,
            frequency=1,
            patience=2,
            relative_delta=0.05,
        )
        run(model, factory, epochs=8, rate=1.0, stopper=stopper)
        stoppers.append(stopper)
    assert stoppers[0].stopped
    weights = pair.stored.state_dict()["entity_representations.0.rows.weight"]
    assert torch.equal(weights, pair.rows())
    found = RankBasedEvaluator().evaluate(
        pair.stored,
        factory.mapped_triples,
        batch_size=32,
        use_tqdm=False,
        additional_filter_triples=[factory.mapped_triples],
    )
    assert found.get_metric(stoppers[0].metric) == pytest.approx(stoppers[0].best_metric)


@pytest.mark.parametrize("sub_batch_size", [None, 8])
def test_row_updates_make_sub_batches_one_step(
    store: rowmill.Store, factory: CoreTriplesFactory, sub_batch_size: int | None
) -> None:
    pair = Pair(store, factory)
    rows = optim.RowOptimizer(pair.stored)
    options = {"sub_batch_size": sub_batch_size}
    run(pair.stored, factory, callbacks=RowUpdates(rows), **options)
    run(pair.plain, factory, **options)
    pair.check()


def test_row_updates_ignore_trial_batches(
    store: rowmill.Store, factory: CoreTriplesFactory
) -> None:
    pair = Pair(store, factory)
    rows = optim.RowOptimizer(pair.stored)
    run(pair.stored, factory, memory_optimization=True, callbacks=RowUpdates(rows))
    run(pair.plain, factory, memory_optimization=True)
    pair.check()
    # Without RowUpdates the trial batches change rows, as docs/frameworks.md warns.
    rows.detach()
    before = pair.rows().clone()
    loop = SLCWATrainingLoop(
        model=pair.stored, triples_factory=factory, optimizer=torch.optim.Adagrad
    )
    loop.sub_batch_and_slice(batch_size=32, sampler=None, triples_factory=factory)
    assert not torch.equal(pair.rows(), before)


def test_a_batch_that_fails_does_not_hold_rows(
    store: rowmill.Store, factory: CoreTriplesFactory
) -> None:
    class Fails(nn.Module):
        def forward(self, _: Tensor) -> Tensor:
            raise RuntimeError("told to")

    pair = Pair(store, factory)
    representation = pair.stored.entity_representations[0]
    representation.dropout = Fails()
    with pytest.raises(RuntimeError, match="told to"):
        run(pair.stored, factory)
    representation.dropout = None
    run(pair.stored, factory)
    assert store.stats()["tickets"] == 0


def test_errors_name_the_shapes_that_do_not_match(
    store: rowmill.Store, factory: CoreTriplesFactory
) -> None:
    table = store.table("e", dim=DIM, num_rows=ENTITIES, optimizer=optim.SGD(lr=RATE))
    with pytest.raises(
        InvalidInput, match=r"shape \(4,\) .* have 4 weights, but rows of table 'e' have 8: .*dim=4"
    ):
        StoredRepresentation(ENTITIES, 4, table=table)
    with pytest.raises(InvalidInput, match=r"\(8,\) and torch.complex64 have 16 weights.*dim=16"):
        StoredRepresentation(ENTITIES, 8, table=table, dtype=torch.complex64)
    with pytest.raises(InvalidInput, match=r"dtype must be torch\.float32 or torch\.complex64"):
        StoredRepresentation(ENTITIES, table=table, dtype=torch.float64)
    with pytest.raises(InvalidInput, match="max_id = 39, but table 'e' has num_rows = 40"):
        StoredRepresentation(39, table=table)
    representation = StoredRepresentation(ENTITIES, table=table)
    assert "table='e'" in repr(representation)
    with pytest.raises(InvalidInput, match="40"):
        representation(torch.tensor([ENTITIES]))


def test_a_vector_may_be_a_matrix(store: rowmill.Store) -> None:
    table = store.table("m", dim=6, num_rows=4, optimizer=optim.SGD(lr=RATE))
    table.put(torch.arange(4), torch.arange(24.0).view(4, 6))
    matrix = StoredRepresentation(4, (2, 3), table=table).eval()
    assert matrix(torch.tensor([[1], [3]])).shape == (2, 1, 2, 3)
    pairs = StoredRepresentation(4, table=table, dtype=torch.complex64).eval()
    assert pairs(torch.tensor([1])).tolist() == [[6 + 7j, 8 + 9j, 10 + 11j]]


def test_the_benchmark_compares_the_same_work(tmp_path: Path) -> None:
    """Runs benchmarks/peer_frameworks in its smallest form; times are not checked."""
    lines = [f"e{n}\tr{k}\te{(n + k + 1) % 60}\n" for n in range(60) for k in range(2)]
    for part in ("train", "valid", "test"):
        (tmp_path / f"{part}.tsv").write_text("".join(lines))
    benchmark = common.Benchmark(common.Settings(True, 1, None, ""))
    shape = kge.Shape(dim=8, batch=16, negatives=2, batches=3)
    kge.measure(benchmark, shape, tmp_path, watts=5.0, rounds=2)
    variants = [f"{k}_{name}" for k in ("distmult", "complex") for name in kge.VARIANTS]
    assert {cell["variant"] for cell in benchmark.cells} == set(variants)
    assert {cell["units"] for cell in benchmark.cells} == {48}
    figures = benchmark.summary
    for name in variants:
        joules = figures[f"{name}_epoch_cpu_s"] / len(lines) * 16 * 5.0
        assert figures[f"{name}_joules_per_batch"] == pytest.approx(joules)
    walls = {(cell["variant"], cell["round"]): cell["wall_s"] for cell in benchmark.cells}
    ratios = [walls["complex_rowmill", n] / walls["complex_pykeen", n] for n in range(2)]
    assert figures["complex_rowmill_time_over_pykeen"] == pytest.approx(sum(ratios) / 2)


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = Path(__file__).parents[3] / "examples/pykeen_representation.py"
    ran = runpy.run_path(str(example))
    assert ran["mrr"] > 0.1
