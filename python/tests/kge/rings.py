"""A graph whose missing links follow from the others, and settings to train on it.

It is a ring with chords: relation k leads from entity n to n + k + 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rowmill.config import load_config

if TYPE_CHECKING:
    from pathlib import Path

    from rowmill.config import Config

ENTITIES, RELATIONS = 150, 4


def write_ring(folder: Path, entities: int = ENTITIES) -> Path:
    """Write the ring in random order. A tenth of the triples is for testing, a tenth for validation."""
    triples = [
        f"e{head}\tr{chord}\te{(head + chord + 1) % entities}\n"
        for head in range(entities)
        for chord in range(RELATIONS)
    ]
    np.random.default_rng(3).shuffle(triples)
    cut = len(triples) // 10
    parts = {"test": triples[:cut], "valid": triples[cut : 2 * cut], "train": triples[2 * cut :]}
    for part, lines in parts.items():
        (folder / f"{part}.tsv").write_text("".join(lines))
    return folder


def graph_config(folder: Path, data: Path, **flags: Any) -> Config:
    """Settings of a ComplEx on a graph, changed by `section__key=value`."""
    settings: dict[str, Any] = {
        "train__task": "kge",
        "data__path": data,
        "model__kind": "complex",
        "model__dim": 16,
        "kge__negatives": 32,
        "rows__lr": 0.3,
        "rows__initial_width": 0.3,
        "store__memory": "64MiB",
        "train__batch": 50,
        "train__epochs": 2,
        "train__threads": 1,
        "train__out": folder,
        **flags,
    }
    return load_config(None, {tuple(key.split("__")): value for key, value in settings.items()})  # pyright: ignore[reportArgumentType]
