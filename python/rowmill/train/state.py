"""The state of a run that a checkpoint holds beside the rows, and its serialised form."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from zlib import crc32

import torch
from torch import nn

from rowmill.config.setting import ConfigError
from rowmill.nn import dense_state_dict, load_dense_state_dict
from rowmill.train.run_files import RunFiles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rowmill.config.config import Config
    from rowmill.ctr.data import Source
    from rowmill.gnn.node_graph import NodeGraph
    from rowmill.kge.graph import Graph

ATTACHMENT = "rowmill.train"
_CHECKED_ROWS = 1024


@dataclass
class RunState:
    """Position in the data, and measurements so far.

    `counts` are counters of the rows over the whole run, restarts included. `test` is None until the run is complete.
    """

    epoch: int = 0
    row: int = 0
    step: int = 0
    seconds: float = 0.0
    looked_up: int = 0
    cold: int = 0
    stalled_s: float = 0.0
    counts: dict[str, int] = field(default_factory=dict[str, int])
    curve: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    test: dict[str, float | None] | None = None

    @property
    def hit_rate(self) -> float | None:
        """Share of looked-up rows that were in memory."""
        return 1.0 - self.cold / self.looked_up if self.looked_up else None

    @property
    def stall_share(self) -> float | None:
        """Share of the time that the loop waited for cold rows."""
        return min(self.stalled_s / self.seconds, 1.0) if self.seconds else None


@dataclass(eq=False)
class Run:
    """Everything of a run that a checkpoint holds beside the rows.

    The random streams of Python and NumPy are not saved: a run does not use them.

    Attributes:
        model: The model with its dense weights.
        optimizer: The optimizer of the dense weights, if there is one.
        identity: Settings and properties of the data that must be equal when a run resumes.
        conditions: Further conditions of bit-identical results.
        files: Files for export and prediction, written beside the checkpoint.
        state: Position and measurements.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    identity: Mapping[str, Any]
    conditions: Mapping[str, Any]
    files: RunFiles = field(default_factory=lambda: RunFiles({}))
    state: RunState = field(default_factory=RunState)

    def described(self) -> dict[str, str]:
        """Identity, conditions and state, each as JSON."""
        return {
            "identity": json.dumps(self.identity, sort_keys=True),
            "conditions": json.dumps(self.conditions, sort_keys=True),
            "state": json.dumps(vars(self.state)),
            "files": json.dumps(self.files.names),
        }

    def go_on(self, described: Mapping[str, str]) -> list[str]:
        """Take over the state of a described run; raises `ConfigError` if the identities differ.

        Returns:
            The changed conditions, each as `name was x and is y`.
        """
        check_same_run(described["identity"], self.identity)
        self.state = RunState(**json.loads(described["state"]))
        # Checkpoints older than the device setting have dense halves on the CPU.
        before = {"device": "cpu", **json.loads(described["conditions"])}
        return [
            f"{name} was {before.get(name)!r} and is {value!r}"
            for name, value in self.conditions.items()
            if before.get(name) != value
        ]

    def pack(self) -> bytes:
        """Serialise the run, with torch's random stream."""
        buffer = io.BytesIO()
        content = {
            **self.described(),
            "model": dense_state(self.model),
            "optimizer": None if self.optimizer is None else self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
        }
        torch.save(content, buffer)
        return buffer.getvalue()

    def unpack(self, packed: bytes) -> list[str]:
        """Restore a packed run: as `go_on`, and dense weights, optimizer and random stream."""
        content = unpacked(packed)
        changed = self.go_on(content)
        load_dense_state_dict(self.model, content["model"])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(content["optimizer"])
        torch.set_rng_state(content["random"])
        return changed


def described_in(packed: bytes) -> dict[str, str]:
    """The result of `Run.described` at the time a run was packed."""
    content = unpacked(packed)
    names = ("identity", "conditions", "state", "files")
    return {name: content[name] for name in names if name in content}


def files_of(described: Mapping[str, Any]) -> dict[str, str]:
    """Names of the files of a described run by role; empty for runs from before there were any."""
    return json.loads(described.get("files", "{}"))


def progress_of(described: Mapping[str, str]) -> str:
    """The position of a described run as text."""
    state = RunState(**json.loads(described["state"]))
    step = f"step {state.step:,}"
    return f"{step} ({state.curve[-1]['rows']:,} rows)" if state.curve else step


def unpacked(packed: bytes) -> dict[str, Any]:
    """What `Run.pack` packed, by name."""
    return torch.load(io.BytesIO(packed), weights_only=True)


