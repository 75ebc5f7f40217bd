"""Settings of a run: frozen dataclasses, filled from a TOML file and then from flags.

Every section of the file is one dataclass and every key one field, so that flag, key and field share name, type,
limits and help. Anything that does not fit raises `ConfigError` with the key, the value and the fix.

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

import tomllib
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

from rowmill.errors import InvalidInput
from rowmill.node_config import GnnConfig, NodesConfig
from rowmill.setting import BELOW_ONE, DIM_MAX, FLOAT_MAX, Setting
from rowmill.size import parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping


class ConfigError(InvalidInput):
    """A setting is wrong; the message names it, its value and the fix."""


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
class GenerateConfig:
    """Section `[generate]`: a click log to make first, if it is not there yet."""

    rows: Annotated[int, Setting("rows of the log", "--rows", 1)]
    seed: Annotated[int, Setting("seed of everything random", "--seed", 0, (1 << 44) - 1)] = 0
    tables: Annotated[int, Setting("id features", "--tables", 1, 4096)] = 26
    rows_per_table: Annotated[
        int | None,
        Setting(
            "distinct ids of every feature (default: as in the Criteo log)",
            "--rows-per-table",
            1,
            1 << 40,
        ),
    ] = None
    zipf: Annotated[
        float | None,
        Setting(
            "one Zipf exponent for all ids (default: the law fitted to production)", "--zipf", 0
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class SequencesConfig:
    """Section `[sequences]`: a log of sequences to make first, if it is not there yet."""

    interactions: Annotated[
        Path | None,
        Setting(
            "parquet or TSV file with the columns user, item, timestamp and perhaps rating (default: generate some)",
            "--interactions",
        ),
    ] = None
    places: Annotated[
        int, Setting("items before the one shown that a row tells", "--places", 1, 10_000)
    ] = 20
    negatives: Annotated[
        int, Setting("rows without a click for each with one, to train on", "--negatives", 0, 1000)
    ] = 4
    candidates: Annotated[
        int, Setting("items to tell a user's last one from, itself included", "--candidates", 2)
    ] = 100
    seed: Annotated[int, Setting("seed of everything random", "--seed", 0, (1 << 44) - 1)] = 0
    users: Annotated[int, Setting("generated: users", "--users", 1)] = 1000
    items: Annotated[int, Setting("generated: items", "--items", 4)] = 1000
    events: Annotated[
        int, Setting("generated: interactions of a user, on average", "--events", 2)
    ] = 50


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
class KgeConfig:
    """Section `[kge]`: how a knowledge graph is learned."""

    objective: Annotated[
        Literal["1vsall", "kvsall", "negatives"],
        Setting(
            "what a query's answer is compared with: all entities, all with every answer of the query at once, or some"
        ),
    ] = "negatives"
    loss: Annotated[
        Literal["softmax", "logistic", "self_adversarial"], Setting("loss of a query's scores")
    ] = "softmax"
    negatives: Annotated[
        int, Setting("negatives: entities drawn for each batch", least=0, most=1 << 24)
    ] = 256
    in_batch: Annotated[
        bool, Setting("negatives: compare with the other entities of the batch too")
    ] = False
    reciprocal: Annotated[
        bool, Setting("ask for heads as tails of relations of their own, twice as many")
    ] = True
    regularizer: Annotated[
        Literal["none", "l2", "n3"], Setting("penalty on the rows of a batch's triples")
    ] = "none"
    entity_penalty: Annotated[
        float, Setting("its weight for entities", least=0, most=FLOAT_MAX)
    ] = 0.0
    relation_penalty: Annotated[
        float, Setting("its weight for relations", least=0, most=FLOAT_MAX)
    ] = 0.0
    entity_dropout: Annotated[
        float, Setting("share of the weights of entities left out", least=0, most=BELOW_ONE)
    ] = 0.0
    relation_dropout: Annotated[
        float, Setting("share of the weights of relations left out", least=0, most=BELOW_ONE)
    ] = 0.0
    smoothing: Annotated[
        float,
        Setting("softmax: share of the answers given to all candidates", least=0, most=BELOW_ONE),
    ] = 0.0
    temperature: Annotated[
        float, Setting("self_adversarial: how much harder wrong ones count", least=0, most=1e6)
    ] = 1.0
    margin: Annotated[
        float, Setting("transe, rotate: added to every score", least=0, most=FLOAT_MAX)
    ] = 0.0
    norm: Annotated[int, Setting("transe: of the distance", least=1, most=2)] = 1
    unseen: Annotated[
        Literal["error", "rank"],
        Setting(
            "entities that valid or test have and train has not: an error, or rows never learned"
        ),
    ] = "error"
    partitions: Annotated[
        int, Setting("ranges of entities whose triples are trained together", least=1, most=4096)
    ] = 1
    buffer_partitions: Annotated[
        int, Setting("how many of them are in use at a time", least=2, most=4096)
    ] = 4
    validate_every: Annotated[
        int, Setting("epochs between figures of the valid part; 0: only at the end", least=0)
    ] = 0


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


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of `rowmill train`."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    kge: KgeConfig = KgeConfig()
    gnn: GnnConfig = field(default_factory=GnnConfig)
    rows: RowsConfig = RowsConfig()
    eviction: EvictionConfig = EvictionConfig()
    admission: AdmissionConfig = AdmissionConfig()
    store: StoreConfig = StoreConfig()
    train: TrainConfig = TrainConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    generate: GenerateConfig | None = None
    sequences: SequencesConfig | None = None
    nodes: NodesConfig | None = None

    def __post_init__(self) -> None:
        makers = [name for name in ("generate", "sequences", "nodes") if getattr(self, name)]
        if len(makers) > 1:
            raise ConfigError(
                f"{' and '.join(f'[{name}]' for name in makers)} both make data.path: keep one of them"
            )
        parse_size(self.store.memory, name="store.memory")
        if self.store.row_memory is not None:
            parse_size(self.store.row_memory, name="store.row_memory")
        parse_size(self.store.feed_waiting, name="store.feed_waiting")
        if self.store.feed is not None:
            parse_size(self.store.feed, name="store.feed")
        if self.train.plain and self.store.feed is not None:
            raise ConfigError("store.feed needs a store: drop --plain or --feed")
        if self.train.plain and self.train.resume:
            raise ConfigError("train.resume needs a store: drop --plain or --resume")
        if self.train.plain and self.train.in_flight > 1:
            raise ConfigError("train.in_flight needs a store: drop --plain or --in-flight")
        if self.train.plain and self.checkpoint.push is not None:
            raise ConfigError("checkpoint.push needs a store: drop --plain or --push")
        if self.train.plain and self.rows.dtype != "fp32":
            raise ConfigError(
                f"rows.dtype = {self.rows.dtype!r} needs a store: drop --plain or --row-dtype"
            )
        if self.train.plain and self.eviction.rule != "none":
            raise ConfigError("eviction.rule needs a store: drop --plain or [eviction]")
        if self.train.plain and self.admission.min_count is not None:
            raise ConfigError("admission.min_count needs a store: drop --plain or [admission]")
        parse_size(self.admission.bytes, name="admission.bytes")
        train = self.train
        if train.task != "ctr" and train.dense_optimizer != "adam":
            raise ConfigError(
                f"train.dense_optimizer is of the task ctr: drop it with --task {train.task}"
            )
        of_task = {"ctr": ("fp32", "bf16", "split-bf16"), "kge": ("fp32", "bf16"), "gnn": ("fp32",)}
        if train.precision not in of_task[train.task]:
            raise ConfigError(
                f"train.precision = {train.precision!r} is not for the task {train.task}, "
                f"which takes {' or '.join(of_task[train.task])}"
            )
        if train.precision == "split-bf16" and train.dense_optimizer == "adam":
            raise ConfigError(
                "train.precision = 'split-bf16' needs --dense-optimizer adagrad or sgd: adam has no split form"
            )
        if train.precision == "split-bf16" and self.model.kind == "bst":
            raise ConfigError(
                "train.precision = 'split-bf16' is not for model.kind = 'bst', whose layer norms take float32 weights: "
                "use bf16"
            )

    def as_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""

        def plain(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: plain(item) for key, item in value.items()}  # pyright: ignore
            return str(value) if isinstance(value, Path) else value

        return plain(asdict(self))


SECTIONS: dict[str, type[Any]] = {
    "data": DataConfig,
    "model": ModelConfig,
    "kge": KgeConfig,
    "gnn": GnnConfig,
    "rows": RowsConfig,
    "eviction": EvictionConfig,
    "admission": AdmissionConfig,
    "store": StoreConfig,
    "train": TrainConfig,
    "checkpoint": CheckpointConfig,
    "generate": GenerateConfig,
    "sequences": SequencesConfig,
    "nodes": NodesConfig,
}


def settings_of(section: str) -> dict[str, tuple[Any, Setting]]:
    """Type and setting of every key of a section."""
    hints = get_type_hints(SECTIONS[section], include_extras=True)
    return {key: (hint.__origin__, hint.__metadata__[0]) for key, hint in hints.items()}


USUAL_MODELS = {"kge": "complex", "gnn": "graphsage"}
"""What a task trains if nothing is said: other tasks than `ctr` cannot train the model that a config begins with."""


def load_config(path: Path | None, flags: Mapping[tuple[str, str], Any] | None = None) -> Config:
    """Read a config file, if any, and let flags replace what it says.

    Args:
        path: A TOML file.
        flags: Values by (section, key), as text or typed; they win over the file.
    """
    content: dict[str, Any] = {}
    if path is not None:
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"config file {path} does not exist") from None
        except OSError as error:
            raise ConfigError(f"config file {path} cannot be read: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"config file {path} is not valid TOML: {error}") from None
    for name, values in content.items():
        if name not in SECTIONS:
            raise ConfigError(f"unknown section [{name}]; known: {', '.join(SECTIONS)}")
        if not isinstance(values, dict):
            raise ConfigError(
                f"{name} = {values!r}: {name} is a section, write [{name}] and keys under it"
            )
    for (section, key), value in (flags or {}).items():
        content.setdefault(section, {})[key] = value
    for task, usual in USUAL_MODELS.items():
        if content.get("train", {}).get("task") == task:
            content.setdefault("model", {}).setdefault("kind", usual)
    return Config(**{name: section_from(name, values) for name, values in content.items()})


def section_from(name: str, values: Mapping[str, Any]) -> Any:
    """One section from its keys; text is converted where a key wants a number, a path or a list.

    Examples:
        >>> section_from("train", {"batch": "1_024", "epochs": 2}).batch
        1024
    """
    known = settings_of(name)
    converted: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"unknown key {name}.{key}; known: {', '.join(known)}")
        hint, setting = known[key]
        converted[key] = _convert(f"{name}.{key}", value, hint, setting)
    for entry in fields(SECTIONS[name]):
        if entry.default is MISSING and entry.name not in converted:
            raise ConfigError(f"{name}.{entry.name} is not set: {known[entry.name][1].help}")
    return SECTIONS[name](**converted)


def _convert(name: str, value: Any, hint: Any, setting: Setting) -> Any:
    if get_origin(hint) is UnionType:
        if value is None or (isinstance(value, str) and value.lower() in ("none", "infinite")):
            return None
        hint = next(option for option in get_args(hint) if option is not NoneType)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ConfigError(f"{name} = {value!r}; it must be one of {', '.join(get_args(hint))}")
        return value
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{name} = {value!r}; it must be a list of integers")
        items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        return tuple(_convert(name, item, int, setting) for item in items)
    if hint is bool:
        if not isinstance(value, bool):
            raise ConfigError(f"{name} = {value!r}; it must be true or false")
        return value
    if hint in (int, float):
        return _number(name, value, hint, setting)
    if isinstance(value, bool) or not isinstance(value, str | Path | int):
        raise ConfigError(f"{name} = {value!r}; it must be text")
    if hint is Path and not str(value).strip():
        raise ConfigError(f"{name} is empty; give a path, or leave it out")
    return hint(str(value))


def _number(name: str, value: Any, kind: type[int | float], setting: Setting) -> int | float:
    least, most = setting.least, setting.most
    what = "an integer" if kind is int else "a number"
    if least is not None:
        what += f" of at least {least:g}"
    if most is not None:
        what += f" and at most {most if isinstance(most, int) else format(most, 'g')}"
    wrong = ConfigError(f"{name} = {value!r}; it must be {what}")
    try:
        if isinstance(value, bool) or (kind is int and isinstance(value, float)):
            raise ValueError
        number = kind(value)
    except (ValueError, TypeError, OverflowError):
        raise wrong from None
    if not abs(number) < float("inf") or (least is not None and number < least):
        raise wrong
    if most is not None and number > most:
        raise wrong
    return number
