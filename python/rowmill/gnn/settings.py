"""Settings of node classification: the sections `[gnn]` and `[nodes]` of the file that `rowmill.config` reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rowmill.config.setting import BELOW_ONE, DIM_MAX, FLOAT_MAX, Setting


@dataclass(frozen=True, kw_only=True)
class GnnConfig:
    """Section `[gnn]`: settings of node classification."""

    rows: Annotated[
        Literal["features", "learned"],
        Setting(
            "what the row of a node holds: its features, or a learned embedding of model.dim weights"
        ),
    ] = "features"
    normalize: Annotated[
        bool, Setting("rows = features: divide each feature vector by its L1 norm")
    ] = False
    fanouts: Annotated[
        tuple[int, ...],
        Setting("neighbours sampled per node in each layer, -1: all", least=-1, most=1 << 20),
    ] = (10, 10)
    replace: Annotated[bool, Setting("sample neighbours with replacement")] = False
    test_fanouts: Annotated[
        tuple[int, ...],
        Setting("fanouts for validation and test nodes; empty: all", least=-1, most=1 << 20),
    ] = ()
    test_batch: Annotated[
        int,
        Setting("validation or test nodes per batch", least=1),
    ] = 1024
    hidden: Annotated[
        int, Setting("width of hidden layers; gat: width of one head", least=1, most=DIM_MAX)
    ] = 64
    heads: Annotated[int, Setting("gat: heads of every layer but the last", least=1, most=1024)] = 8
    last_heads: Annotated[int, Setting("gat: heads of the last layer", least=1, most=1024)] = 1
    norm: Annotated[bool, Setting("graphsage: layer norm on hidden vectors")] = False
    residual: Annotated[bool, Setting("graphsage: residual connections between layers")] = False
    feature_dropout: Annotated[
        float, Setting("dropout rate of input vectors", least=0, most=BELOW_ONE)
    ] = 0.0
    dropout: Annotated[
        float, Setting("dropout rate of hidden vectors", least=0, most=BELOW_ONE)
    ] = 0.5
    attention_dropout: Annotated[
        float, Setting("gat: dropout rate of attention weights", least=0, most=BELOW_ONE)
    ] = 0.0
    weight_decay: Annotated[
        float, Setting("weight decay of the dense layers (Adam)", least=0, most=FLOAT_MAX)
    ] = 0.0
    directed: Annotated[
        bool, Setting("use edges only in the direction of the file; false: in both directions")
    ] = False
    self_loops: Annotated[
        Literal["error", "keep", "drop"], Setting("what to do with edges from a node to itself")
    ] = "error"
    isolated: Annotated[
        Literal["error", "keep"], Setting("what to do with nodes without neighbours")
    ] = "error"
    split: Annotated[
        int,
        Setting(
            "gnn: number of a split in the file, or seed of a random split", "--split", 0, 1 << 32
        ),
    ] = 0
    splits: Annotated[
        int,
        Setting(
            "gnn: number of splits to train on, from --split on, each into OUT/split-N",
            "--splits",
            1,
            1000,
        ),
    ] = 1
    train_per_class: Annotated[int, Setting("random splits: training nodes per class", least=1)] = (
        20
    )
    valid_per_class: Annotated[
        int, Setting("random splits: validation nodes per class", least=1)
    ] = 30
    choose: Annotated[
        Literal["best", "last"],
        Setting("model to test: best on the validation nodes, or last epoch"),
    ] = "best"
    validate_every: Annotated[
        int, Setting("epochs between validations; 0: only at the end", least=0)
    ] = 1
    sample_threads: Annotated[
        int, Setting("threads that sample neighbours for coming batches", least=1, most=256)
    ] = 1


@dataclass(frozen=True, kw_only=True)
class NodesConfig:
    """Section `[nodes]`: the synthetic graph to generate before training, if it does not exist yet."""

    nodes: Annotated[int, Setting("number of nodes", "--nodes", 1, 1 << 31)] = 2000
    classes: Annotated[int, Setting("number of classes", "--classes", 2, 4096)] = 5
    degree: Annotated[
        int,
        Setting(
            "mean number of edges per node; a few nodes have many",
            "--degree",
            1,
            10_000,
        ),
    ] = 10
    features: Annotated[int, Setting("number of features per node", "--features", 1, DIM_MAX)] = 32
    noise: Annotated[
        float,
        Setting(
            "standard deviation of features around the mean of their class",
            "--noise",
            0,
            1e6,
        ),
    ] = 3.0
    within: Annotated[
        float,
        Setting("share of edges between nodes of equal class", "--within", 0, 1),
    ] = 0.8
    seed: Annotated[int, Setting("random seed", "--seed", 0, (1 << 44) - 1)] = 0
