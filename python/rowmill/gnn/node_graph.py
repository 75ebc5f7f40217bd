"""Read a graph with node features, classes and splits from an ``.npz`` file.

The file has these arrays:

- edges: `edges` `[m, 2]`, or `adj_indptr` `[nodes + 1]` and `adj_indices` `[m]`;
- classes, numbered from 0: `labels`, `label` or `node_labels`, `[nodes]`;
- features, optional: `node_features` `[nodes, dim]`, or in CSR form `attr_indptr` `[nodes + 1]`, `attr_indices`,
  `shape` with the values `[nodes, dim]`, and optionally `attr_data` (default: ones);
- splits, optional: `train_masks`, `val_masks` and `test_masks`, bool `[splits, nodes]`.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from rowmill import _core
from rowmill.errors import DataError, InvalidInput
from rowmill.gnn.npz import load_npz

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_LABELS = ("labels", "label", "node_labels")
_MASKS = ("train_masks", "val_masks", "test_masks")
_CLASSES_MAX = 1 << 20
_INTEGER_MAX = (1 << 63) - 1
_CHECKED_ROWS = 1 << 16
"""Rows that are checked at a time, because features may be larger than memory."""
_SPLIT = 0x5EED
"""Part of the seed of random splits, so that they are independent of other random numbers of the seed."""


@dataclass(frozen=True)
class Features:
    """A feature vector for every node, dense or in CSR form.

    Attributes:
        dim: Width of a vector.
        dense: float32 `[nodes, dim]`, memory-mapped if the file stores it uncompressed. None if the features are in CSR form:
            `indptr` `[nodes + 1]`, `columns` `[n]` and `values` `[n]`.
    """

    dim: int
    dense: NDArray[np.float32] | None = None
    indptr: NDArray[np.int64] | None = None
    columns: NDArray[np.int64] | None = None
    values: NDArray[np.float32] | None = None

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """A copy of the vectors of the nodes in [start, stop), `[stop - start, dim]`."""
        if self.dense is not None:
            return self.dense[start:stop].copy()
        assert self.indptr is not None
        assert self.columns is not None
        assert self.values is not None
        ends = self.indptr[start : stop + 1]
        rows = np.zeros((len(ends) - 1, self.dim), np.float32)
        row = np.repeat(np.arange(len(rows)), np.diff(ends))
        part = slice(ends[0], ends[-1])
        # Values of a repeated column are added up.
        np.add.at(rows, (row, self.columns[part]), self.values[part])
        return rows


@dataclass(frozen=True)
class NodeSplit:
    """Disjoint sets of nodes to train, validate and test on; int64, ascending."""

    train: NDArray[np.int64]
    valid: NDArray[np.int64]
    test: NDArray[np.int64]


@dataclass(frozen=True)
class NodeGraph:
    """A graph with a class for every node.

    Attributes:
        indptr, indices: The neighbours of node `v` are `indices[indptr[v]:indptr[v + 1]]`, ascending and distinct.
        labels: The class of every node, int64 `[nodes]`.
        features: The feature vectors, or None.
        masks: The fixed splits of the file by array name, bool `[splits, nodes]`, or None.
    """

    path: Path
    indptr: NDArray[np.int64]
    indices: NDArray[np.int64]
    labels: NDArray[np.int64]
    features: Features | None
    masks: dict[str, NDArray[np.bool_]] | None

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.labels)

    @property
    def edges(self) -> int:
        """Number of directed edges: the total length of the neighbour lists."""
        return len(self.indices)

    @property
    def classes(self) -> int:
        """Number of classes: the largest class plus 1."""
        return int(self.labels.max()) + 1

    def split(self, number: int, *, train_per_class: int, valid_per_class: int) -> NodeSplit:
        """Split `number` of the file's masks; without masks a random split with `number` as seed.

        A random split takes `train_per_class` and `valid_per_class` nodes of every class; all other nodes are for testing.

        Raises:
            DataError: The file has no such split, its sets overlap or are empty, or a class has too few nodes.
        """
        if self.masks is not None:
            return self._fixed_split(number, self.masks)
        random = np.random.default_rng([_SPLIT, number])
        train: list[NDArray[np.int64]] = []
        valid: list[NDArray[np.int64]] = []
        for kind in range(self.classes):
            members = random.permutation(np.flatnonzero(self.labels == kind))
            both = train_per_class + valid_per_class
            if 0 < len(members) < both:
                raise DataError(
                    f"{self.path}: class {kind} has {len(members)} nodes, but a split needs {train_per_class} training "
                    f"and {valid_per_class} validation nodes per class: lower gnn.train_per_class or gnn.valid_per_class"
                )
            train.append(members[:train_per_class])
            valid.append(members[train_per_class:both])
        chosen = np.zeros(self.nodes, np.bool_)
        chosen[np.concatenate(train + valid)] = True
        if chosen.all():
            raise DataError(
                f"{self.path}: training and validation take all {self.nodes} nodes and leave none for testing: lower "
                "gnn.train_per_class or gnn.valid_per_class"
            )
        rest = np.flatnonzero(~chosen)
        return NodeSplit(np.sort(np.concatenate(train)), np.sort(np.concatenate(valid)), rest)

    def fingerprint(self) -> str:
        """Checksum of the graph, 8 hex digits; resume uses it to reject a different graph of equal size."""
        check = 0
        arrays: list[NDArray[Any] | None] = [self.indptr, self.indices, self.labels]
        if self.features is not None:
            features = self.features
            arrays += [features.dense, features.indptr, features.columns, features.values]
        if self.masks is not None:
            arrays += [self.masks[name] for name in _MASKS]
        for array in arrays:
            if array is not None:
                check = zlib.crc32(
                    np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, check
                )
        return f"{check:08x}"

    def _fixed_split(self, number: int, masks: dict[str, NDArray[np.bool_]]) -> NodeSplit:
        count = len(masks["train_masks"])
        if number >= count:
            raise DataError(
                f"{self.path} has {count} splits, but gnn.split = {number}: set it to a number in [0, {count})"
            )
        parts = {name: np.flatnonzero(masks[name][number]) for name in _MASKS}
        owner = np.full(self.nodes, -1)
        for place, (name, nodes) in enumerate(parts.items()):
            if len(nodes) == 0:
                raise DataError(
                    f"{self.path}: {name}[{number}] selects no node; every mask must select at least one"
                )
            twice = nodes[owner[nodes] >= 0]
            if len(twice):
                raise DataError(
                    f"{self.path}: node {twice[0]} is in {_MASKS[owner[twice[0]]]}[{number}] and in {name}[{number}] "
                    f"({len(twice)} such nodes); the masks of a split must be disjoint"
                )
            owner[nodes] = place
        return NodeSplit(*parts.values())


def read_node_graph(
    path: Path,
    *,
    directed: bool = False,
    self_loops: str = "error",
    isolated: str = "error",
) -> NodeGraph:
    """Read a graph and check every entry of the file.

    Args:
        path: An ``.npz`` file.
        directed: Keep the direction of edges. Otherwise edges are used in both directions. Duplicate edges are merged.
        self_loops: What to do with edges from a node to itself: "error", "keep" or "drop".
        isolated: What to do with nodes without neighbours: "error" or "keep".

    Raises:
        DataError: The file or an array is missing, malformed or inconsistent; names the array and the entry.
    """
    arrays = _load(path)
    labels = _labels(path, arrays)
    nodes = len(labels)
    source, target = _edges(path, arrays, nodes)
    loops = np.flatnonzero(source == target)
    if len(loops) and self_loops == "error":
        raise DataError(
            f"{path}: edge {loops[0]} leads from node {source[loops[0]]} to itself ({len(loops)} such edges); set "
            'gnn.self_loops to "drop" or "keep"'
        )
    if self_loops == "drop":
        kept = source != target
        source, target = source[kept], target[kept]
    if not directed:
        source, target = np.concatenate([source, target]), np.concatenate([target, source])
    indptr, indices = _compressed(source, target, nodes)
    if isolated == "error":
        alone = np.flatnonzero(np.diff(indptr) == 0)
        if len(alone):
            raise DataError(
                f"{path}: node {alone[0]} has no neighbours ({len(alone)} such nodes); set gnn.isolated to "
                '"keep" to classify them by their own row'
            )
    return NodeGraph(
        path, indptr, indices, labels, _features(path, arrays, nodes), _masks(path, arrays, nodes)
    )


def _load(path: Path) -> dict[str, NDArray[Any]]:
    try:
        # Opening a pipe would block until a writer opens it.
        if path.exists() and not path.is_file() and not path.is_dir():
            raise BadZipFile("it is not a regular file")
        return load_npz(path, mapped="node_features")
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; give an .npz file") from None
    except (BadZipFile, zlib.error, ValueError, EOFError, AttributeError, TypeError) as error:
        raise DataError(f"{path} is not an .npz file of plain arrays: {error}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def _labels(path: Path, arrays: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
    name = next((name for name in _LABELS if name in arrays), None)
    if name is None:
        raise DataError(
            f"{path} has no array of classes: add one named {' or '.join(_LABELS)}; its arrays are "
            f"{', '.join(arrays) or 'none'}"
        )
    labels = _integers(path, arrays, name, 1)
    if len(labels) == 0:
        raise DataError(f"{path}: {name} is empty; a graph must have at least one node")
    _check_range(path, name, labels, _CLASSES_MAX, "classes are")
    return labels


def _edges(
    path: Path, arrays: dict[str, NDArray[Any]], nodes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if "edges" in arrays:
        edges = _integers(path, arrays, "edges", 2)
        if edges.shape[1] != 2:
            raise DataError(f"{path}: edges has shape {edges.shape}; it must be [edges, 2]")
        _check_range(path, "edges", edges, nodes, f"the graph has {nodes} nodes, their numbers are")
        return edges[:, 0], edges[:, 1]
    for name in ("adj_indptr", "adj_indices"):
        if name not in arrays:
            raise DataError(
                f"{path} has no array {name}: add the array edges, or adj_indptr and adj_indices; its arrays are "
                f"{', '.join(arrays)}"
            )
    indptr = _integers(path, arrays, "adj_indptr", 1)
    indices = _integers(path, arrays, "adj_indices", 1)
    _check_lists(path, "adj", indptr, indices, nodes)
    return np.repeat(np.arange(nodes), np.diff(indptr)), indices


def _check_lists(
    path: Path, prefix: str, indptr: NDArray[np.int64], indices: NDArray[np.int64], nodes: int
) -> None:
    """Check CSR arrays: one list per node and valid bounds. For edges (`adj`) the indices must be nodes too."""
    if len(indptr) != nodes + 1:
        raise DataError(
            f"{path}: {prefix}_indptr has {len(indptr)} entries, but {nodes} nodes have classes: it must have "
            f"{nodes + 1}"
        )
    try:
        if prefix == "adj":
            _core.check_graph(indptr, indices)
        else:
            _core.check_graph(indptr, np.zeros(len(indices), np.int32))
    except InvalidInput as error:
        text = (
            str(error).replace("indptr", f"{prefix}_indptr").replace("indices", f"{prefix}_indices")
        )
        raise DataError(f"{path}: {text}") from None


def _features(path: Path, arrays: dict[str, NDArray[Any]], nodes: int) -> Features | None:
    if "node_features" in arrays:
        dense = _floats(path, arrays, "node_features", 2)
        if len(dense) != nodes or dense.shape[1] == 0:
            raise DataError(
                f"{path}: node_features has shape {dense.shape}, but {nodes} nodes have classes: it must be "
                f"[{nodes}, dim]"
            )
        return Features(dense.shape[1], dense=dense)
    if not any(name.startswith("attr_") for name in arrays):
        return None
    indptr, columns, shape = (
        _integers(path, arrays, name, 1) for name in ("attr_indptr", "attr_indices", "shape")
    )
    if shape.shape != (2,) or shape[0] != nodes or shape[1] < 1:
        raise DataError(
            f"{path}: shape is {shape.tolist()}, but {nodes} nodes have classes: it must be [{nodes}, dim]"
        )
    dim = int(shape[1])
    _check_lists(path, "attr", indptr, columns, nodes)
    _check_range(path, "attr_indices", columns, dim, f"shape says {dim} features, numbered")
    if "attr_data" not in arrays:
        values = np.ones(len(columns), np.float32)
    else:
        values = _floats(path, arrays, "attr_data", 1)
    if len(values) != len(columns):
        raise DataError(
            f"{path}: attr_data has {len(values)} entries and attr_indices {len(columns)}; they must have the same length"
        )
    return Features(dim, indptr=indptr, columns=columns, values=values)


def _masks(
    path: Path, arrays: dict[str, NDArray[Any]], nodes: int
) -> dict[str, NDArray[np.bool_]] | None:
    if not any(name in arrays for name in _MASKS):
        return None
    masks: dict[str, NDArray[np.bool_]] = {}
    for name in _MASKS:
        mask = np.atleast_2d(_array(path, arrays, name))
        if mask.dtype != np.bool_ or mask.ndim != 2 or mask.shape[1] != nodes or len(mask) == 0:
            raise DataError(
                f"{path}: {name} is {mask.dtype} of shape {mask.shape}; it must be bool [splits, {nodes}]"
            )
        masks[name] = mask
    counts = {name: len(mask) for name, mask in masks.items()}
    if len(set(counts.values())) > 1:
        raise DataError(
            f"{path}: the masks have different numbers of splits: {counts}; give all the same"
        )
    return masks


def _compressed(
    source: NDArray[np.int64], target: NDArray[np.int64], nodes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    pairs = np.unique(source * nodes + target)
    indptr = np.searchsorted(pairs, np.arange(nodes + 1) * nodes)
    return indptr.astype(np.int64), pairs % nodes


def _array(path: Path, arrays: dict[str, NDArray[Any]], name: str) -> NDArray[Any]:
    if name not in arrays:
        raise DataError(f"{path} has no array {name}; its arrays are {', '.join(arrays)}")
    # For members that are not arrays, NumPy returns bytes.
    if not hasattr(arrays[name], "dtype"):
        raise DataError(f"{path}: {name} is not a NumPy array; write the file with numpy.savez")
    return arrays[name]


def _integers(
    path: Path, arrays: dict[str, NDArray[Any]], name: str, ndim: int
) -> NDArray[np.int64]:
    array = _array(path, arrays, name)
    if array.dtype.kind not in "iu" or array.ndim != ndim:
        raise DataError(
            f"{path}: {name} is {array.dtype} of shape {array.shape}; it must be an integer array of {ndim} dimensions"
        )
    if array.dtype.kind == "u" and array.size and array.max() > _INTEGER_MAX:
        place = np.argwhere(array > _INTEGER_MAX)[0]
        raise DataError(
            f"{path}: {name}{place.tolist()} = {array[tuple(place)]}, but the largest allowed number is {_INTEGER_MAX}"
        )
    return np.ascontiguousarray(array, np.int64)


def _floats(
    path: Path, arrays: dict[str, NDArray[Any]], name: str, ndim: int
) -> NDArray[np.float32]:
    array = _array(path, arrays, name)
    if array.dtype.kind not in "fiub" or array.ndim != ndim:
        raise DataError(
            f"{path}: {name} is {array.dtype} of shape {array.shape}; it must be a numeric array of {ndim} dimensions"
        )
    # Values too large for float32 become infinite; the check below reports them.
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(array, np.float32)
    for start in range(0, len(values), _CHECKED_ROWS):
        wrong = np.argwhere(~np.isfinite(values[start : start + _CHECKED_ROWS]))
        if len(wrong):
            place = [start + int(wrong[0][0]), *wrong[0][1:].tolist()]
            raise DataError(f"{path}: {name}{place} is not a finite 32-bit float")
    return values


def _check_range(path: Path, name: str, values: NDArray[np.int64], end: int, what: str) -> None:
    wrong = np.argwhere((values < 0) | (values >= end))
    if len(wrong):
        place = wrong[0]
        raise DataError(
            f"{path}: {name}{place.tolist()} = {values[tuple(place)]}, but {what} 0 to {end - 1}"
        )
