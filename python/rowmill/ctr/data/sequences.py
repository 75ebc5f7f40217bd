"""A click log with histories, made from interactions: user, shown item, and the user's items before it.

The last interaction of every user is left out of training. Each other interaction becomes one row with a click, and some
rows without a click whose items the user does not have in the training rows. The last interaction becomes a list of
candidates: its item, and items that the user never took. Training rows come first, sorted by time; the lists follow.
The sidecar file ``sequences.json`` holds the row where the lists begin, and their length.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rowmill._extras import extra
from rowmill.ctr.data.interactions import Interactions, generate_interactions, read_interactions
from rowmill.ctr.data.schema import Schema
from rowmill.ctr.settings import SequencesConfig
from rowmill.errors import DataError
from rowmill.files import writing

with extra("train"):
    import pyarrow as pa
    import pyarrow.parquet as pq

SEQUENCES_FILE = "sequences.json"
_BLOCK_ROWS = 65_536
_REDRAWS = 64


@dataclass(frozen=True)
class Sequences:
    """Description of a log of sequences: columns, number of training rows, rows per list of candidates."""

    schema: Schema
    train_rows: int
    candidates: int


def make_sequences(out: Path, settings: SequencesConfig) -> Path:
    """Write the log into ``out``, from a file of interactions or generated ones; return its sidecar file.

    An existing log with the same settings is kept. An existing log with other settings raises `DataError`.
    """
    sidecar, marker = out / SEQUENCES_FILE, out / ".unfinished"
    if out.exists() and not out.is_dir():
        raise DataError(f"{out} is a file, but a log is a folder: choose another --out")
    told = {key: str(value) for key, value in asdict(settings).items()}
    if sidecar.exists():
        if _read(sidecar)["settings"] == told:
            # A command that was killed at its very end has left it.
            marker.unlink(missing_ok=True)
            return sidecar
        raise DataError(
            f"{out} holds sequences made with other settings: choose another --out, or delete the folder"
        )
    if any(out.glob("*.parquet")) and not marker.exists():
        raise DataError(
            f"{out} holds Parquet files that are not a log of sequences: choose another --out"
        )
    named = settings.interactions
    interactions = generate_interactions(settings) if named is None else read_interactions(named)
    table, train_rows = sequence_table(interactions, settings)
    out.mkdir(parents=True, exist_ok=True)
    marker.touch()
    part = out / "part-00000.parquet"
    with writing(part):
        pq.write_table(table, part, row_group_size=_BLOCK_ROWS, write_page_checksum=True)
    content = {
        "settings": told,
        "tasks": [] if interactions.liked is None else ["liked"],
        "places": settings.places,
        "train_rows": train_rows,
        "candidates": settings.candidates,
        "interactions": len(interactions),
        "users": len(np.unique(interactions.users)),
        "items": len(np.unique(interactions.items)),
    }
    unfinished = out / f".{SEQUENCES_FILE}"
    unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(sidecar)
    marker.unlink()
    return sidecar


def load_sequences(folder: Path) -> Sequences | None:
    """The description of the log in a folder; None if it is not a log of sequences."""
    sidecar = folder / SEQUENCES_FILE
    if not sidecar.is_file():
        return None
    content = _read(sidecar)
    schema = Schema(
        label="label",
        dense=(),
        ids=("user", "item"),
        tasks=tuple(content["tasks"]),
        item_ids=("item",),
        histories=(("item", "items_before"),),
        places=content["places"],
    )
    return Sequences(schema, content["train_rows"], content["candidates"])


def sequence_table(interactions: Interactions, settings: SequencesConfig) -> tuple[pa.Table, int]:
    """The log as a table, and its number of training rows."""
    users, user = np.unique(interactions.users, return_inverse=True)
    items, item = np.unique(interactions.items, return_inverse=True)
    counts = np.bincount(user)
    position = _position_in_own(user)
    left_out = (position == counts[user] - 1) & (counts[user] > 1)
    if not left_out.any():
        raise DataError(
            "no user has two interactions, so none can be left out for the test: use a longer log"
        )
    stream = np.random.default_rng([settings.seed, len(interactions)])
    kept = np.flatnonzero(~left_out)
    seen = np.unique(user[kept] * len(items) + item[kept])
    _check_room(np.bincount(user[kept], minlength=len(users)), len(items), settings, users)
    others = _draw_others(stream, user[kept], len(items), settings.negatives, seen)
    train = np.concatenate([item[kept, None], others], axis=1)
    last = np.flatnonzero(left_out)
    test = np.empty((len(last), settings.candidates), np.int64)
    met = np.unique(user * len(items) + item)
    for row, event in enumerate(last):
        first = user[event] * len(items)
        lo, hi = np.searchsorted(met, [first, first + len(items)])
        free = np.setdiff1d(np.arange(len(items)), met[lo:hi] - first, assume_unique=True)
        wanted = settings.candidates - 1
        if len(free) < wanted:
            remedy = f"lower --candidates to {len(free) + 1}" if len(free) else "drop that user"
            raise DataError(
                f"user {users[user[event]]} has {len(free)} of the {len(items)} items left as candidates, too few for "
                f"candidates = {settings.candidates}: {remedy}"
            )
        test[row] = [item[event], *stream.choice(free, wanted, replace=False)]
    events = np.concatenate([kept.repeat(train.shape[1]), last.repeat(settings.candidates)])
    shown = items[np.concatenate([train.ravel(), test.ravel()])]
    clicked = np.concatenate(
        [
            np.arange(train.size) % train.shape[1] == 0,
            np.arange(test.size) % settings.candidates == 0,
        ]
    )
    columns = {"label": pa.array(clicked.astype(np.int8))}
    if interactions.liked is not None:
        columns["liked"] = pa.array((clicked & interactions.liked[events]).astype(np.int8))
    columns |= {
        "user": pa.array(interactions.users[events]),
        "item": pa.array(shown),
        "items_before": _histories(interactions.items, user, position, events, settings.places),
    }
    return pa.table(columns), int(train.size)


def _position_in_own(user: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of earlier interactions of the same user, for each interaction."""
    order = np.argsort(user, kind="stable")
    counts = np.bincount(user)
    position = np.empty(len(user), np.int64)
    position[order] = np.arange(len(user)) - np.repeat(np.cumsum(counts) - counts, counts)
    return position


