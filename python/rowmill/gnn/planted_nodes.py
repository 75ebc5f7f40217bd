"""Generate synthetic graphs whose node classes can be predicted from features and neighbours, to try out `gnn`.

Every class has a vector; the features of a node are the vector of its class plus noise. The noise is so large that a
neighbourhood predicts the class much better than one node. Most edges stay within a class. Degrees follow a power law.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING
from zipfile import BadZipFile

import numpy as np

from rowmill.errors import DataError
from rowmill.files import writing

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from rowmill.gnn.settings import NodesConfig

_POWER = 0.5
"""The weight of the node of rank r is r ** -power, so degrees follow a power law with exponent 1 + 1 / power = 3."""
_SETTINGS = "settings"


def make_nodes(path: Path, settings: NodesConfig) -> Path:
    """Write the graph to an ``.npz`` file, unless the file exists and was generated with the same settings.

    Raises:
        DataError: The file exists with other content, or its name does not end in ``.npz``.
    """
    if path.suffix != ".npz":
        raise DataError(f"{path} must end in .npz; change the name of the output file")
    told = json.dumps(asdict(settings))
    if path.exists():
        if _settings_of(path) == told:
            return path
        raise DataError(
            f"{path} exists and was not generated with these settings; choose another name or delete it"
        )
    arrays = planted_nodes(settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}")
    with writing(unfinished):
        np.savez(unfinished, allow_pickle=False, settings=np.array(told), **arrays)
    unfinished.replace(path)
    return path


def planted_nodes(settings: NodesConfig) -> dict[str, NDArray[np.generic]]:
    """The arrays of a graph, with the names that `rowmill.gnn.node_graph` reads."""
    random = np.random.default_rng([settings.seed, settings.nodes])
    nodes, classes = settings.nodes, settings.classes
    labels = np.sort(random.integers(classes, size=nodes))
    centres = random.standard_normal((classes, settings.features), np.float32)
    noise = random.standard_normal((nodes, settings.features), np.float32)
    weights = np.power(1.0 + random.permutation(nodes), -_POWER, dtype=np.float64)
    edges = (nodes * settings.degree + 1) // 2
    # Every node is the source of one edge, so no node is isolated if there are at least two nodes.
    source = np.concatenate(
        [np.arange(nodes), _drawn(random, weights, 0, nodes, max(edges - nodes, 0))]
    )
    own = random.random(len(source)) < settings.within
    first, end = (np.searchsorted(labels, labels[source], side) for side in ("left", "right"))
    first, end = np.where(own, first, 0), np.where(own, end, nodes)
    target = _drawn(random, weights, first, end, len(source))
    # Replace self-loops by an edge to the next node.
    target = np.where(target == source, (target + 1) % nodes, target)
    order = random.permutation(nodes)
    mixed = np.empty_like(order)
    mixed[order] = np.arange(nodes)
    return {
        "edges": mixed[np.stack([source, target], axis=1)],
        "node_features": (centres[labels] + settings.noise * noise)[order].astype(np.float32),
        "node_labels": labels[order],
    }


def _drawn(
    random: np.random.Generator,
    weights: NDArray[np.float64],
    first: NDArray[np.int64] | int,
    end: NDArray[np.int64] | int,
    count: int,
) -> NDArray[np.int64]:
    """Node numbers drawn from the ranges `[first, end)`, with probabilities proportional to `weights`."""
    sums: NDArray[np.float64] = np.concatenate([[0.0], np.cumsum(weights)])
    lowest, highest = sums[first], sums[end]
    at: NDArray[np.float64] = lowest + random.random(count) * (highest - lowest)
    found: NDArray[np.int64] = np.searchsorted(sums, at, side="right") - 1
    return np.clip(found, first, np.asarray(end) - 1)


def _settings_of(path: Path) -> str | None:
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            return str(file[_SETTINGS])
    except (OSError, ValueError, KeyError, BadZipFile, EOFError, TypeError):
        return None