def check_same_run(saved: str, identity: Mapping[str, Any]) -> None:
    """Raise `ConfigError`, naming the first difference, if a saved identity (JSON) differs from `identity`."""
    # Values of settings that older checkpoints do not have.
    before: dict[str, Any] = {
        "rows.dtype": "fp32",
        "train.task": "ctr",
        "train.dense_optimizer": "adam",
        "train.precision": "fp32",
        "model.attention": [80, 40],
        "model.heads": 2,
        "model.auxiliary": 1.0,
    }
    before |= json.loads(saved)
    for key, value in json.loads(json.dumps(identity)).items():
        if before.get(key) != value:
            raise ConfigError(
                f"cannot resume: {key} was {before.get(key)!r} and is {value!r}; "
                "use the settings of the first run, or start a new run with another --out"
            )


def dense_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of everything but the embeddings."""
    return [parameter for name, parameter in model.named_parameters() if not _is_row(name)]


def dense_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state of everything but the embeddings."""
    return {name: value for name, value in dense_state_dict(model).items() if not _is_row(name)}


def click_identity(
    config: Config, source: Source, *, train_rows: int, vocabulary: str | None
) -> dict[str, Any]:
    """The identity of a run of `--task ctr`: what must be equal when it resumes."""
    settings = config.as_dict()
    return {
        "columns": source.schema.names,
        # None without histories, as in checkpoints older than histories.
        "histories": [*source.schema.histories, source.schema.places]
        if source.schema.histories
        else None,
        "item_ids": source.schema.item_ids if config.model.kind == "two_tower" else None,
        "data rows": source.rows,
        "train rows": train_rows,
        "checksum of the first rows": _check_of_first_rows(source),
        "vocabulary": vocabulary,
        **{f"data.{key}": settings["data"][key] for key in ("ids", "buckets", "min_count")},
        **identity_of(config),
    }


def identity_of(config: Config) -> dict[str, Any]:
    """The settings that must be equal when a run of any task resumes."""
    settings = config.as_dict()
    return {
        **{f"model.{key}": value for key, value in settings["model"].items()},
        **{f"rows.{key}": value for key, value in settings["rows"].items()},
        **_chosen("eviction", settings["eviction"], config.eviction.rule != "none"),
        **_chosen("admission", settings["admission"], config.admission.min_count is not None),
        **{
            f"train.{key}": settings["train"][key]
            for key in (
                "task",
                "batch",
                "seed",
                "dense_lr",
                "dense_optimizer",
                "precision",
                "dense_decay_from",
                "log_every",
                "plain",
            )
        },
        # None for one step at a time, as in checkpoints older than this setting.
        "train.in_flight": config.train.in_flight if config.train.in_flight > 1 else None,
        # The dense learning rate decays towards the end of the last epoch.
        "train.epochs": config.train.epochs if config.train.dense_decay_from < 1 else None,
        "store.staleness_bound": settings["store"]["staleness_bound"],
    }


def graph_identity(config: Config, graph: Graph) -> dict[str, Any]:
    """The identity of a run of `--task kge`: what must be equal when it resumes."""
    settings = config.as_dict()["kge"]
    # The number of validations only adds points to the curves.
    del settings["validate_every"]
    return {
        "entities": graph.entity_count,
        "relations": graph.relation_count,
        "checksum of the triples": graph.fingerprint(),
        **{f"kge.{key}": value for key, value in settings.items()},
        **identity_of(config),
        # No dense learning rate decays towards the end, so a run may resume with more epochs.
        "train.epochs": None,
    }


def node_identity(config: Config, graph: NodeGraph) -> dict[str, Any]:
    """The identity of a run of `--task gnn`: what must be equal when it resumes."""
    settings = config.as_dict()["gnn"]
    # Samples do not depend on the number of threads, and each split is a run of its own.
    del settings["sample_threads"], settings["splits"]
    return {
        "nodes": graph.nodes,
        "edges": graph.edges,
        "checksum of the graph": graph.fingerprint(),
        **{f"gnn.{key}": value for key, value in settings.items()},
        **identity_of(config),
    }


def _chosen(section: str, settings: dict[str, Any], used: bool) -> dict[str, Any]:
    """A section of an identity; None if it is not used, as in checkpoints older than the section."""
    return {section: {key: str(value) for key, value in settings.items()} if used else None}


def _check_of_first_rows(source: Source) -> str:
    """A checksum that detects another log with the same number of rows."""
    check = 0
    for block in source.blocks(0, min(source.rows, _CHECKED_ROWS)):
        for values in (block.labels, block.dense, block.ids):
            check = crc32(values.tobytes(), check)
    return f"{check:08x}"


def _is_row(name: str) -> bool:
    return name.split(".")[0] == "embeddings"
