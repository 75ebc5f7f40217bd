"""The task `kge`: a knowledge-graph embedding model, trained on `train.tsv` and evaluated by filtered ranking.

Entities and relations are two tables of the store; the ids are their numbers. Validation uses `valid.tsv`; the metrics on
`test.tsv` are computed once, at the end.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from rowmill.config.setting import ConfigError
from rowmill.kge import (
    MODELS,
    GraphBatches,
    KnownTriples,
    dense_softmax,
    logistic,
    penalty,
    rank,
    self_adversarial,
    softmax,
)
from rowmill.kge.graph import read_graph
from rowmill.kge.identity import graph_identity
from rowmill.kge.names import NAME_FILES
from rowmill.kge.saved_names import SavedNames, move_reciprocals
from rowmill.nn import Embedding
from rowmill.nn.dropout import dropout
from rowmill.train.dense import check_precision, dense_precision
from rowmill.train.rows import StoredRows, new_table, open_rows
from rowmill.train.task import check_task

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from numpy.typing import NDArray
    from rich.console import Console
    from torch import Tensor, nn

    from rowmill.config.config import Config
    from rowmill.config.sections import ModelConfig
    from rowmill.kge import GraphBatch, TripleModel
    from rowmill.kge.graph import Graph
    from rowmill.kge.ranking import AnswerRanks
    from rowmill.kge.settings import KgeConfig
    from rowmill.store.store import Store
    from rowmill.store.tables import Table

_POWERS = {"l2": 2, "n3": 3}


class LossWindow:
    """The mean loss per example since the last `reset`; the trainer resets it at each point of the loss curve."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0.0

    def update(self, loss: float, examples: int) -> None:
        """Add a batch: its mean loss and its number of examples."""
        self.rows += examples
        self._sum += loss * examples

    def compute(self) -> dict[str, float | None]:
        """`{"loss": mean}`; the mean is None before the first example."""
        return {"loss": self._sum / self.rows if self.rows else None}

    def reset(self) -> None:
        """Forget all examples."""
        self.rows, self._sum = 0, 0.0


