"""Sections of settings that all tasks share: data, model, rows, store, training and checkpoints.

The defaults were chosen on rows 51,200 to 64,000 of the 80,000-row Criteo sample, after training on the rows before
them; its test part was never used. The table gives AUC and logloss on these rows, means of 3 to 5 seeds:

| setting | default | alternatives |
|---|---|---|
| hidden widths | 128, 64 with 256, 128: 0.7731, 0.4477 | 64 with 128, 64: 0.7701, 0.4503; 512, 256, 64 with 512, 256: 0.7731, 0.4474 |
| dense_lr | 2e-3, decayed to 0 in the second half: 0.7751, 0.4456 | 1e-3: 0.7731, 0.4477; 1e-3, decayed: 0.7736, 0.4467; 2e-3: 0.7737, 0.4477; 3e-3, decayed: 0.7750, 0.4455 |
| rows.lr | 0.02 | 0.03: equal AUC; 0.01: 0.001 less; decayed like dense_lr: 0.0015 less |
| rows.initial_width | 0.01 | 0.001 to 0.05: equal AUC; 0.1: 0.001 less |
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from rowmill.config.setting import BELOW_ONE, DIM_MAX, FLOAT_MAX, Setting


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Section `[data]`: training and test data."""

    path: Annotated[
        Path | None,
        Setting(
            "training and test data; --task ctr: Parquet or TSV file, or a folder of them; kge: folder with train.tsv, "
            "valid.tsv and test.tsv; gnn: .npz file",
            "--data",
        ),
    ] = None
    schema: Annotated[
        Path | None,
        Setting("ctr: TOML file that names the columns (default: columns of Criteo)", "--schema"),
    ] = None
    train_rows: Annotated[
        int | None,
        Setting(
            "ctr: number of training rows, from the first; the rest is the test set (default: four fifths)",
            "--train-rows",
            1,
        ),
    ] = None
    follow: Annotated[
        bool,
        Setting(
            "ctr: train on the files that arrive in the folder --data, in the order of their names, until Ctrl-C or --until",
            "--follow",
        ),
    ] = False
    until: Annotated[
        str | None,
        Setting(
            "with --follow: end after the files whose names sort up to this name, once it or a later one has arrived",
            "--until",
            metavar="NAME",
        ),
    ] = None
    ids: Annotated[
        Literal["full", "hash", "vocabulary"],
        Setting(
            "ctr: how a value becomes an id: full = unchanged 64-bit id, hash = hashed into --buckets, "
            "vocabulary = number of the value in a vocabulary",
            "--ids",
        ),
    ] = "full"
    buckets: Annotated[
        int,
        Setting("with --ids hash: number of buckets per feature", "--buckets", 1, (1 << 31) - 1),
    ] = 1 << 20
    min_count: Annotated[
        int,
        Setting(
            "with --ids vocabulary: occurrences in the training rows that a value needs to get an id of its own",
            "--min-count",
            1,
        ),
    ] = 2


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Section `[model]`: the dense model and the embedding dimension."""

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
        Setting(
            "model; --task kge: transe, rotate, distmult or complex (default complex); --task gnn: graphsage or gat "
            "(default graphsage); --task ctr: all others",
            "--model",
        ),
    ] = "dlrm"
    dim: Annotated[
        int, Setting("embedding dimension: number of weights per row", "--dim", 1, DIM_MAX)
    ] = 16
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
    cross_layers: Annotated[int, Setting("dcn_v2: number of cross layers", least=1, most=1000)] = 2
    rank: Annotated[int, Setting("dcn_v2: rank of the cross matrices", least=1, most=DIM_MAX)] = 64
    attention: Annotated[
        tuple[int, ...],
        Setting("din: hidden widths of the activation unit", least=1, most=DIM_MAX),
    ] = (80, 40)
    heads: Annotated[int, Setting("bst: attention heads", least=1, most=DIM_MAX)] = 2
    auxiliary: Annotated[
        float,
        Setting(
            "dien: weight of the auxiliary loss, which predicts the next item of a history",
            least=0,
            most=FLOAT_MAX,
        ),
    ] = 1.0


OptimizerName = Literal[
    "sgd", "momentum_sgd", "adagrad", "rowwise_adagrad", "adam", "rowwise_adam", "ftrl"
]


@dataclass(frozen=True, kw_only=True)
class OptimizerParameters:
    """Parameters of row optimizers besides the learning rate. An omitted one has the default of its class in `rowmill.optim`."""

    momentum: Annotated[
        float | None, Setting("momentum_sgd: decay of the velocity", least=1e-6, most=BELOW_ONE)
    ] = None
    nesterov: Annotated[bool | None, Setting("momentum_sgd: use Nesterov momentum")] = None
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
        Setting(
            "adagrad, adam and their row-wise forms: added to the root in the denominator",
            least=1e-30,
            most=FLOAT_MAX,
        ),
    ] = None
    beta: Annotated[
        float | None,
        Setting("ftrl: added to the root in the denominator", least=0, most=FLOAT_MAX),
    ] = None
    l1: Annotated[
        float | None,
        Setting("ftrl: L1 penalty; sets small weights to 0", least=0, most=FLOAT_MAX),
    ] = None
    l2: Annotated[
        float | None, Setting("ftrl: L2 penalty, l2 / 2 times the square", least=0, most=FLOAT_MAX)
    ] = None
    initial_accumulator: Annotated[
        float | None,
        Setting(
            "adagrad, rowwise_adagrad, ftrl: initial sum of squared gradients",
            least=0,
            most=FLOAT_MAX,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class TableRowsConfig(OptimizerParameters):
    """Section `[rows.tables.NAME]`: settings of the table NAME that override `[rows]`."""

    optimizer: Annotated[OptimizerName | None, Setting("optimizer of the rows of this table")] = (
        None
    )
    lr: Annotated[
        float | None, Setting("learning rate of the rows of this table", least=0, most=FLOAT_MAX)
    ] = None


@dataclass(frozen=True, kw_only=True)
class RowsConfig(OptimizerParameters):
    """Section `[rows]`: initial values and optimizer of rows."""

    optimizer: Annotated[
        OptimizerName,
        Setting("optimizer of the embedding rows", "--row-optimizer"),
    ] = "adagrad"
    lr: Annotated[
        float, Setting("learning rate of the embedding rows", "--row-lr", 0, FLOAT_MAX)
    ] = 0.02
    dtype: Annotated[
        Literal["fp32", "bf16", "split-bf16"],
        Setting(
            "how weights are stored: bf16 takes half the bytes; split-bf16 keeps float32 precision, but lookups "
            "read only the upper bfloat16 halves",
            "--row-dtype",
        ),
    ] = "fp32"
    initial_width: Annotated[
        float,
        Setting(
            "new weights are uniform in [-initial_width, initial_width)", least=1e-9, most=FLOAT_MAX
        ),
    ] = 0.01
    tables: Annotated[
        dict[str, TableRowsConfig] | None,
        Setting("[rows.tables.NAME]: optimizer, lr and parameters of the table NAME"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class EvictionConfig:
    """Section `[eviction]`: rule by which every table deletes rows."""

    rule: Annotated[
        Literal["none", "ttl", "least_frequent", "lowest_norm"],
        Setting("eviction rule: none, or rowmill.TTL, rowmill.LeastFrequent, rowmill.LowestNorm"),
    ] = "none"
    steps: Annotated[
        int | None, Setting("ttl: evict rows not updated for this many steps", least=1)
    ] = None
    max_rows: Annotated[
        int | None, Setting("least_frequent, lowest_norm: rows to keep per table", least=1)
    ] = None
    below: Annotated[
        float | None,
        Setting(
            "lowest_norm: evict rows below this norm, in place of max_rows",
            least=1e-30,
            most=FLOAT_MAX,
        ),
    ] = None
    every: Annotated[int, Setting("steps between evictions", least=1)] = 100


@dataclass(frozen=True, kw_only=True)
class AdmissionConfig:
    """Section `[admission]`: rule by which ids get a row."""

    min_count: Annotated[
        int | None,
        Setting("training steps that must look up an id before it gets a row", least=2, most=255),
    ] = None
    bytes: Annotated[
        str, Setting("memory per table for the sketch that counts lookups, a power of two")
    ] = "1MiB"


@dataclass(frozen=True, kw_only=True)
class StoreConfig:
    """Section `[store]`: folder, memory and feed of the store with the rows."""

    path: Annotated[
        Path | None, Setting("folder of the store with the rows (default: OUT/store)", "--store")
    ] = None
    memory: Annotated[
        str,
        Setting(
            "memory budget of the store, including index and I/O",
            "--memory",
        ),
    ] = "2GiB"
    row_memory: Annotated[
        str | None,
        Setting(
            "part of --memory for resident rows and log buffers (default: what the index leaves)",
            "--row-memory",
        ),
    ] = None
    staleness_bound: Annotated[
        int | None,
        Setting(
            "number of updates that a row may lack when a step reads it: 0 = synchronous, infinite = no bound",
            "--staleness-bound",
            0,
            255,
        ),
    ] = 0
    lookahead: Annotated[
        int | None,
        Setting(
            "number of batches to prefetch (default: as many as fit into 1/32 of --memory, at least 4 and at most 60; "
            "4 under torchrun)",
            "--lookahead",
            0,
        ),
    ] = None
    feed: Annotated[
        str | None,
        Setting(
            'publish changed rows for rowmill follow, in at most this much disk space, such as "1GiB" (default: no feed)',
            "--feed",
        ),
    ] = None
    feed_interval_s: Annotated[
        float,
        Setting("longest time in seconds between two publications", least=1e-3, most=3600),
    ] = 0.1
    feed_waiting: Annotated[
        str,
        Setting(
            "memory beyond --memory for changed rows that leave memory before the feed publishes them"
        ),
    ] = "64MiB"


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Section `[train]`: task, steps, optimizer of the dense layers, and outputs."""

    epochs: Annotated[int, Setting("passes over the training data", "--epochs", 0)] = 1
    batch: Annotated[
        int,
        Setting(
            "examples per step: rows of a click log; kge: triples, or queries with kvsall; gnn: nodes",
            "--batch",
            1,
        ),
    ] = 256
    task: Annotated[
        Literal["ctr", "kge", "gnn"],
        Setting(
            "ctr: predict clicks; kge: predict links of a knowledge graph; gnn: classify nodes",
            "--task",
        ),
    ] = "ctr"
    in_flight: Annotated[
        int,
        Setting(
            "number of overlapping steps: their rows are looked up and not yet updated; --staleness-bound limits how many "
            "updates a row may lack",
            "--in-flight",
            1,
            1000,
        ),
    ] = 1
    seed: Annotated[
        int,
        Setting(
            "random seed of initial rows, dense weights, dropout and sampling",
            "--seed",
            0,
            (1 << 64) - 1,
        ),
    ] = 0
    dense_lr: Annotated[
        float, Setting("learning rate of the dense layers", "--dense-lr", 0, FLOAT_MAX)
    ] = 2e-3
    dense_optimizer: Annotated[
        Literal["adam", "adagrad", "sgd"],
        Setting("ctr: optimizer of the dense layers", "--dense-optimizer"),
    ] = "adam"
    precision: Annotated[
        Literal["fp32", "bf16", "split-bf16"],
        Setting(
            "number format of matrix products; split-bf16 (ctr with --dense-optimizer adagrad or sgd): dense weights are "
            "bfloat16 too, and the optimizer keeps their lower halves; kge: fp32 or bf16; gnn: fp32",
            "--precision",
        ),
    ] = "fp32"
    dense_decay_from: Annotated[
        float,
        Setting(
            "share of the run after which dense_lr falls linearly to 0; 1: never", least=0, most=1
        ),
    ] = 0.5
    threads: Annotated[
        int | None,
        Setting(
            "number of threads (default: all cores but one, which is left for prefetching)",
            "--threads",
            1,
            256,
        ),
    ] = None
    backend: Annotated[
        Literal["gloo", "oneccl", "nccl"],
        Setting(
            "under torchrun: communication backend; nccl needs a click model and one GPU per rank",
            "--backend",
        ),
    ] = "gloo"
    rows_on_wire: Annotated[
        Literal["fp32", "bf16"],
        Setting(
            "under torchrun: number format of rows and gradients in messages; bf16 halves their bytes",
            "--rows-on-wire",
        ),
    ] = "fp32"
    placement: Annotated[
        str | None,
        Setting(
            "under torchrun: where rows are and what is sent: auto, rows, pooled, whole, whole:RANK or replicated; for all "
            "tables, and after TABLE= for one, such as auto,user=whole:1 (default: auto, which plans from the first batches; a "
            "resumed run keeps its placements)",
            "--placement",
            metavar="PLACEMENT",
        ),
    ] = None
    speeds: Annotated[
        Path | None,
        Setting(
            "under torchrun: file with the speeds of links and cores from which --placement auto plans, as rowmill plan --probe "
            "writes it (default: 1 Gbit/s and one core)",
            "--speeds",
            metavar="FILE",
        ),
    ] = None
    checkpoint_every: Annotated[
        int,
        Setting("steps between checkpoints; 0: only at the end", "--checkpoint-every", 0),
    ] = 1000
    log_every: Annotated[int, Setting("steps between logged metrics", "--log-every", 1)] = 50
    out: Annotated[
        Path,
        Setting(
            "folder of the run: report, TensorBoard events and, without --store, rows; without --out, a new run gets "
            "out/TASK-TIME, to which the link out/latest points",
            "--out",
        ),
    ] = Path("out/latest")
    resume: Annotated[
        bool, Setting("continue the run in --out from its last checkpoint", "--resume")
    ] = False
    replace: Annotated[
        bool,
        Setting(
            "start a new run in --out; the old one is kept as OUT.replaced until the new run has its first "
            "checkpoint",
            "--replace",
        ),
    ] = False
    continues: Annotated[
        bool, Setting("continue the run in --out as --continue does; needs resume")
    ] = False
    plain: Annotated[
        bool,
        Setting(
            "ctr: keep rows in torch.nn.EmbeddingBag instead of a store, for comparison", "--plain"
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Section `[checkpoint]`: versions that are kept, and copies of checkpoints at a URL."""

    push: Annotated[
        str | None,
        Setting(
            "copy each checkpoint to this s3://, gs://, az:// or file:// URL",
            "--push",
            metavar="URL",
        ),
    ] = None
    keep: Annotated[
        int, Setting("number of checkpoints to keep at --push", "--keep", 1, 10_000)
    ] = 3
    versions: Annotated[
        int | None,
        Setting(
            "number of checkpoints to keep as versions, for rowmill versions and rollback (default: only the last "
            "checkpoint)",
            "--versions",
            1,
            1000,
        ),
    ] = None
    best: Annotated[
        str | None,
        Setting(
            "with --versions of 2 or more: metric of the curves, such as auc; the version with its best value is always kept",
            "--best",
            metavar="METRIC",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class TableFileConfig:
    """Section `[warm_start.tables.NAME]`: the file with the initial rows of the table NAME. `NAME = "FILE"` sets `file` only."""

    file: Annotated[
        Path, Setting("vectors of rows: .npy, .parquet, or a state dict of torch (.pt)")
    ]
    vectors: Annotated[
        str | None,
        Setting(
            "Parquet: column of vectors (default vector); state dict: name of the matrix (default: the only one)"
        ),
    ] = None
    ids: Annotated[
        str | None,
        Setting(
            "ids of the vectors: Parquet: column; else an .npy file (default: column id, or NAME.ids.npy beside NAME.npy, "
            "if it exists; else the number of the row)"
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class WarmStartConfig:
    """Section `[warm_start]`: initial rows of a new run, from files."""

    tables: Annotated[
        dict[str, TableFileConfig] | None,
        Setting("[warm_start.tables]: NAME = FILE, the initial rows of the table NAME"),
    ] = None
