"""Raw columns as in requests, with the inputs that `apply_transform` gives for them, for a test of the transform in Rust.

`python -m python.tests.serve.transform_cases` writes the golden file of this test.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rowmill.ctr.data import MISSING_ID, FullIds, HashedIds, IdWay, Schema, Vocabulary
from rowmill.ctr.data.features import hash_features
from rowmill.partition.plan import dtype_name
from rowmill.partition.transform import apply_transform, transform_of

GOLDEN = Path(__file__).parents[3] / "crates/rowmill-serve/tests/golden/transforms.json"

_ROWS = 23
_NUMBERS = {"FP32": "<f4", "FP64": "<f8", "INT64": "<i8", "INT32": "<i4", "INT8": "i1"}
# Floats x for which the exact log(1 + x) lies within 4 units of 64-bit precision of the middle between two 32-bit floats.
_HARD = [
    *(
        0x35400003,
        0x36DEDACE,
        0x3710001B,
        0x3770004B,
        0x37C6E0E0,
        0x3DDBFEC3,
        0x3EBE9143,
        0x3EFD81AD,
    ),
    *(
        0x41078FEB,
        0x464D572B,
        0x4665A5A6,
        0x50DA4BF6,
        0x55185F82,
        0x5D800341,
        0x5EE8984E,
        0x5F64C24A,
    ),
    *(0x62B467BA, 0x65D890D3, 0x66A8C860, 0x66ABBD63, 0x6D1F23EB, 0x6F31A8EC, 0x79E7EC37),
]
_EDGES = np.array(
    [
        0,
        -0.0,
        np.nan,
        -1,
        -0.3,
        -3e38,
        3.4028234e38,
        1e-45,
        1.2e-38,
        0.5,
        1,
        2,
        7,
        99,
        1e9,
        2**24 + 1,
    ]
)


def schema_of(*, with_histories: bool, id_base: int) -> Schema:
    """Columns of users and items."""
    return Schema(
        label="y",
        dense=("price", "age", "seen"),
        ids=("user", "item", "shop"),
        item_ids=("item", "shop"),
        id_base=id_base,
        histories=(("item", "bought"), ("shop", "visited")) if with_histories else (),
        places=3,
    )


def encoded(name: str, datatype: str, values: Any) -> dict[str, Any]:
    """A column as in a request: numbers, or texts with their length before each."""
    if datatype == "BYTES":
        texts = [text.encode() for text in values]
        data = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    else:
        data = np.asarray(values).astype(_NUMBERS[datatype]).tobytes()
    return {"name": name, "datatype": datatype, "count": len(values), "data": data.hex()}


def _text(raw: int | None, base: int, stream: np.random.Generator) -> str:
    if raw is None:
        return ""
    if base == 10:
        return str(raw)
    return f"{raw % 2**64:{stream.choice(['x', 'X', '08x', '016x'])}}"


def _ids(rows: int, stream: np.random.Generator) -> list[int | None]:
    edges = [None, 0, -1, 2**63 - 1, -(2**63) + 1, 1 << 40]
    drawn = stream.integers(0, 12, rows).tolist()
    return [edges[one % 6] if stream.random() < 0.3 else one for one in drawn]


def _ways(schema: Schema) -> list[IdWay]:
    features = tuple(schema.id_features)
    known = (
        np.array([-(2**63) + 1, -1, 3, 4, 9, 2**63 - 1], np.int64),
        np.array([], np.int64),
        np.arange(0, 11, 2, dtype=np.int64),
    )
    hashes = [HashedIds(buckets, features) for buckets in (7, 2**63 - 1)]
    return [FullIds(), *hashes, Vocabulary(known, features)]


def _case(
    schema: Schema, way: IdWay, *, texts: bool, once: bool, stream: np.random.Generator
) -> dict[str, Any]:
    names = {name: name for name in ("dense", "ids", "lengths")}
    transform = transform_of(schema, way, names)
    columns: list[dict[str, Any]] = []
    table: dict[str, Any] = {}
    hard = stream.choice(np.array(_HARD, np.uint32).view(np.float32), _ROWS - len(_EDGES))
    floats = np.concatenate([hard, _EDGES])
    kinds = [str(kind) for kind in stream.permutation(list(_NUMBERS))]
    for name, kind in zip(schema.dense, kinds, strict=False):
        drawn: Any = stream.permutation(floats)
        if kind.startswith("INT"):
            drawn = np.clip(np.nan_to_num(drawn), -100, 100).astype(_NUMBERS[kind])
        columns.append(encoded(name, kind, drawn))
        table[name] = drawn.astype(_NUMBERS[kind])
    for name in schema.ids:
        rows = 1 if once and name not in schema.item_ids else _ROWS
        raw = _ids(rows, stream)
        written = [_text(one, schema.id_base, stream) for one in raw]
        numbers = [MISSING_ID if one is None else one for one in raw]
        columns.append(encoded(name, "BYTES" if texts else "INT64", written if texts else numbers))
        every = (written if texts else raw) * (_ROWS // rows)
        table[name] = pa.array(every, pa.string() if texts else pa.int64())
    rows = 1 if once else _ROWS
    lengths = stream.integers(0, 6, rows)
    for name in dict(schema.histories).values():
        lists = [[one or 0 for one in _ids(length, stream)] for length in lengths]
        flat = [one for row in lists for one in row]
        written = [_text(one, schema.id_base, stream) for one in flat]
        columns.append(
            encoded(f"{name}.values", "BYTES" if texts else "INT64", written if texts else flat)
        )
        offsets = [0, *np.cumsum(lengths).tolist()]
        columns.append(encoded(f"{name}.offsets", "INT32" if texts else "INT64", offsets))
        values = pa.array(written, pa.string()) if texts else pa.array(flat, pa.int64())
        whole = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
        table[name] = pa.concat_arrays([whole] * (_ROWS // rows))
    outputs = apply_transform(transform, pa.table(table))
    return {
        "transform": transform,
        "columns": columns,
        "outputs": {
            name: {
                "dtype": dtype_name(value.dtype),
                "shape": list(value.shape),
                "data": value.numpy().tobytes().hex(),
            }
            for name, value in outputs.items()
        },
    }


def golden() -> list[dict[str, Any]]:
    """All cases, with the inputs that `apply_transform` gives."""
    stream = np.random.default_rng(0)
    found: list[dict[str, Any]] = []
    for id_base, with_histories in product((10, 16), (False, True)):
        schema = schema_of(with_histories=with_histories, id_base=id_base)
        for way, texts, once in product(_ways(schema), (False, True), (False, True)):
            found.append(_case(schema, way, texts=texts, once=once, stream=stream))
    # Of runs whose id columns have changed.
    for with_histories in (False, True):
        schema = replace(
            schema_of(with_histories=with_histories, id_base=10), numbers=(4, 0, 1), columns=()
        )
        way = HashedIds(1000, hash_features(schema))
        found.append(_case(schema, way, texts=False, once=False, stream=stream))
    return found


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(case) for case in golden())
    GOLDEN.write_text(f"[\n{lines}\n]\n")