class GraphTask:
    """A knowledge graph and the model that is trained on it."""

    optimizer = None  # Every parameter is a row.
    change = None

    def __init__(
        self,
        config: Config,
        graph: Graph,
        rows: StoredRows,
        batches: GraphBatches,
        identity: dict[str, Any],
    ) -> None:
        self.config = config
        self.graph = graph
        self.identity = identity
        self.window = LossWindow()
        self._reciprocal = graph.relation_count if config.kge.reciprocal else None
        self.rows = rows
        self.entities, self.relations = rows.tables
        torch.manual_seed(config.train.seed)
        self.model = build_model(config.model, config.kge, *self._lookups())
        self._batches = batches
        self.train_rows = batches.examples

    def _lookups(self) -> tuple[nn.Module, nn.Module]:
        """The modules that look up entities and relations."""
        entities, relations = self.entities, self.relations
        return (
            Embedding(entities.num_rows, entities.dim, table=entities),
            Embedding(relations.num_rows, relations.dim, table=relations),
        )

    @cached_property
    def _known(self) -> KnownTriples:
        # Built for the first evaluation, because training does not need it and it takes memory.
        graph = self.graph
        asked = [self._ranked_here(part) for part in (graph.valid, graph.test)]
        return KnownTriples([graph.train, graph.valid, graph.test], asked=asked)

    def _ranked_here(self, triples: NDArray[Any]) -> NDArray[Any]:
        """The triples of a part of the graph that this process ranks."""
        return triples

    def batches(self, epoch: int, start: int) -> Iterator[GraphBatch]:
        """Batches of training triples (`kvsall`: of distinct queries), in a new random order each epoch."""
        return self._batches.epoch(epoch, start)

    def lookahead(self, batch: GraphBatch, *, steps: int) -> None:
        """Prefetch the entities and relations of a batch. Does nothing if each step needs all entities."""
        if len(batch.entities) < self.graph.entity_count:
            self.rows.store.lookahead(
                {self.entities: batch.entities, self.relations: batch.relations}, steps=steps
            )

    def look_up(self, batch: GraphBatch) -> tuple[Tensor, Tensor]:
        """The rows of entities and relations of a batch."""
        return self.model.entities(batch.entities), self.model.relations(batch.relations)

    def loss(self, batch: GraphBatch, rows: tuple[Tensor, Tensor] | None) -> tuple[Tensor, float]:
        """The loss with penalties, a scalar tensor, and the loss without them, a float."""
        entities, relations = self.look_up(batch) if rows is None else rows
        settings = self.config.kge
        given, relation = entities[batch.given], relations[batch.relation_of]
        query = self._query(
            _dropout(given, settings.entity_dropout, batch),
            _dropout(relation, settings.relation_dropout, batch),
            batch.tail_queries,
        )
        answers = batch.answers
        if batch.candidates is None:
            candidates = dropout(entities, settings.entity_dropout)
            loss = self._loss_of_all(query, candidates, batch.queries, answers)
        else:
            candidates = dropout(entities[batch.candidates], settings.entity_dropout)
            own = _dropout(entities[answers], settings.entity_dropout, batch)
            drawn = self._scores(query, candidates)
            # A drawn entity may be the right answer: mask it, because it is not a negative.
            drawn = drawn.masked_fill(batch.candidates == answers[:, None], -torch.inf)
            scores = torch.cat([self.model.pair_scores(query, own)[:, None], drawn], dim=1)
            loss = self._loss(scores, batch.queries, torch.zeros_like(answers))
        shown = float(loss.detach())
        if settings.regularizer != "none":
            loss = loss + self._penalty(given, relation, entities[answers])
        return loss, shown

    def observe(self, batch: GraphBatch, predicted: float) -> None:
        """Add the loss of a trained batch to the metrics."""
        self.window.update(predicted, len(batch))

    def validates(self, epochs: int) -> bool:
        """Whether to validate after this many epochs: every `kge.validate_every` epochs and after the last."""
        every = self.config.kge.validate_every
        return epochs == self.config.train.epochs or bool(every and epochs % every == 0)

    def validate(self) -> dict[str, float | None]:
        """Ranking metrics on `valid.tsv`, with names such as `valid_mrr`."""
        return {f"valid_{key}": value for key, value in self._rank(self.graph.valid).items()}

    def test(self) -> dict[str, float | None]:
        """Ranking metrics on `test.tsv`."""
        return self._rank(self.graph.test)

    def described(self) -> dict[str, Any]:
        """The names of entities and relations, for queries and vectors."""
        out = self.config.train.out
        return {"entities": out / NAME_FILES["entity"], "relations": out / NAME_FILES["relation"]}

    def about(self) -> dict[str, Any]:
        """Sizes of the graph, for the report."""
        graph = self.graph
        return {
            "run": {
                "train_rows": self.train_rows,
                "test_rows": len(graph.test),
                "valid_rows": len(graph.valid),
                "entities": graph.entity_count,
                "relations": graph.relation_count,
            }
        }

    def _query(self, given: Tensor, relations: Tensor, tail_queries: int) -> Tensor:
        if self._reciprocal is not None:
            return self.model.tail_query(given, relations)
        tails = self.model.tail_query(given[:tail_queries], relations[:tail_queries])
        heads = self.model.head_query(given[tail_queries:], relations[tail_queries:])
        return torch.cat([tails, heads])

    def _loss_of_all(
        self, query: Tensor, candidates: Tensor, queries: Tensor, answers: Tensor
    ) -> Tensor:
        settings = self.config.kge
        if self.model.dot_scores and settings.loss == "softmax":
            with dense_precision(self.config.train):
                return dense_softmax(
                    query, candidates, queries, answers, smoothing=settings.smoothing
                )
        return self._loss(self._scores(query, candidates), queries, answers)

    def _scores(self, query: Tensor, candidates: Tensor) -> Tensor:
        with dense_precision(self.config.train):
            return self.model.scores(query, candidates).float()

    def _loss(self, scores: Tensor, queries: Tensor, columns: Tensor) -> Tensor:
        settings = self.config.kge
        match settings.loss:
            case "softmax":
                return softmax(scores, queries, columns, smoothing=settings.smoothing)
            case "logistic":
                return logistic(scores, queries, columns)
            case "self_adversarial":
                return self_adversarial(scores, queries, columns, temperature=settings.temperature)

    def _penalty(self, given: Tensor, relations: Tensor, answers: Tensor) -> Tensor:
        settings = self.config.kge
        power = _POWERS[settings.regularizer]
        entity = penalty(self.model.magnitudes(given), power)
        entity = entity + penalty(self.model.magnitudes(answers), power)
        # RotatE relations are angles, so a penalty on their size makes no sense.
        turns = self.model.relation_initializer() is not None
        relation = 0.0 if turns else penalty(self.model.magnitudes(relations), power)
        weighted = settings.entity_penalty * entity + settings.relation_penalty * relation
        return weighted / len(given)

    def _rank(self, triples: NDArray[Any]) -> dict[str, float | None]:
        return self._ranks_of(self._ranked_here(triples)).figures()

    def _ranks_of(self, triples: NDArray[Any]) -> AnswerRanks:
        return rank(
            self.model,
            triples,
            self._known,
            entities=self.graph.entity_count,
            reciprocal=self._reciprocal,
        )


def _dropout(weights: Tensor, share: float, batch: GraphBatch) -> Tensor:
    """Dropout of vectors of the queries of a batch, `[Q, D]`: on many ranks, that which one process would draw."""
    if batch.part is None:
        return dropout(weights, share)
    return dropout(weights, share, rows=batch.part.places, of=batch.part.queries)


