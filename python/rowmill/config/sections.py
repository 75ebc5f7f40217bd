"""Sections of a run's settings that every task has: data, model, rows, store, training and checkpoints.

The defaults were chosen on rows 51,200 to 64,000 of the 80,000-row Criteo sample, after training on the rows before
them and never on its test part; AUC and logloss there, means of 3 to 5 seeds:

| choice | taken | others |
|---|---|---|
| hidden widths | 128, 64 with 256, 128: 0.7731, 0.4477 | 64 with 128, 64: 0.7701, 0.4503; 512, 256, 64 with 512, 256: 0.7731, 0.4474 |
| dense rate | 2e-3, falling to 0 from half-way: 0.7751, 0.4456 | 1e-3: 0.7731, 0.4477; 1e-3, falling: 0.7736, 0.4467; 2e-3: 0.7737, 0.4477; 3e-3, falling: 0.7750, 0.4455 |
| row rate | 0.02 | 0.03: the same; 0.01: 0.001 less AUC; falling with the dense one: 0.0015 less |
| initial rows | uniform in +-0.01 | 0.001 to 0.05: the same; 0.1: 0.001 less |
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from rowmill.config.setting import BELOW_ONE, DIM_MAX, FLOAT_MAX, Setting


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Section `[data]`: what to train and test on."""

    path: Annotated[
        Path | None,
        Setting(
            "parquet or TSV file, or a directory of them; kge: a folder with train, valid and test.tsv; gnn: an .npz file",
            "--data",
        ),
    ] = None
    schema: Annotated[
        Path | None, Setting("TOML file that names the columns (default: Criteo's)", "--schema")
    ] = None
    train_rows: Annotated[
        int | None,
        Setting(
            "rows to train on; the rest is tested (default: all but a fifth)", "--train-rows", 1
        ),
    ] = None
    ids: Annotated[
        Literal["full", "hash", "vocabulary"],
        Setting(
            "64-bit ids as they are, hashed into buckets, or numbered by a vocabulary", "--ids"
        ),
    ] = "full"
    buckets: Annotated[
        int, Setting("with --ids hash: buckets per feature", "--buckets", 1, (1 << 31) - 1)
    ] = 1 << 20
    min_count: Annotated[
        int,
        Setting(
            "with --ids vocabulary: occurrences a value needs in the train part", "--min-count", 1
        ),
    ] = 2


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Section `[model]`: the dense half, and the dimension of the rows."""

    kind: Annotated[
        Literal[
            "dlrm",
            "dcn_v2",
            "ffnn",
            "wide_deep",
            "mt_wide_deep",
            "ncf",
            "two_tower",
            "din",
            "dien",
            "bst",
            "transe",
            "rotate",
            "distmult",
            "complex",
            "graphsage",
            "gat",
        ],
        Setting("the model", "--model"),
    ] = "dlrm"
    dim: Annotated[int, Setting("weights per row", "--dim", 1, DIM_MAX)] = 16
    bottom: Annotated[
        tuple[int, ...],
        Setting("dlrm: hidden widths below the interaction", least=1, most=DIM_MAX),
    ] = (128, 64)
    top: Annotated[
        tuple[int, ...],
        Setting("dlrm: hidden widths above the interaction", least=1, most=DIM_MAX),
    ] = (256, 128)
    deep: Annotated[
        tuple[int, ...],
        Setting("all but dlrm: hidden widths of the deep tower or towers", least=1, most=DIM_MAX),
    ] = (
        256,
        128,
    )
    cross_layers: Annotated[int, Setting("dcn_v2: crosses", least=1, most=1000)] = 2
    rank: Annotated[int, Setting("dcn_v2: rank of the cross matrices", least=1, most=DIM_MAX)] = 64
    attention: Annotated[
        tuple[int, ...],
        Setting("din: hidden widths of the activation unit", least=1, most=DIM_MAX),
    ] = (80, 40)
    heads: Annotated[int, Setting("bst: attention heads", least=1, most=DIM_MAX)] = 2
    auxiliary: Annotated[
        float,
        Setting("dien: weight of the loss of the next place of a history", least=0, most=FLOAT_MAX),
    ] = 1.0


@dataclass(frozen=True, kw_only=True)
class RowsConfig:
    """Section `[rows]`: how rows are born and updated.

    A parameter of an optimizer that is left out has the default of its class in `rowmill.optim`.
    """

    optimizer: Annotated[
        Literal[
            "sgd", "momentum_sgd", "adagrad", "rowwise_adagrad", "adam", "rowwise_adam", "ftrl"
        ],
        Setting("optimizer of the rows", "--row-optimizer"),
    ] = "adagrad"
    lr: Annotated[float, Setting("learning rate of the rows", "--row-lr", 0, FLOAT_MAX)] = 0.02
    dtype: Annotated[
        Literal["fp32", "bf16", "split-bf16"],
        Setting(
            "how weights are stored: bf16 takes half the bytes; of split-bf16 lookups read half of them, "
            "updates all",
            "--row-dtype",
        ),
    ] = "fp32"
    initial_width: Annotated[
        float,
        Setting("new weights are uniform between minus and plus this", least=1e-9, most=FLOAT_MAX),
    ] = 0.01
    momentum: Annotated[
        float | None, Setting("momentum_sgd: decay of the velocity", least=1e-6, most=BELOW_ONE)
    ] = None
    nesterov: Annotated[bool | None, Setting("momentum_sgd: take Nesterov's step")] = None
    beta1: Annotated[
        float | None,
        Setting("adam, rowwise_adam: decay of the first moment", least=0, most=BELOW_ONE),
    ] = None
    beta2: Annotated[
        float | None,
        Setting("adam, rowwise_adam: decay of the second moment", least=0, most=BELOW_ONE),
    ] = None
    eps: Annotated[
        float | None,
        Setting("Adagrads and Adams: added to the root", least=1e-30, most=FLOAT_MAX),
    ] = None
    beta: Annotated[float | None, Setting("ftrl: added to the root", least=0, most=FLOAT_MAX)] = (
        None
    )
    l1: Annotated[
        float | None,
        Setting("ftrl: penalty on absolute weights; makes weights 0", least=0, most=FLOAT_MAX),
    ] = None
    l2: Annotated[
        float | None, Setting("ftrl: penalty on half the squares", least=0, most=FLOAT_MAX)
    ] = None
    initial_accumulator: Annotated[
        float | None,
        Setting("Adagrads, ftrl: what sums of squares begin with", least=0, most=FLOAT_MAX),
    ] = None


@dataclass(frozen=True, kw_only=True)
class EvictionConfig:
    """Section `[eviction]`: which rows of every table are removed for good."""

    rule: Annotated[
        Literal["none", "ttl", "least_frequent", "lowest_norm"],
        Setting("none, or the class of rowmill that it is named after"),
    ] = "none"
    steps: Annotated[int | None, Setting("ttl: steps without a change", least=1)] = None
    max_rows: Annotated[
        int | None, Setting("least_frequent, lowest_norm: rows to keep per table", least=1)
    ] = None
    below: Annotated[
        float | None, Setting("lowest_norm: the norm instead", least=1e-30, most=FLOAT_MAX)
    ] = None
    every: Annotated[int, Setting("steps from one eviction to the next", least=1)] = 100


@dataclass(frozen=True, kw_only=True)
class AdmissionConfig:
    """Section `[admission]`: which ids get a row."""

    min_count: Annotated[
        int | None, Setting("steps that ask for an id before it has a row", least=2, most=255)
    ] = None
    bytes: Annotated[str, Setting("memory of the sketch of a table, a power of two")] = "1MiB"


@dataclass(frozen=True, kw_only=True)
class StoreConfig:
    """Section `[store]`: where rows live, and with how much memory."""

    path: Annotated[Path | None, Setting("folder of the rows (default: OUT/store)", "--store")] = (
        None
    )
    memory: Annotated[str, Setting("memory of the store, index and I/O included", "--memory")] = (
        "2GiB"
    )
    row_memory: Annotated[
        str | None,
        Setting("expert: memory for rows and log buffers alone, within --memory", "--row-memory"),
    ] = None
    staleness_bound: Annotated[
        int | None,
        Setting(
            'updates a row may lag behind: 0 is synchronous, "infinite" no bound',
            "--staleness-bound",
            0,
            255,
        ),
    ] = 0
    lookahead: Annotated[
        int | None,
        Setting(
            "batches whose rows are fetched in advance (default: up to 60, as long as those that wait take less than "
            "a 32nd of --memory; on many ranks 4)",
            "--lookahead",
            0,
        ),
    ] = None
    feed: Annotated[
        str | None,
        Setting(
            "bytes on disk for a feed of what changes, which rowmill follow reads (default: none)",
            "--feed",
        ),
    ] = None
    feed_interval_s: Annotated[
        float,
        Setting("longest time between two rounds of publishing, in seconds", least=1e-3, most=3600),
    ] = 0.1
    feed_waiting: Annotated[
        str,
        Setting("memory, beyond --memory, for rows that leave it before the feed has said them"),
    ] = "64MiB"


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Section `[train]`: the run."""

    epochs: Annotated[int, Setting("passes over the train part", "--epochs", 0)] = 1
    batch: Annotated[
        int,
        Setting("rows per step; kge: triples, or queries with kvsall; gnn: nodes", "--batch", 1),
    ] = 256
    task: Annotated[
        Literal["ctr", "kge", "gnn"],
        Setting("clicks of a log, links of a knowledge graph, or classes of nodes", "--task"),
    ] = "ctr"
    in_flight: Annotated[
        int,
        Setting(
            "steps whose rows may be read before the first of them is updated; how far rows lag behind is up to "
            "store.staleness_bound",
            "--in-flight",
            1,
            1000,
        ),
    ] = 1
    seed: Annotated[int, Setting("seed of rows and dense weights", "--seed", 0, (1 << 64) - 1)] = 0
    dense_lr: Annotated[
        float, Setting("learning rate of the dense half", "--dense-lr", 0, FLOAT_MAX)
    ] = 2e-3
    dense_optimizer: Annotated[
        Literal["adam", "adagrad", "sgd"],
        Setting("ctr: optimizer of the dense half", "--dense-optimizer"),
    ] = "adam"
    precision: Annotated[
        Literal["fp32", "bf16", "split-bf16"],
        Setting(
            "ctr: what the dense half multiplies in; split-bf16: its weights are bfloat16 too, their lower halves state "
            "of adagrad or sgd; kge: fp32 or bf16, what scores are multiplied in",
            "--precision",
        ),
    ] = "fp32"
    dense_decay_from: Annotated[
        float,
        Setting(
            "share of the run after which that rate falls evenly to 0; 1: never", least=0, most=1
        ),
    ] = 0.5
    threads: Annotated[
        int | None,
        Setting("threads (default: all cores but one, which fetches rows)", "--threads", 1, 256),
    ] = None
    backend: Annotated[
        Literal["gloo", "oneccl", "nccl"],
        Setting("under torchrun: what carries messages; nccl: a GPU for each rank", "--backend"),
    ] = "gloo"
    rows_on_wire: Annotated[
        Literal["fp32", "bf16"],
        Setting(
            "under torchrun: what rows and their gradients travel as, bf16 in half the bytes",
            "--rows-on-wire",
        ),
    ] = "fp32"
    checkpoint_every: Annotated[
        int, Setting("steps between checkpoints; 0: only at the end", "--checkpoint-every", 0)
    ] = 1000
    log_every: Annotated[int, Setting("steps between points of the curves", "--log-every", 1)] = 50
    out: Annotated[Path, Setting("folder of report and events", "--out")] = Path("out/train")
    resume: Annotated[bool, Setting("go on from the last checkpoint", "--resume")] = False
    plain: Annotated[
        bool, Setting("rows in torch.nn.EmbeddingBag instead of a store, to compare", "--plain")
    ] = False


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Section `[checkpoint]`: where checkpoints go besides the folder of the rows."""

    push: Annotated[
        str | None,
        Setting("URL each checkpoint is copied to: s3://, gs://, az:// or file://", "--push"),
    ] = None
    keep: Annotated[int, Setting("checkpoints to keep there", "--keep", 1, 10_000)] = 3
