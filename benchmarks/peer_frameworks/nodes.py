# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Graph neural networks: PyTorch Geometric with features in memory and with stored features, and rowmill's own loop.

All train the same model with Adam on batches of the same nodes of a generated graph with the same fan-outs. rowmill's
kernel samples neighbours for all: PyTorch Geometric's own sampler needs packages that have no wheel for this torch.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.nn import GAT, GraphSAGE

import rowmill
from benchmarks import common
from benchmarks.peer_frameworks.own import own
from benchmarks.peer_frameworks.summary import summarize
from rowmill.config import Config, DataConfig, ModelConfig, StoreConfig, TrainConfig
from rowmill.gnn.node_graph import NodeGraph, read_node_graph
from rowmill.gnn.planted_nodes import make_nodes
from rowmill.gnn.settings import GnnConfig, NodesConfig
from rowmill.integrations.pyg import NeighbourSampler, StoredFeatures, StoredGraph
from rowmill.train.run import open_trainer

Kind = Literal["graphsage", "gat"]
VARIANTS = ("pyg", "feature_store", "rowmill")
"""PyTorch Geometric with features in memory, PyTorch Geometric with stored features, and rowmill's loop."""


@dataclass(frozen=True)
class Shape:
    """The graph, the model, and the number of batches per round."""

    nodes: int = 50_000
    features: int = 128
    classes: int = 10
    degree: int = 15
    hidden: int = 128
    heads: int = 8
    fanouts: tuple[int, int] = (10, 10)
    batch: int = 512
    batches: int = 16

    @property
    def train_per_class(self) -> int:
        """Training nodes per class: together about half of all nodes."""
        return self.nodes // self.classes // 2


def measure(benchmark: common.Benchmark, shape: Shape, *, watts: float, rounds: int) -> None:
    """Measure seconds per epoch and joules per batch of both models with all variants."""
    threads = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "nodes.npz"
        settings = NodesConfig(
            nodes=shape.nodes,
            classes=shape.classes,
            degree=shape.degree,
            features=shape.features,
        )
        make_nodes(data, settings)
        graph = read_node_graph(data, isolated="keep")
        split = graph.split(0, train_per_class=shape.train_per_class, valid_per_class=1)
        nodes = torch.from_numpy(split.train)
        plain, edges = _in_memory(graph, Path(folder) / "edges")
        with rowmill.open(Path(folder) / "rows", memory="1GiB", threads=threads) as store:
            features = StoredFeatures(store)
            features.put_tensor(plain.x, None, "x", None)
            features.put_tensor(plain.y, None, "y", None)
            for kind in ("graphsage", "gat"):
                config = _config(shape, kind, data, Path(folder) / kind, threads)
                with open_trainer(config, Console(quiet=True)) as trainer:
                    torch.set_num_threads(threads)
                    sampler = NeighbourSampler(edges, shape.fanouts)
                    works = (
                        _pyg(shape, kind, plain, sampler, nodes),
                        _pyg(shape, kind, (features, edges), sampler, nodes),
                        own(trainer, batch=shape.batch, batches=shape.batches),
                    )
                    names = [f"{kind}_{name}" for name in VARIANTS]
                    samples = benchmark.compare(dict(zip(names, works, strict=True)), rounds=rounds)
                summarize(benchmark, samples, batch=shape.batch, epoch=len(nodes), watts=watts)


def _in_memory(graph: NodeGraph, folder: Path) -> tuple[Any, StoredGraph]:
    """Features and classes as a PyTorch Geometric object, and the edges in mapped files."""
    assert graph.features is not None
    edges = StoredGraph(folder)
    size = (graph.nodes, graph.nodes)
    sources, pointers = (
        torch.from_numpy(graph.indices.astype(np.int64)),
        torch.from_numpy(graph.indptr),
    )
    edges.put_edge_index((sources, pointers), edge_type=None, layout="csc", size=size)
    targets = torch.arange(graph.nodes).repeat_interleave(pointers.diff())
    x, y = torch.from_numpy(graph.features.rows(0, graph.nodes)), torch.from_numpy(graph.labels)
    return Data(x=x, y=y, edge_index=torch.stack([sources, targets])), edges


def _pyg(
    shape: Shape, kind: Kind, data: Any, sampler: NeighbourSampler, nodes: torch.Tensor
) -> Callable[[], int]:
    """A function that trains batches of PyTorch Geometric's loader with its model."""
    torch.manual_seed(1)
    width = shape.hidden
    more = {"heads": shape.heads} if kind == "gat" else {}
    class_ = GAT if kind == "gat" else GraphSAGE
    model = class_(
        shape.features, width, num_layers=2, out_channels=shape.classes, dropout=0.5, **more
    )
    dense = torch.optim.Adam(model.parameters(), lr=0.01)

    def endless() -> Iterator[Any]:
        while True:
            yield from NodeLoader(
                data,
                sampler,
                input_nodes=nodes,
                batch_size=shape.batch,
                shuffle=True,
                drop_last=True,
            )

    batches = endless()

    def work() -> int:
        for batch in islice(batches, shape.batches):
            # Trim to the nodes that later layers need, as with PyTorch Geometric's own sampler.
            out = model(
                batch.x,
                batch.edge_index,
                num_sampled_nodes_per_hop=batch.num_sampled_nodes,
                num_sampled_edges_per_hop=batch.num_sampled_edges,
            )[: shape.batch]
            dense.zero_grad()
            cross_entropy(out, batch.y[: shape.batch]).backward()
            dense.step()
        return shape.batches * shape.batch

    return work


def _config(shape: Shape, kind: Kind, data: Path, out: Path, threads: int) -> Config:
    gat = kind == "gat"
    return Config(
        data=DataConfig(path=data),
        model=ModelConfig(kind=kind),
        gnn=GnnConfig(
            fanouts=shape.fanouts,
            # The hidden width of GAT in settings is the width of one head.
            hidden=shape.hidden // shape.heads if gat else shape.hidden,
            heads=shape.heads,
            last_heads=shape.heads,
            isolated="keep",
            train_per_class=shape.train_per_class,
            valid_per_class=1,
        ),
        store=StoreConfig(memory="1GiB"),
        train=TrainConfig(
            task="gnn",
            batch=shape.batch,
            threads=threads,
            dense_lr=0.01,
            dense_decay_from=1.0,
            checkpoint_every=0,
            out=out,
        ),
    )
