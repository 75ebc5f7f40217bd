"""Settings of a run: frozen dataclasses, filled from a TOML file and then from flags.

Every section of the file is one dataclass and every key one field. Flag, key and field therefore share name, type,
limits and help. An invalid setting raises `ConfigError` with the key, the value and the fix.
"""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from rowmill.config.sections import (
    AdmissionConfig,
    CheckpointConfig,
    DataConfig,
    EvictionConfig,
    ModelConfig,
    RowsConfig,
    StoreConfig,
    TrainConfig,
    WarmStartConfig,
)
from rowmill.config.setting import ConfigError, Setting
from rowmill.ctr.settings import GenerateConfig, SequencesConfig
from rowmill.gnn.settings import GnnConfig, NodesConfig
from rowmill.kge.settings import KgeConfig
from rowmill.size import parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of `rowmill train`."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    kge: KgeConfig = field(default_factory=KgeConfig)
    gnn: GnnConfig = field(default_factory=GnnConfig)
    rows: RowsConfig = field(default_factory=RowsConfig)
    eviction: EvictionConfig = field(default_factory=EvictionConfig)
    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    generate: GenerateConfig | None = None
    sequences: SequencesConfig | None = None
    nodes: NodesConfig | None = None

    def __post_init__(self) -> None:
        makers = [name for name in ("generate", "sequences", "nodes") if getattr(self, name)]
        if len(makers) > 1:
            raise ConfigError(
                f"{' and '.join(f'[{name}]' for name in makers)} both write data.path: keep one of these sections"
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
        if self.train.replace and self.train.resume:
            raise ConfigError(
                "train.resume continues the run in --out and train.replace begins a new one there: drop --replace to "
                "continue, or --resume to begin"
            )
        if self.train.continues and not self.train.resume:
            raise ConfigError(
                "train.continues = true continues the run in --out: set train.resume too, or pass --continue RUN"
            )
        if self.train.continues and self.warm_start.tables:
            raise ConfigError(
                "warm_start sets the initial rows of a new run, but --continue uses the rows of RUN: drop --warm-start"
            )
        self._check_follow()
        if self.train.plain and self.train.replace:
            raise ConfigError(
                "train.replace needs a store, because a plain run makes no checkpoint: drop --plain or --replace"
            )
        if self.train.plain and self.train.in_flight > 1:
            raise ConfigError("train.in_flight needs a store: drop --plain or --in-flight")
        if self.train.plain and self.checkpoint.push is not None:
            raise ConfigError("checkpoint.push needs a store: drop --plain or --push")
        if self.train.plain and self.checkpoint.versions is not None:
            raise ConfigError("checkpoint.versions needs a store: drop --plain or --versions")
        if self.checkpoint.best is not None and (self.checkpoint.versions or 0) < 2:
            raise ConfigError(
                f"checkpoint.best = {self.checkpoint.best!r} keeps one of the versions: set checkpoint.versions "
                f"(--versions) to 2 or more, got {self.checkpoint.versions}"
            )
        if self.train.plain and self.rows.dtype != "fp32":
            raise ConfigError(
                f"rows.dtype = {self.rows.dtype!r} needs a store: drop --plain or --row-dtype"
            )
        if self.train.plain and self.rows.tables:
            raise ConfigError("rows.tables needs a store: drop --plain or [rows.tables]")
        if self.train.plain and self.warm_start.tables:
            raise ConfigError("warm_start needs a store: drop --plain or --warm-start")
        if self.train.plain and self.eviction.rule != "none":
            raise ConfigError("eviction.rule needs a store: drop --plain or [eviction]")
        if self.train.plain and self.admission.min_count is not None:
            raise ConfigError("admission.min_count needs a store: drop --plain or [admission]")
        parse_size(self.admission.bytes, name="admission.bytes")
        train = self.train
        if train.task != "ctr" and train.dense_optimizer != "adam":
            raise ConfigError(
                f"train.dense_optimizer applies only to --task ctr; remove it for --task {train.task}"
            )
        of_task = {"ctr": ("fp32", "bf16", "split-bf16"), "kge": ("fp32", "bf16"), "gnn": ("fp32",)}
        if train.precision not in of_task[train.task]:
            raise ConfigError(
                f"train.precision must be {' or '.join(of_task[train.task])} for --task {train.task}, "
                f"got {train.precision!r}"
            )
        if train.precision == "split-bf16" and train.dense_optimizer == "adam":
            raise ConfigError(
                "train.precision = 'split-bf16' needs --dense-optimizer adagrad or sgd: adam has no split-bf16 form"
            )
        if train.precision == "split-bf16" and self.model.kind == "bst":
            raise ConfigError(
                "train.precision = 'split-bf16' does not work with model.kind = 'bst', whose layer norms need float32 "
                "weights: use --precision bf16"
            )

    def _check_follow(self) -> None:
        if not self.data.follow:
            if self.data.until is not None:
                raise ConfigError(
                    f"data.until = {self.data.until!r} ends --follow: pass --follow, or drop --until"
                )
            return
        if self.data.until == "":
            raise ConfigError(
                "data.until is empty: pass the name of the last file, or drop --until"
            )
        for what, given in {
            f"train.epochs = {self.train.epochs} (each file is trained on once)": self.train.epochs
            != 1,
            "data.train_rows (all rows are trained on)": self.data.train_rows is not None,
            "train.plain (it makes no checkpoints)": self.train.plain,
            "[generate]": self.generate is not None,
            "[sequences]": self.sequences is not None,
        }.items():
            if given:
                raise ConfigError(
                    f"{what} does not work with data.follow: drop it, or drop --follow"
                )

    def as_dict(self) -> dict[str, Any]:
        """All settings as plain values, for JSON."""

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
    "warm_start": WarmStartConfig,
    "generate": GenerateConfig,
    "sequences": SequencesConfig,
    "nodes": NodesConfig,
}