@contextmanager
def open_graph(config: Config, console: Console, threads: int) -> Generator[GraphTask]:
    """Read the graph, open the store and build the task of the settings."""
    check_graph_settings(config)
    saved = SavedNames.found(config)
    graph, batches, identity = graph_of(config, saved)
    sizes = table_sizes(config, graph)
    with open_rows(config, threads=threads, identity=identity, sizes=sizes) as store:
        graph.write_names(config.train.out)
        tables = graph_tables(store, config, graph)
        before, after = None if saved is None else len(saved.relations), graph.relation_count
        if config.kge.reciprocal and before not in (None, after):
            move_reciprocals(tables[1], before, after)
        yield GraphTask(config, graph, StoredRows(store, tables, console), batches, identity)


def check_graph_settings(config: Config) -> None:
    """Raise `ConfigError` if a setting does not suit the task, or contradicts another one."""
    check_task(config, data="the folder of the graph", models=MODELS, what="a knowledge graph")
    check_settings(config)
    check_precision(config.train)


def graph_of(
    config: Config, saved: SavedNames | None, *, rank: int = 0, ranks: int | None = None
) -> tuple[Graph, GraphBatches, dict[str, Any]]:
    """Read the graph; returns it with its batches, of one of `ranks`, and the identity of the run."""
    path = config.data.path
    assert path is not None, "check_graph_settings was called"
    graph = read_graph(
        path,
        unseen=config.kge.unseen,
        entities_before=None if saved is None else saved.entities,
        relations_before=None if saved is None else saved.relations,
    )
    if config.kge.partitions > graph.entity_count:
        raise ConfigError(
            f"kge.partitions = {config.kge.partitions}, but the graph has {graph.entity_count} entities: use at most as many partitions"
        )
    batches = GraphBatches(
        graph,
        config.kge,
        batch=config.train.batch,
        seed=config.train.seed,
        rank=rank,
        ranks=ranks,
    )
    return graph, batches, graph_identity(config, graph, examples=batches.examples)


def table_sizes(config: Config, graph: Graph) -> dict[str, int | None]:
    """The number of ids of each table, by name."""
    sides = 2 if config.kge.reciprocal else 1
    return {"entities": graph.entity_count, "relations": sides * graph.relation_count}


def graph_tables(store: Store, config: Config, graph: Graph) -> list[Table]:
    """The tables of entities and relations."""
    kind, dim, sizes = MODELS[config.model.kind], config.model.dim, table_sizes(config, graph)
    return [
        new_table(store, config, "entities", dim=dim, num_rows=sizes["entities"]),
        new_table(
            store,
            config,
            "relations",
            dim=kind.relation_dim(dim),
            num_rows=sizes["relations"],
            initializer=kind.relation_initializer(),
        ),
    ]


def build_model(
    config: ModelConfig, settings: KgeConfig, entities: nn.Module, relations: nn.Module
) -> TripleModel:
    """The model that the settings name."""
    kind = MODELS[config.kind]
    return kind(entities, relations, margin=settings.margin, norm=settings.norm)


def check_settings(config: Config) -> None:
    """Raise `ConfigError` if two settings contradict each other; the message names both."""
    settings = config.kge
    MODELS[config.model.kind].relation_dim(config.model.dim)
    sampled = settings.objective == "negatives"
    if settings.partitions > 1 and not sampled:
        raise ConfigError(
            f'kge.partitions = {settings.partitions} works only with kge.objective = "negatives": '
            f"{settings.objective!r} reads every entity in every step. Set kge.partitions to 1, or change the objective"
        )
    if settings.partitions > 1 and settings.buffer_partitions > settings.partitions:
        raise ConfigError(
            f"kge.buffer_partitions = {settings.buffer_partitions}, but kge.partitions = {settings.partitions}: "
            f"set it to at most {settings.partitions}"
        )
    if sampled and settings.negatives == 0 and not settings.in_batch:
        raise ConfigError(
            "kge.negatives = 0 and kge.in_batch = false leave no negatives: set kge.negatives to at least 1, or kge.in_batch to true"
        )
    if settings.loss == "self_adversarial" and not sampled:
        raise ConfigError(
            f'kge.loss = "self_adversarial" works only with kge.objective = "negatives", got {settings.objective!r}: change one of them'
        )
    if settings.smoothing and (settings.loss != "softmax" or (sampled and not settings.in_batch)):
        raise ConfigError(
            f'kge.smoothing = {settings.smoothing} works only with kge.loss = "softmax", and with candidates that are all '
            "entities or all entities of the batch: set it to 0, or change kge.loss, kge.objective or kge.in_batch"
        )
    if settings.regularizer == "none" and (settings.entity_penalty or settings.relation_penalty):
        raise ConfigError(
            'kge.entity_penalty or kge.relation_penalty is set, but kge.regularizer = "none": set it to "l2" or "n3"'
        )
