"""The state of a run that a checkpoint holds beside the rows, and its serialised form."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch
from torch import nn

from rowmill.config.setting import ConfigError
from rowmill.nn import dense_state_dict, load_dense_state_dict
from rowmill.train.identity import (
    CHECKSUM,
    DATA_ROWS,
    TRAIN_ROWS,
    check_same_part,
    check_same_run,
    check_same_structure,
    is_of_unknown_data,
    with_data_of,
)
from rowmill.train.parts import Part, check_new, numbered
from rowmill.train.run_files import RunFiles

if TYPE_CHECKING:
    from collections.abc import Mapping

ATTACHMENT = "rowmill.train"


@dataclass
class RunState:
    """Position in the data, and measurements so far.

    `data` is the path of the current part of the data, `file` the values of a `TakenFile` if it is followed, `epoch` and `row`
    are the position in it, and `test` is None until it is complete. Everything else is of the whole run: `parts` are the parts
    before, and `counts` counters of the rows, restarts included.
    """

    epoch: int = 0
    row: int = 0
    step: int = 0
    data: str = ""
    file: dict[str, Any] | None = None
    parts: list[Part] = field(default_factory=list[Part])
    seconds: float = 0.0
    looked_up: int = 0
    cold: int = 0
    stalled_s: float = 0.0
    counts: dict[str, int] = field(default_factory=dict[str, int])
    curve: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    test: dict[str, float | None] | None = None

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The state that `as_json` wrote; older ones lack some values."""
        values = json.loads(text)
        return cls(**values | {"parts": [Part(**part) for part in values.get("parts", [])]})

    def as_json(self) -> str:
        """All values, as JSON."""
        return json.dumps({**vars(self), "parts": list(map(vars, self.parts))})

    @property
    def steps_before(self) -> int:
        """Steps before the current part."""
        return self.parts[-1].steps if self.parts else 0

    @property
    def examples_before(self) -> int:
        """Examples trained on before the current part."""
        return self.parts[-1].examples if self.parts else 0

    @property
    def begins_part(self) -> bool:
        """Whether nothing of the current part has been trained on, and there are parts before it."""
        return bool(self.parts) and self.epoch == self.row == 0 and self.test is None

    @property
    def is_between_parts(self) -> bool:
        """Whether there is no current part: all files that had arrived were trained on."""
        return bool(self.parts) and not self.data

    @property
    def has_followed(self) -> bool:
        """Whether the run was trained on files of a folder that it followed."""
        return self.file is not None or any(part.file is not None for part in self.parts)

    def end_part(self, identity: Mapping[str, Any], test: dict[str, float | None]) -> None:
        """End the current part, which has this identity."""
        self.parts.append(
            Part(
                data=self.data,
                rows=identity[DATA_ROWS],
                checksum=identity[CHECKSUM],
                steps=self.step,
                examples=self.examples_before + self.epoch * identity[TRAIN_ROWS],
                test=test,
                file=self.file,
            )
        )
        self.data, self.file, self.epoch, self.row, self.test = "", None, 0, 0, None

    @property
    def hit_rate(self) -> float | None:
        """Share of looked-up rows that were in memory."""
        return 1.0 - self.cold / self.looked_up if self.looked_up else None

    @property
    def stall_share(self) -> float | None:
        """Share of the time that the loop waited for cold rows."""
        return min(self.stalled_s / self.seconds, 1.0) if self.seconds else None


