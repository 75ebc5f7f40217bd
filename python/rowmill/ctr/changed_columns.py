"""`ChangedColumns`: how a continued run is adapted to a log with other columns.

Numeric and id columns may be added and dropped between two parts of the data. The inputs of an added column begin at 0 in the
dense weights and in the optimizer's state. The table of a dropped id column stays in the store, with its rows and its number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from rowmill.config.setting import ConfigError
from rowmill.ctr.input_names import input_names
from rowmill.saved.resizing import renamed

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import nn

    from rowmill.config.sections import ModelConfig
    from rowmill.ctr.data import Schema

_GATED = ("wide_deep", "mt_wide_deep")
"""Models that add a weight of each id to the logit, without a layer between them."""


def known_columns(model: ModelConfig, before: Schema, given: Schema) -> Schema:
    """The columns of a log, with the numbers and gates that a run has given to its id columns."""
    numbers = {**dict(before.dropped), **dict(zip(before.ids, before.feature_numbers, strict=True))}
    for name in given.ids:
        numbers.setdefault(name, max(numbers.values()) + 1)
    gated = [name for name in given.ids if name in before.gated or name not in before.ids]
    return replace(
        given,
        numbers=tuple(numbers[name] for name in given.ids),
        gated=tuple(gated) if model.kind in _GATED else (),
        dropped=tuple((name, at) for name, at in numbers.items() if name not in given.ids),
    )


@dataclass(frozen=True)
class ChangedColumns:
    """The columns of a run before and after a change.

    Attributes:
        model: The model of the run.
        before: The columns of the parts before, as the run saved them.
        after: The columns from the next part on, of `known_columns`.
    """

    model: ModelConfig
    before: Schema
    after: Schema

    @classmethod
    def between(cls, model: ModelConfig, before: Schema, after: Schema) -> ChangedColumns | None:
        """The change; None if the columns are the same.

        Raises:
            ConfigError: The model cannot be continued with these columns.
        """
        fixed: dict[str, tuple[object, object]] = {
            "labels": (before.labels, after.labels),
            "histories": (dict(before.histories), dict(after.histories)),
        }
        if before.histories:
            fixed["places"] = (before.places, after.places)
        if model.kind == "ncf":
            fixed["ids"] = (list(before.ids), list(after.ids))
        for what, (was, now) in fixed.items():
            if was != now:
                raise ConfigError(
                    f"cannot continue: {what} of the log was {was} and is {now}. With model.kind = {model.kind!r}, only "
                    f"numeric columns {'' if what == 'ids' else 'and id columns without a history '}can be added or "
                    "dropped: use the old value in the schema file, or start a new run with another --out"
                )
        kept = [name for name in before.ids if name in after.ids]
        if model.kind == "two_tower":
            for name in kept:
                if (name in before.item_ids) != (name in after.item_ids):
                    raise ConfigError(
                        f"cannot continue: id column {name!r} would move to the other tower: "
                        f"{'add it to' if name in before.item_ids else 'remove it from'} item_ids in the schema file, or "
                        "start a new run with another --out"
                    )
        read = ("dense", "ids") if model.kind != "two_tower" else ("dense", "ids", "item_ids")
        if all(getattr(before, name) == getattr(after, name) for name in read):
            return None
        return cls(model, before, after)

    def __str__(self) -> str:
        said: list[str] = []
        for one, other, what in (
            (self.after, self.before, "added"),
            (self.before, self.after, "dropped"),
        ):
            ids = [f"id column {name}" for name in one.ids if name not in other.ids]
            dense = [f"numeric column {name}" for name in one.dense if name not in other.dense]
            said += [f"{name} {what}" for name in (*ids, *dense)]
        return ", ".join(said) or "the order of the columns changed"

    @property
    def columns_before(self) -> dict[str, Any]:
        """The columns of the parts before, as JSON."""
        return self.before.as_dict()

    def adapted(
        self, content: Mapping[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer | None
    ) -> dict[str, Any]:
        """Saved content of a run with "model" and "optimizer" for the model with the columns after the change.

        Args:
            content: "model" are dense weights by name, "optimizer" the state of their optimizer.
            model: The model with the columns after the change.
            optimizer: Its optimizer, before its first step.
        """
        before, after = (input_names(self.model, schema) for schema in (self.before, self.after))

        def fitted(name: str, value: Tensor) -> Tensor:
            known = name in before and name in after
            return renamed(value, before[name], after[name]) if known else value

        weights: Mapping[str, Tensor] = content["model"]
        found = {
            name: fitted(name, weight)
            for name, weight in weights.items()
            if name in after or name not in before
        }
        parameters = {name: value for name, value in model.named_parameters() if _is_dense(name)}
        found = {name: value.detach() for name, value in parameters.items()} | found
        if optimizer is None:
            return {**content, "model": found}
        # Its state has numbers in place of names, in the order of the weights.
        buffers = {name for name, _ in model.named_buffers()}
        numbers = {
            name: number
            for number, name in enumerate(name for name in weights if name not in buffers)
        }
        saved: dict[str, Any] = content["optimizer"]
        born: dict[int, Any] = optimizer.state_dict()["state"]
        state: dict[int, dict[str, Any]] = {}
        for number, name in enumerate(parameters):
            if name not in numbers:
                if number in born:
                    state[number] = born[number]
            elif numbers[name] in saved["state"]:
                state[number] = {
                    key: fitted(name, value)
                    if isinstance(value, Tensor) and value.shape == weights[name].shape
                    else value
                    for key, value in saved["state"][numbers[name]].items()
                }
        (group,) = saved["param_groups"]
        groups = [{**group, "params": list(range(len(parameters)))}]
        return {
            **content,
            "model": found,
            "optimizer": {**saved, "state": state, "param_groups": groups},
        }


def _is_dense(name: str) -> bool:
    return not name.startswith("embeddings.")
