"""Eviction and admission: which rows a table deletes, and which ids get a row; options of `Store.table`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rowmill.errors import InvalidInput
from rowmill.size import check_int, parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TTL", "Admission", "Eviction", "LeastFrequent", "LowestNorm", "LowestScore", "MinCount"]

_COUNT_MAX = 2**62


@dataclass(frozen=True, kw_only=True)
class TTL:
    """Evict rows that have not changed for a time, counted in steps or in event time. Give one of `steps` and `seconds`.

    Args:
        steps: Evict rows unchanged for more than this many optimizer steps of the table.
        seconds: Evict rows unchanged for more than this many seconds of event time (`store.step(event_time=...)`).
        every: Evict automatically every `every` optimizer steps of the table; 0: only at `table.evict()`.
    """

    steps: int | None = None
    seconds: int | None = None
    every: int = 0


@dataclass(frozen=True, kw_only=True)
class LeastFrequent:
    """Keep the `max_rows` rows that were changed most often, and evict the other rows.

    Args:
        max_rows: Rows to keep.
        every: As in `TTL`.
    """

    max_rows: int
    every: int = 0


@dataclass(frozen=True, kw_only=True)
class LowestScore:
    """Keep the `max_rows` rows with the highest scores, and evict the other rows.

    `table.set_scores` sets scores; a new row has score 0.

    Args:
        max_rows: Rows to keep.
        every: As in `TTL`.
    """

    max_rows: int
    every: int = 0


@dataclass(frozen=True, kw_only=True)
class LowestNorm:
    """Evict rows whose weights have a low L2 norm. Give one of `max_rows` and `below`.

    Args:
        max_rows: Keep this many rows, those with the highest norms.
        below: Evict every row with a norm below this.
        every: As in `TTL`.
    """

    max_rows: int | None = None
    below: float | None = None
    every: int = 0


@dataclass(frozen=True)
class MinCount:
    """Create a row for an id only after `count` training reads of the id; a read counts each id once.

    Until then the id reads as its initial value, and its gradients are dropped. A count-min sketch of a fixed size
    does the counting. It never counts too low, and a larger sketch counts too high less often.

    Args:
        count: Training reads before an id gets a row, from 2 to 255.
        bytes: Memory of the sketch, a power of two from 1 KiB to 1 GiB; about 8 bytes per distinct id are ample.
    """

    count: int
    bytes: int | str = "1MiB"


Eviction = TTL | LeastFrequent | LowestScore | LowestNorm
Admission = MinCount


@dataclass(frozen=True, kw_only=True)
class TableRules:
    """What may change of a table with rows, for `rowmill.open(..., alter=)`.

    Args:
        num_rows: Ids are in [0, num_rows): as before, or more. None for a table that takes any 64-bit id.
        eviction: Rule by which rows are deleted; None: only `delete` deletes rows.
        admission: Rule by which ids get a row; None: every id that training reads. Counts stay if `bytes` stays.
    """

    num_rows: int | None = None
    eviction: Eviction | None = None
    admission: Admission | None = None


def eviction_to_dict(eviction: Eviction | None) -> dict[str, Any] | None:
    """Convert an eviction to the dict that the binding takes; raise `InvalidInput` if it is invalid."""
    match eviction:
        case None:
            return None
        case TTL(steps=steps, seconds=seconds):
            kind, value = _one_of(eviction, ttl_steps=steps, ttl_seconds=seconds)
            field = kind.removeprefix("ttl_")
            rule = {field: _count(f"eviction: TTL({field}=...)", value)}
        case LowestNorm(max_rows=max_rows, below=below):
            kind, value = _one_of(eviction, lowest_norm=max_rows, norm_below=below)
            if kind == "norm_below":
                rule = {"below": _number(value)}
            else:
                rule = {"max_rows": _count("eviction: LowestNorm(max_rows=...)", value)}
        case LeastFrequent(max_rows=max_rows):
            kind = "least_frequent"
            rule = {"max_rows": _count("eviction: LeastFrequent(max_rows=...)", max_rows)}
        case LowestScore(max_rows=max_rows):
            kind = "lowest_score"
            rule = {"max_rows": _count("eviction: LowestScore(max_rows=...)", max_rows)}
        case _:
            known = "TTL, LeastFrequent, LowestScore or LowestNorm"
            raise InvalidInput(f"eviction must be one of rowmill's {known}, got {eviction!r}")
    every = check_int(eviction.every, "eviction: every", 0, _COUNT_MAX)
    return {"kind": kind, **rule, "every": every}


def eviction_from_dict(spec: Mapping[str, Any] | None) -> Eviction | None:
    """The inverse of `eviction_to_dict`."""
    if spec is None:
        return None
    fields = dict(spec)
    classes: dict[str, type[Eviction]] = {
        "ttl_steps": TTL,
        "ttl_seconds": TTL,
        "least_frequent": LeastFrequent,
        "lowest_score": LowestScore,
        "lowest_norm": LowestNorm,
        "norm_below": LowestNorm,
    }
    return classes[fields.pop("kind")](**fields)


def admission_to_dict(admission: Admission | None) -> dict[str, int] | None:
    """Convert an admission to the dict that the binding takes; raise `InvalidInput` if it is invalid."""
    if admission is None:
        return None
    if not isinstance(admission, MinCount):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"admission must be a rowmill.MinCount, got {admission!r}")
    return {
        "min_count": check_int(admission.count, "admission: MinCount(count)", 2, 255),
        "bytes": parse_size(admission.bytes, name="admission: MinCount(bytes=...)"),
    }


def admission_from_dict(spec: Mapping[str, int] | None) -> Admission | None:
    """The inverse of `admission_to_dict`."""
    return None if spec is None else MinCount(spec["min_count"], spec["bytes"])


def _one_of(eviction: Eviction, **given: Any) -> tuple[str, Any]:
    """Kind and value of the one argument that is not None; raise unless exactly one is given."""
    values = [(kind, value) for kind, value in given.items() if value is not None]
    if len(values) != 1:
        wanted = "steps or seconds" if isinstance(eviction, TTL) else "max_rows or below"
        raise InvalidInput(f"eviction: give one of {wanted}, got {eviction!r}")
    return values[0]


def _count(name: str, value: Any) -> int:
    return check_int(value, name, 1, _COUNT_MAX)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"eviction: LowestNorm(below=...) must be a number, got {value!r}")
    return float(value)
