"""How raw columns of a request become the inputs of an exported click model, as `transform.json` in its bundle.

| key | meaning |
|---|---|
| `inputs` | names in the signature of `dense` [B, N] float32, `ids` [B, S] int64 and, with histories, `lengths` [B] int64 |
| `dense` | columns `{name, per}` of N numbers: log(1 + x) in 64 bits, rounded once; 0 for negative and missing values |
| `ids` | columns `{name, per, table}` of F ids: 64-bit integers, or strings in base `id_base` |
| `histories` | columns `{name, per, of, places}` of lists of ids, oldest first, `of` one of `ids`; the last `places` ids count |
| `id_base` | 10 or 16 |
| `missing` | the raw id that stands for a missing value; in a request, only int64 ids may have it, and those of a history may not |
| `way` | `{"kind": "full"}`, `{"kind": "hash", "buckets"}`, `{"kind": "numbered_hash", "buckets", "numbers"}` or `{"kind": "vocabulary", "values"}` |

The columns of `ids` in a batch are the F ids, then the places of each history; a place behind the end of its list holds the
missing value. `per` is `user` for columns that a ranking request gives once, `item` for those of each candidate.

`rowmill serve` takes the columns by their names in place of the inputs, a history `X` as `X.values` and `X.offsets`
(docs/guide/serving.md). Infinite numbers, lists of different lengths in one row, and texts that are no ids are errors.

- `full`: the row id is the raw id.
- `hash`: mix(raw ^ mix(f + 1)) modulo `buckets`, all unsigned, f the position in `ids`; a missing value is `buckets`. mix is
  `rowmill.ctr.data.features.mix64`.
- `numbered_hash`: the same with `numbers[f]` in place of f, for a run whose id columns have changed.
- `vocabulary`: 2 + the position of the raw id in `values[f]`, which is sorted unless it has grown; 0 for an unknown, 1 for a missing value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rowmill.ctr.data import (
    MISSING_ID,
    FullIds,
    HashedIds,
    IdWay,
    Schema,
    Vocabulary,
    batches,
    open_source,
)
from rowmill.ctr.data.text_ids import with_integer_ids

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


def transform_of(schema: Schema, way: IdWay, inputs: Mapping[str, str]) -> dict[str, Any]:
    """The transform of a run, given the names of its inputs by role."""
    histories = dict(schema.histories)

    def per(name: str) -> str:
        # Without item_ids it is not known what describes the user.
        return "item" if name in schema.item_ids or not schema.item_ids else "user"

    return {
        "inputs": dict(inputs),
        "dense": [{"name": name, "per": "item"} for name in schema.dense],
        "ids": [{"name": name, "per": per(name), "table": name} for name in schema.ids],
        "histories": [
            {"name": name, "per": "user", "of": of, "places": schema.places}
            for of, name in histories.items()
        ],
        "id_base": schema.id_base,
        "missing": MISSING_ID,
        "way": _way(way, len(schema.ids)),
    }


def apply_transform(transform: Mapping[str, Any], table: Any) -> dict[str, Tensor]:
    """The inputs of a bundle for an Arrow, polars or pandas table of raw columns. Servers must compute the same bits.

    Ids may be strings in base `id_base`, of which an empty one is a missing value.

    Raises:
        DataError: A column is missing or has a value that is not allowed; names row and column.
    """
    schema = Schema(
        label="",
        dense=tuple(column["name"] for column in transform["dense"]),
        ids=tuple(column["name"] for column in transform["ids"]),
        histories=tuple((column["of"], column["name"]) for column in transform["histories"]),
        places=transform["histories"][0]["places"] if transform["histories"] else 1,
        id_base=transform["id_base"],
    )
    source = open_source(with_integer_ids(table, schema), schema)
    way = _read_way(transform["way"], tuple(schema.id_features))
    found = list(batches(source, way, start=0, stop=source.rows, batch=max(source.rows, 1)))
    names = transform["inputs"]
    batch = {
        names["dense"]: torch.cat([batch.dense for batch in found]),
        names["ids"]: torch.cat([batch.ids for batch in found]),
    }
    if schema.histories:
        lengths = [batch.lengths for batch in found if batch.lengths is not None]
        batch[names["lengths"]] = torch.cat(lengths)
    return batch


def _way(way: IdWay, features: int) -> dict[str, Any]:
    match way:
        case HashedIds(buckets=buckets, features=numbers):
            said = list((numbers or range(features))[:features])
            if said == list(range(features)):
                return {"kind": "hash", "buckets": buckets}
            return {"kind": "numbered_hash", "buckets": buckets, "numbers": said}
        case Vocabulary(values=values):
            return {"kind": "vocabulary", "values": [known.tolist() for known in values]}
        case _:
            return {"kind": "full"}


def _read_way(way: Mapping[str, Any], features: tuple[int, ...]) -> IdWay:
    match way["kind"]:
        case "hash":
            return HashedIds(way["buckets"], features)
        case "numbered_hash":
            numbers = way["numbers"]
            return HashedIds(way["buckets"], tuple(numbers[feature] for feature in features))
        case "vocabulary":
            values = tuple(np.array(known, np.int64) for known in way["values"])
            return Vocabulary(values, features)
        case _:
            return FullIds()