class Change(Protocol):
    """What a task changes of the dense half when the next part of the data begins."""

    @property
    def columns_before(self) -> dict[str, Any] | None:
        """The columns of the parts before, as JSON; None: they have none."""
        ...

    def adapted(
        self, content: Mapping[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer | None
    ) -> dict[str, Any]:
        """Saved content with "model" and "optimizer" for this model and its optimizer, before its first step."""
        ...


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
        continues: Whether to begin the next part, if the data is not that of the current one.
        repeated: The number of the earlier part that has the data, if there is one: nothing is to be done.
        change: What the next part changes, if anything.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    identity: Mapping[str, Any]
    conditions: Mapping[str, Any]
    files: RunFiles = field(default_factory=lambda: RunFiles({}))
    state: RunState = field(default_factory=RunState)
    continues: bool = False
    repeated: int | None = None
    change: Change | None = None

    def described(self) -> dict[str, str]:
        """Identity, conditions and state, each as JSON."""
        return {
            "identity": json.dumps(self.identity, sort_keys=True),
            "conditions": json.dumps(self.conditions, sort_keys=True),
            "state": self.state.as_json(),
            "files": json.dumps(self.files.names),
        }

    def go_on(self, described: Mapping[str, str]) -> list[str]:
        """Take over the state of a described run, as `check_goes_on` says; with `continues`, begin the next part.

        Returns:
            The changed conditions, each as `name was x and is y`.
        """
        data = self.state.data
        begins = check_goes_on(described, self.identity, data=data, continues=self.continues)
        saved = json.loads(described["identity"])
        self.state = RunState.from_json(described["state"])
        self.repeated = numbered(self.state.parts, self.identity)
        if not begins:
            if self.change is not None:
                raise ConfigError(
                    f"cannot continue: {self.change}, and {data} is already a part of this run, within which columns are fixed: "
                    "use the columns that the part began with; they may change with the next data"
                )
            self.state.data = data
        elif self.repeated is None:
            if self.state.test is not None:
                self.state.end_part(saved, self.state.test)
            if self.change is not None:
                last = replace(self.state.parts[-1], columns=self.change.columns_before)
                self.state.parts[-1] = last
            if is_of_unknown_data(self.identity):
                self.identity = with_data_of(self.identity, saved)
            else:
                self.state.data = data
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
        content = self.adapted(content)
        load_dense_state_dict(self.model, content["model"])
        if self.optimizer is not None:
            # The rate is set at each step; weight decay may change between two parts of the data.
            decays = [group.get("weight_decay") for group in self.optimizer.param_groups]
            self.optimizer.load_state_dict(content["optimizer"])
            for group, decay in zip(self.optimizer.param_groups, decays, strict=True):
                if decay is not None:
                    group["weight_decay"] = decay
        torch.set_rng_state(content["random"])
        return changed

    def adapted(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Saved content with "model" and "optimizer" for the model of this run."""
        if self.change is None:
            return content
        return self.change.adapted(content, self.model, self.optimizer)


def check_goes_on(
    described: Mapping[str, str], identity: Mapping[str, Any], *, data: str, continues: bool
) -> bool:
    """Whether a run with this identity would leave the current part of a described run.

    Args:
        described: The result of `Run.described`.
        identity: The identity of the run that would go on.
        data: The path of its data, for messages.
        continues: Whether it may begin another part. A run of files that arrive always may.

    Raises:
        ConfigError: It cannot go on: a setting or the data differs, or the current part is not complete.
    """
    saved, state = json.loads(described["identity"]), RunState.from_json(described["state"])
    unfinished = (
        f"this run has not finished part {len(state.parts) + 1} of its data, {state.data or 'its first data'}, and is at "
        f"step {state.step:,}: pass that data with --data first"
    )
    if is_of_unknown_data(identity):
        known = with_data_of(identity, saved)
        if state.test is None and not state.is_between_parts:
            if state.file is None:
                raise ConfigError(f"cannot follow {data}: {unfinished}")
            check_same_part(saved, known, state.data)
        elif continues:
            check_same_structure(saved, known)
        else:
            check_same_run(saved, known)
        return True
    if not continues:
        if state.parts and (state.is_between_parts or saved[CHECKSUM] != identity[CHECKSUM]):
            last = state.data or state.parts[-1].data
            raise ConfigError(
                f"cannot resume: {data} is not the last data of this run, which is {last}: pass that with --data, or train on new "
                "data with --continue"
                if state.data
                else f"cannot resume: all data of this run is complete, the last is {last}: train on new data with --continue"
            )
        check_same_run(saved, identity)
        return False
    if CHECKSUM not in saved:
        raise ConfigError(
            "cannot continue: an earlier version of rowmill wrote the checkpoint, which does not name its data: run the command "
            "that trained it again with --resume and a larger --epochs, and then continue"
        )
    current = Part(state.data, saved[DATA_ROWS], saved[CHECKSUM], state.step, 0, {})
    if not state.is_between_parts and current.is_of(identity):
        check_same_part(saved, identity, data)
        return False
    check_same_structure(saved, identity)
    if numbered(state.parts, identity) is None:
        check_new([*state.parts, current], identity, data)
        if state.test is None and not state.is_between_parts:
            raise ConfigError(f"cannot continue with {data}: {unfinished}")
    return True


def described_in(packed: bytes) -> dict[str, str]:
    """The result of `Run.described` at the time a run was packed."""
    content = unpacked(packed)
    names = ("identity", "conditions", "state", "files")
    return {name: content[name] for name in names if name in content}


def progress_of(described: Mapping[str, str]) -> str:
    """The position of a described run as text."""
    state = RunState.from_json(described["state"])
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
