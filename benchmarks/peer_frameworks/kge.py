# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Knowledge graphs: PyKEEN's training loop with its own embeddings and with stored rows, and rowmill's own loop.

All train the same model with the same loss, batch size, number of negatives and Adagrad, with all rows in memory. PyKEEN
draws negatives for each triple. rowmill's loop draws the same number once per batch for all triples. It predicts both
the head and the tail of each triple, so it scores twice as many pairs.
"""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pykeen.losses import NSSALoss
from pykeen.models import ERModel
from pykeen.nn import Embedding
from pykeen.training import SLCWATrainingLoop
from pykeen.triples import CoreTriplesFactory
from rich.console import Console

import rowmill
from benchmarks import common
from benchmarks.peer_frameworks.own import own
from benchmarks.peer_frameworks.summary import summarize
from rowmill.config import Config, DataConfig, ModelConfig, RowsConfig, StoreConfig, TrainConfig
from rowmill.integrations.pykeen import StoredRepresentation
from rowmill.kge.graph import Graph, read_graph
from rowmill.kge.settings import KgeConfig
from rowmill.train.run import open_trainer

Kind = Literal["distmult", "complex"]
_MODELS: dict[Kind, str] = {"distmult": "DistMult", "complex": "ComplEx"}
"""Model names of rowmill and of PyKEEN."""
VARIANTS = ("pykeen", "representation", "rowmill")
"""PyKEEN's loop with its own embeddings, PyKEEN's loop with stored rows, and rowmill's loop."""


@dataclass(frozen=True)
class Shape:
    """The work of a round: a number of batches of triples."""

    dim: int = 256
    batch: int = 1024
    negatives: int = 32
    batches: int = 16
    rate: float = 0.1


def graph_folder(into: Path) -> Path:
    """The folder of FB15k-237 if `$ROWMILL_DATA` or `../shared/data` has it; else of a random graph of its shape."""
    folder = common.data_file("kge/fb15k237")
    if folder is not None:
        return folder
    random = np.random.default_rng(1)
    triples = np.stack([random.integers(high, size=272_115) for high in (14_541, 237, 14_541)], 1)
    lines = [f"e{head}\tr{kind}\te{tail}\n" for head, kind, tail in triples]
    for part, chosen in {"train": lines, "valid": lines[:9], "test": lines[:9]}.items():
        (into / f"{part}.tsv").write_text("".join(chosen))
    return into


def measure(
    benchmark: common.Benchmark, shape: Shape, data: Path, *, watts: float, rounds: int
) -> None:
    """Measure seconds per epoch and joules per batch of both models with all variants."""
    threads = len(os.sched_getaffinity(0))
    graph = read_graph(data, unseen="rank")
    for kind in _MODELS:
        with tempfile.TemporaryDirectory() as folder:
            config = _config(shape, kind, data, Path(folder) / "run", threads)
            with (
                rowmill.open(Path(folder) / "rows", memory="1GiB", threads=threads) as store,
                open_trainer(config, Console(quiet=True)) as trainer,
            ):
                torch.set_num_threads(threads)
                works = (
                    _pykeen(shape, kind, graph, None),
                    _pykeen(shape, kind, graph, store),
                    own(trainer, batch=shape.batch, batches=shape.batches),
                )
                names = [f"{kind}_{name}" for name in VARIANTS]
                samples = benchmark.compare(dict(zip(names, works, strict=True)), rounds=rounds)
        summarize(benchmark, samples, batch=shape.batch, epoch=len(graph.train), watts=watts)


def _pykeen(
    shape: Shape, kind: Kind, graph: Graph, store: rowmill.Store | None
) -> Callable[[], int]:
    """An epoch of PyKEEN's loop over the first triples. With a store, entities are rows of it."""
    count = shape.batches * shape.batch
    chosen = np.random.default_rng(1).permutation(graph.train)[:count]
    factory = CoreTriplesFactory(torch.from_numpy(chosen), graph.entity_count, graph.relation_count)
    number = torch.complex64 if kind == "complex" else torch.float32
    width = shape.dim // (2 if number.is_complex else 1)
    entities: Any
    if store is None:
        entities = Embedding(graph.entity_count, shape=width, dtype=number)
    else:
        table = store.table(
            "entities",
            dim=shape.dim,
            num_rows=graph.entity_count,
            optimizer=rowmill.optim.Adagrad(lr=shape.rate),
            initializer=rowmill.init.Normal(std=1.0),
        )
        entities = StoredRepresentation(graph.entity_count, width, table=table, dtype=number)
    model = ERModel(
        triples_factory=factory,
        interaction=_MODELS[kind],
        entity_representations=entities,
        relation_representations=Embedding(graph.relation_count, shape=width, dtype=number),
        loss=NSSALoss(margin=0.0, adversarial_temperature=1.0),
        random_seed=1,
    )
    loop = SLCWATrainingLoop(
        model=model,
        triples_factory=factory,
        optimizer=torch.optim.Adagrad,
        optimizer_kwargs={"lr": shape.rate},
        negative_sampler_kwargs={"num_negs_per_pos": shape.negatives},
        automatic_memory_optimization=False,
    )
    trained = 0

    def work() -> int:
        nonlocal trained
        loop.train(
            factory,
            num_epochs=trained + 1,
            batch_size=shape.batch,
            continue_training=trained > 0,
            use_tqdm=False,
            pin_memory=False,
        )
        trained += 1
        return count

    return work


def _config(shape: Shape, kind: Kind, data: Path, out: Path, threads: int) -> Config:
    return Config(
        data=DataConfig(path=data),
        model=ModelConfig(kind=kind, dim=shape.dim),
        kge=KgeConfig(
            loss="self_adversarial", negatives=shape.negatives, reciprocal=False, unseen="rank"
        ),
        rows=RowsConfig(lr=shape.rate, initial_width=1.0),
        store=StoreConfig(memory="1GiB"),
        train=TrainConfig(
            task="kge",
            batch=shape.batch,
            threads=threads,
            checkpoint_every=0,
            out=out,
        ),
    )
