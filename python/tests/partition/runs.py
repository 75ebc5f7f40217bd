"""Runs of click models to export."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from python.tests.train.configs import quiet
from rowmill.config import load_config
from rowmill.train.run import train

if TYPE_CHECKING:
    from pathlib import Path

    from rowmill.config.config import Config

CLICK_MODELS = (
    *("dlrm", "dcn_v2", "ffnn", "wide_deep", "mt_wide_deep"),
    *("ncf", "two_tower", "din", "dien", "bst"),
)
OVER_HISTORIES = ("two_tower", "din", "dien", "bst")
ROWS, TRAIN_ROWS = 700, 500


def write_log(folder: Path, kind: str) -> None:
    """A log with missing values of every kind, and its schema."""
    folder.mkdir()
    stream = np.random.default_rng(1)
    ids = ["user", "item"] if kind == "ncf" else ["user", "item", "shop"]
    table: Any = {
        "y": stream.integers(0, 2, ROWS),
        "bought": stream.integers(0, 2, ROWS),
    }
    for name in ("age", "price"):
        drawn = stream.random(ROWS).astype(np.float32) * 9 - 1
        table[name] = pa.array(drawn, mask=stream.random(ROWS) < 0.1)
    for name in ids:
        table[name] = pa.array(stream.integers(0, 60, ROWS), mask=stream.random(ROWS) < 0.1)
    table["before"] = [stream.integers(0, 60, stream.integers(0, 6)).tolist() for _ in range(ROWS)]
    pq.write_table(pa.table(table), folder / "log.parquet")
    lines = [
        'label = "y"',
        f"dense = {['age', 'price']}",
        f"ids = {ids}",
        'tasks = ["bought"]',
        'item_ids = ["item"]',
    ]
    if kind in OVER_HISTORIES:
        lines += ["places = 4", "[histories]", 'item = "before"']
    (folder / "schema.toml").write_text("\n".join(lines))


def config_of(folder: Path, kind: str, **flags: Any) -> Config:
    settings = {
        "data__path": folder / "log" / "log.parquet",
        "data__schema": folder / "log" / "schema.toml",
        "data__train_rows": TRAIN_ROWS,
        "data__ids": "vocabulary",
        "data__min_count": 2,
        "model__kind": kind,
        "model__dim": 8,
        "store__memory": "32MiB",
        "train__out": folder / "run",
        "train__batch": 64,
        "train__threads": 1,
        "train__dense_decay_from": 1.0,
        **flags,
    }
    return load_config(
        None,
        {tuple(key.split("__")): value for key, value in settings.items()},  # pyright: ignore
    )


def trained(folder: Path, kind: str, **flags: Any) -> Config:
    write_log(folder / "log", kind)
    config = config_of(folder, kind, **flags)
    train(config, quiet())
    return config