def _check_room(
    taken: NDArray[np.int64], items: int, settings: SequencesConfig, users: NDArray[np.int64]
) -> None:
    full = np.flatnonzero(taken >= items)
    if settings.negatives and len(full):
        raise DataError(
            f"user {users[full[0]]} has all {items} items, so none is left for rows without a click: set "
            "--negatives 0, or drop that user"
        )


def _draw_others(
    stream: np.random.Generator,
    user: NDArray[np.int64],
    items: int,
    count: int,
    seen: NDArray[np.int64],
) -> NDArray[np.int64]:
    """For every event, ``count`` items that its user does not have, drawn uniformly."""
    drawn = stream.integers(0, items, (len(user), count))
    for _ in range(_REDRAWS):
        wrong = np.isin(user[:, None] * items + drawn, seen)
        if not wrong.any():
            return drawn
        drawn[wrong] = stream.integers(0, items, int(wrong.sum()))
    # For users who have nearly all items, draw from the remaining ones directly.
    for event, place in np.argwhere(np.isin(user[:, None] * items + drawn, seen)):
        free = np.setdiff1d(np.arange(items), seen - user[event] * items)
        drawn[event, place] = stream.choice(free)
    return drawn


def _histories(
    item: NDArray[np.int64],
    user: NDArray[np.int64],
    position: NDArray[np.int64],
    events: NDArray[np.int64],
    places: int,
) -> pa.Array:
    """The last items of the user before every event, oldest first."""
    order = np.argsort(user, kind="stable")
    at = np.empty(len(user), np.int64)
    at[order] = np.arange(len(user))
    lengths = np.minimum(position[events], places)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    nth = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    flat = item[order][np.repeat(at[events] - lengths, lengths) + nth]
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(flat))


def _read(sidecar: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(sidecar.read_text(encoding="utf-8"))
        for name in ("places", "train_rows", "candidates"):
            if not isinstance(content[name], int) or content[name] < 1:
                raise ValueError
        if not isinstance(content["settings"], dict) or not isinstance(content["tasks"], list):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise DataError(
            f"{sidecar} does not describe a log of sequences: delete it, or make the log again"
        ) from None
    return content
