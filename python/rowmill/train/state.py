"""The state of a run that a checkpoint holds beside the rows, and its serialised form."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rowmill.nn import dense_state_dict, load_dense_state_dict
from rowmill.train.identity import check_same_run
from rowmill.train.run_files import RunFiles

if TYPE_CHECKING:
    from collections.abc import Mapping

ATTACHMENT = "rowmill.train"


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


def dense_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of everything but the embeddings."""
    return [parameter for name, parameter in model.named_parameters() if not _is_row(name)]


def dense_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state of everything but the embeddings."""
    return {name: value for name, value in dense_state_dict(model).items() if not _is_row(name)}


def _is_row(name: str) -> bool:
    return name.split(".")[0] == "embeddings"