def settings_of(section: str) -> dict[str, tuple[Any, Setting]]:
    """Type and `Setting` of every key of a section."""
    return _settings(SECTIONS[section])


def _settings(kind: type[Any]) -> dict[str, tuple[Any, Setting]]:
    hints = get_type_hints(kind, include_extras=True)
    return {key: (hint.__origin__, hint.__metadata__[0]) for key, hint in hints.items()}


USUAL_MODELS = {"kge": "complex", "gnn": "graphsage"}
"""Default model of each task but `ctr`, because these tasks cannot train the default of `ModelConfig.kind`."""


def load_config(
    path: Path | None,
    flags: Mapping[tuple[str, str], Any] | None = None,
    saved: Mapping[str, Mapping[str, Any]] | None = None,
) -> Config:
    """Read a config file, if any, and override its values with flags.

    Args:
        path: A TOML file, or None.
        flags: Values by (section, key), as text or typed.
        saved: Values by section and key that the file and flags override, in place of the defaults.

    Raises:
        ConfigError: The file cannot be read, or a section, key or value is invalid.
    """
    content = {} if path is None else read_settings(path)
    for name, values in content.items():
        if name not in SECTIONS:
            raise ConfigError(f"unknown section [{name}]; known: {', '.join(SECTIONS)}")
        if not isinstance(values, dict):
            raise ConfigError(
                f"{name} = {values!r}, but {name} is a section: write [{name}] and its keys below it"
            )
    for name, values in (saved or {}).items():
        given = content.get(name, {})
        # The parameters of a rule do not fit another one.
        content[name] = given if name == "eviction" and "rule" in given else {**values, **given}
    for (section, key), value in (flags or {}).items():
        content.setdefault(section, {})[key] = value
    for task, usual in USUAL_MODELS.items():
        if content.get("train", {}).get("task") == task:
            content.setdefault("model", {}).setdefault("kind", usual)
    return Config(**{name: section_from(name, values) for name, values in content.items()})


def read_settings(path: Path) -> dict[str, Any]:
    """The content of a config file; raises `ConfigError` if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"config file {path} does not exist") from None
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} is not valid TOML: {error}") from None


def section_from(name: str, values: Mapping[str, Any]) -> Any:
    """Make one section from its keys; text is converted to numbers and paths as the keys' types require.

    Examples:
        >>> section_from("train", {"batch": "1_024", "epochs": 2}).batch
        1024
    """
    return _made(SECTIONS[name], name, values)


def _made(kind: type[Any], name: str, values: Mapping[str, Any]) -> Any:
    """An instance of a dataclass of settings, whose keys are named `name.key`."""
    known = _settings(kind)
    converted: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"unknown key {name}.{key}; known: {', '.join(known)}")
        hint, setting = known[key]
        converted[key] = _convert(f"{name}.{key}", value, hint, setting)
    for entry in fields(kind):
        if entry.default is MISSING and entry.name not in converted:
            raise ConfigError(f"{name}.{entry.name} is not set: {known[entry.name][1].help}")
    return kind(**converted)


def _convert(name: str, value: Any, hint: Any, setting: Setting) -> Any:
    if get_origin(hint) in (UnionType, Union):
        if value is None or (isinstance(value, str) and value.lower() in ("none", "infinite")):
            return None
        hint = next(option for option in get_args(hint) if option is not NoneType)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ConfigError(f"{name} must be one of {', '.join(get_args(hint))}, got {value!r}")
        return value
    if get_origin(hint) is dict:
        return _by_name(name, value, get_args(hint)[1])
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{name} must be a list of integers, got {value!r}")
        items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        return tuple(_convert(name, item, int, setting) for item in items)
    if hint is bool:
        if not isinstance(value, bool):
            raise ConfigError(f"{name} must be true or false, got {value!r}")
        return value
    if hint in (int, float):
        return _number(name, value, hint, setting)
    if isinstance(value, bool) or not isinstance(value, str | Path | int):
        raise ConfigError(f"{name} must be text, got {value!r}")
    if hint is Path and not str(value).strip():
        raise ConfigError(f"{name} is empty; give a path, or leave it out")
    return hint(str(value))


def _by_name(name: str, value: Any, kind: type[Any]) -> dict[str, Any]:
    """Settings of single tables by name; a text is the `file` of those that have one."""
    if not isinstance(value, dict):
        raise ConfigError(f"{name} must be a section with a key per table, got {value!r}")
    made: dict[str, Any] = {}
    for table, given in cast("dict[str, Any]", value).items():
        of = f"{name}.{table}"
        values: Any = given
        if isinstance(given, str) and "file" in _settings(kind):
            values = {"file": given}
        if not isinstance(values, dict):
            raise ConfigError(
                f"{of} must be a section, got {given!r}: write [{of}] and its keys below it"
            )
        made[table] = _made(kind, of, cast("dict[str, Any]", values))
    return made


def _number(name: str, value: Any, kind: type[int | float], setting: Setting) -> int | float:
    least, most = setting.least, setting.most
    what = "an integer" if kind is int else "a number"
    if least is not None:
        what += f" of at least {least:g}"
    if most is not None:
        what += f" and at most {most if isinstance(most, int) else format(most, 'g')}"
    wrong = ConfigError(f"{name} must be {what}, got {value!r}")
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
