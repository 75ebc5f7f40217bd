"""Settings of graphs of nodes: sections of the file that `rowmill.config` reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rowmill.config.setting import BELOW_ONE, DIM_MAX, FLOAT_MAX, Setting


@dataclass(frozen=True, kw_only=True)
class GnnConfig:
    """Section `[gnn]`: how the classes of nodes are learned."""

    rows: Annotated[
        Literal["features", "learned"],
        Setting("what is stored of a node: its features, or an embedding of model.dim weights"),
    ] = "features"
    normalize: Annotated[
        bool, Setting("features: divide each vector by the sum of its absolute entries")
    ] = False
    fanouts: Annotated[
        tuple[int, ...],
        Setting("neighbours drawn of a node in each layer, -1: all", least=-1, most=1 << 20),
    ] = (10, 10)
    replace: Annotated[bool, Setting("draw each neighbour from all, so one may come twice")] = False
    test_fanouts: Annotated[
        tuple[int, ...],
        Setting("the same for valid and test nodes; empty: all", least=-1, most=1 << 20),
    ] = ()
    test_batch: Annotated[
        int,
        Setting("nodes of the valid and test parts whose figures are computed at once", least=1),
    ] = 1024
    hidden: Annotated[
        int, Setting("width between layers; gat: of a head", least=1, most=DIM_MAX)
    ] = 64
    heads: Annotated[int, Setting("gat: heads of every layer but the last", least=1, most=1024)] = 8
    last_heads: Annotated[int, Setting("gat: heads of the last layer", least=1, most=1024)] = 1
    norm: Annotated[bool, Setting("graphsage: normalise hidden vectors")] = False
    residual: Annotated[bool, Setting("graphsage: add to a layer what it was given")] = False
    feature_dropout: Annotated[
        float, Setting("share of what is known of nodes left out", least=0, most=BELOW_ONE)
    ] = 0.0
    dropout: Annotated[
        float, Setting("share of hidden vectors left out", least=0, most=BELOW_ONE)
    ] = 0.5
    attention_dropout: Annotated[
        float, Setting("gat: share of the edges left out by a head", least=0, most=BELOW_ONE)
    ] = 0.0
    weight_decay: Annotated[float, Setting("of the dense half (Adam)", least=0, most=FLOAT_MAX)] = (
        0.0
    )
    directed: Annotated[
        bool, Setting("edges lead one way, as they are in the file; otherwise both ways")
    ] = False
    self_loops: Annotated[
        Literal["error", "keep", "drop"], Setting("edges from a node to itself")
    ] = "error"
    isolated: Annotated[Literal["error", "keep"], Setting("nodes without neighbours")] = "error"
    split: Annotated[
        int,
        Setting("which of the fixed splits, or the seed of a random one", "--split", 0, 1 << 32),
    ] = 0
    splits: Annotated[
        int,
        Setting("so many splits from that one on, a run each in OUT/split-N", "--splits", 1, 1000),
    ] = 1
    train_per_class: Annotated[
        int, Setting("random splits: nodes per class to train on", least=1)
    ] = 20
    valid_per_class: Annotated[
        int, Setting("random splits: nodes per class to choose the model by", least=1)
    ] = 30
    choose: Annotated[
        Literal["best", "last"], Setting("the model to test: best by the valid part, or the last")
    ] = "best"
    validate_every: Annotated[
        int, Setting("epochs between figures of the valid part; 0: only at the end", least=0)
    ] = 1
    sample_threads: Annotated[
        int, Setting("threads that draw neighbours of coming batches", least=1, most=256)
    ] = 1


@dataclass(frozen=True, kw_only=True)
class NodesConfig:
    """Section `[nodes]`: a graph with classes to make first, if it is not there yet."""

    nodes: Annotated[int, Setting("nodes of the graph", "--nodes", 1, 1 << 31)] = 2000
    classes: Annotated[int, Setting("classes of nodes", "--classes", 2, 4096)] = 5
    degree: Annotated[
        int, Setting("edges of a node, on average; a few nodes have many", "--degree", 1, 10_000)
    ] = 10
    features: Annotated[int, Setting("features of a node", "--features", 1, DIM_MAX)] = 32
    noise: Annotated[
        float,
        Setting("deviation of features from those of their class", "--noise", 0, 1e6),
    ] = 3.0
    within: Annotated[
        float, Setting("share of the edges that stay within a class", "--within", 0, 1)
    ] = 0.8
    seed: Annotated[int, Setting("seed of everything random", "--seed", 0, (1 << 44) - 1)] = 0
