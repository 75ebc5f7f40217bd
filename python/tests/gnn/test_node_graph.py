"""Reading node graphs from .npz files: edges, features, splits, and which files are refused."""

from __future__ import annotations

import os
import tracemalloc
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import numpy as np
import pytest

from rowmill.errors import DataError
from rowmill.gnn.node_graph import read_node_graph
from rowmill.gnn.planted_nodes import make_nodes
from rowmill.gnn.settings import NodesConfig

if TYPE_CHECKING:
    from pathlib import Path

    from rowmill.gnn.node_graph import NodeGraph

EDGES = [[0, 1], [1, 0], [1, 2], [3, 1], [1, 2]]
NODES = 4


def arrays(**changes: Any) -> dict[str, Any]:
    """A small valid graph; None drops an array."""
    given = {
        "edges": np.array(EDGES),
        "node_features": np.arange(8, dtype=np.float32).reshape(NODES, 2),
        "node_labels": np.array([0, 1, 1, 0]),
        **changes,
    }
    return {name: array for name, array in given.items() if array is not None}


def compressed(**changes: Any) -> dict[str, Any]:
    """The same graph in CSR form, with sparse features."""
    return arrays(
        edges=None,
        node_features=None,
        node_labels=None,
        label=np.array([0, 1, 1, 0], np.int16),
        **{
            "adj_indptr": np.array([0, 1, 4, 4, 5], np.int32),
            "adj_indices": np.array([1, 0, 2, 2, 1], np.int32),
            "attr_indptr": np.array([0, 2, 2, 3, 5], np.int32),
            "attr_indices": np.array([2, 0, 1, 0, 0], np.int32),
            "attr_data": np.array([1.0, 5.0, 2.0, 3.0, 4.0]),
            "shape": np.array([NODES, 3]),
            **changes,
        },
    )


def write(folder: Path, given: dict[str, Any]) -> Path:
    np.savez(folder / "graph.npz", **given)
    return folder / "graph.npz"


def neighbours(graph: NodeGraph) -> list[list[int]]:
    ends = zip(graph.indptr, graph.indptr[1:], strict=False)
    return [graph.indices[start:stop].tolist() for start, stop in ends]


def test_edges_are_used_in_both_directions_and_duplicates_are_merged(tmp_path: Path) -> None:
    for given in (arrays(), compressed()):
        graph = read_node_graph(write(tmp_path, given))
        assert neighbours(graph) == [[1], [0, 2, 3], [1], [1]]
        assert (graph.nodes, graph.edges, graph.classes) == (4, 6, 2)
        assert graph.labels.tolist() == [0, 1, 1, 0]
        one_way = read_node_graph(graph.path, directed=True, isolated="keep")
        assert neighbours(one_way) == [[1], [0, 2], [], [1]]


def test_dense_and_sparse_features_equal_the_file(tmp_path: Path) -> None:
    features = read_node_graph(write(tmp_path, arrays())).features
    assert features is not None
    assert features.rows(1, 3).tolist() == [[2.0, 3.0], [4.0, 5.0]]
    features = read_node_graph(write(tmp_path, compressed())).features
    assert features is not None
    assert features.rows(0, 4).tolist() == [[5, 0, 1], [0, 0, 0], [0, 2, 0], [7, 0, 0]]
    assert features.rows(2, 4).tolist() == [[0, 2, 0], [7, 0, 0]]
    words = read_node_graph(write(tmp_path, compressed(attr_data=None))).features
    assert words is not None
    assert words.rows(3, 4).tolist() == [[2, 0, 0]]
    assert read_node_graph(write(tmp_path, arrays(node_features=None))).features is None


def test_self_loops_and_isolated_nodes_are_errors_by_default(tmp_path: Path) -> None:
    path = write(tmp_path, arrays(edges=np.array([[0, 1], [2, 2], [1, 0], [2, 2]])))
    with pytest.raises(DataError, match=r"edge 1 leads from node 2 to itself \(2 such edges\)"):
        read_node_graph(path)
    kept = read_node_graph(path, self_loops="keep", isolated="keep")
    assert neighbours(kept) == [[1], [0], [2], []]
    with pytest.raises(DataError, match=r"node 2 has no neighbours \(2 such nodes\)"):
        read_node_graph(path, self_loops="drop")
    dropped = read_node_graph(path, self_loops="drop", isolated="keep")
    assert neighbours(dropped) == [[1], [0], [], []]


def test_a_random_split_has_the_given_nodes_per_class_and_its_number_is_its_seed(
    tmp_path: Path,
) -> None:
    labels = np.random.default_rng(0).integers(0, 4, 400)
    edges = np.stack([np.arange(400), np.roll(np.arange(400), 1)], axis=1)
    graph = read_node_graph(write(tmp_path, {"edges": edges, "labels": labels}))
    splits = [graph.split(number, train_per_class=20, valid_per_class=30) for number in (0, 1, 0)]
    for split in splits:
        assert np.bincount(labels[split.train]).tolist() == [20] * 4
        assert np.bincount(labels[split.valid]).tolist() == [30] * 4
        everyone = np.concatenate([split.train, split.valid, split.test])
        assert sorted(everyone.tolist()) == list(range(400))
    assert splits[0].train.tolist() == splits[2].train.tolist() != splits[1].train.tolist()
    fewest = np.bincount(labels).min()
    with pytest.raises(DataError, match=rf"has {fewest} nodes, but a split needs 1 training"):
        graph.split(0, train_per_class=1, valid_per_class=fewest)


def test_a_split_without_test_nodes_is_refused(tmp_path: Path) -> None:
    graph = read_node_graph(write(tmp_path, arrays()))
    with pytest.raises(DataError, match="take all 4 nodes and leave none for testing"):
        graph.split(0, train_per_class=1, valid_per_class=1)


def masks(**changes: Any) -> dict[str, Any]:
    parts = {
        "train_masks": np.array([[1, 0, 0, 0], [0, 1, 1, 0]], bool),
        "val_masks": np.array([[0, 1, 0, 0], [1, 0, 0, 0]], bool),
        "test_masks": np.array([[0, 0, 1, 0], [0, 0, 0, 1]], bool),
    }
    return arrays(**parts | changes)


def test_splits_of_the_file_are_used(tmp_path: Path) -> None:
    graph = read_node_graph(write(tmp_path, masks()))
    first, second = (graph.split(n, train_per_class=20, valid_per_class=30) for n in (0, 1))
    assert [part.tolist() for part in vars(first).values()] == [[0], [1], [2]]
    assert [part.tolist() for part in vars(second).values()] == [[1, 2], [0], [3]]
    with pytest.raises(
        DataError, match=r"has 2 splits, but gnn\.split = 2: set it to a number in \[0, 2\)"
    ):
        graph.split(2, train_per_class=20, valid_per_class=30)


def test_the_fingerprint_covers_splits(tmp_path: Path) -> None:
    given = masks()
    checks = [read_node_graph(write(tmp_path, given)).fingerprint()]
    for name in ("train_masks", "test_masks"):
        given[name] = given[name][::-1]
        checks.append(read_node_graph(write(tmp_path, given)).fingerprint())
    assert len(set(checks)) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"val_masks": np.zeros((2, 4), bool)}, r"val_masks\[1\] selects no node"),
        (
            {"test_masks": np.array([[0] * 4, [0, 0, 1, 1]], bool)},
            r"node 2 is in train_masks\[1\] and in test_masks\[1\] \(1 such nodes\)",
        ),
    ],
)
def test_splits_with_empty_or_overlapping_masks_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    graph = read_node_graph(write(tmp_path, masks(**changes)))
    with pytest.raises(DataError, match=message):
        graph.split(1, train_per_class=20, valid_per_class=30)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            arrays(node_labels=None),
            "no array of classes: add one named labels or label or node_",
        ),
        (arrays(node_labels=np.array([0.0, 1.0])), r"node_labels is float64 of shape \(2,\)"),
        (arrays(node_labels=np.array([0, -1, 1, 0])), r"node_labels\[1\] = -1, but classes are 0"),
        (arrays(node_labels=np.array([], np.int64)), "node_labels is empty"),
        (
            arrays(edges=None),
            "no array adj_indptr: add the array edges, or adj_indptr and adj_indices",
        ),
        (arrays(edges=np.array([[0, 1, 2]])), r"edges has shape \(1, 3\)"),
        (arrays(edges=np.array([[0, 1], [2, 4]])), r"edges\[1, 1\] = 4, but the graph has 4 nodes"),
        (arrays(edges=np.array([[0, 1], [-1, 3]])), r"edges\[1, 0\] = -1, but the graph has 4"),
        (
            arrays(edges=np.array([[0, 1], [2, 2**64 - 1]], np.uint64)),
            r"edges\[1, 1\] = 18446744073709551615, but the largest allowed number is 9223372036854775807",
        ),
        (compressed(adj_indices=None), "no array adj_indices: add the array edges"),
        (compressed(adj_indptr=np.array([0, 1, 5])), "adj_indptr has 3 entries, but 4 nodes have"),
        (
            compressed(adj_indptr=np.array([0, 3, 1, 4, 5])),
            r"adj_indptr\[1\] = 3 and adj_indptr\[2\] = 1",
        ),
        (
            compressed(adj_indptr=np.array([0, 1, 4, 4, 6])),
            r"adj_indptr must run from 0 to the number of adj_indices \(5\), got 0..6",
        ),
        (
            compressed(adj_indices=np.array([1, 0, 2, 4, 1])),
            r"adj_indices\[3\] = 4, but the graph has 4 nodes",
        ),
        (arrays(node_features=np.zeros((3, 2))), r"node_features has shape \(3, 2\), but 4 nodes"),
        (arrays(node_features=np.zeros(4)), r"node_features is float64 of shape \(4,\)"),
        (
            arrays(node_features=np.array([[0.0], [1.0], [np.nan], [0.0]])),
            r"node_features\[2, 0\] is not a finite",
        ),
        # Larger than float32 can hold. NumPy would warn, and a warning is an error here.
        (
            arrays(node_features=np.array([[0.0], [1e39], [1.0], [0.0]])),
            r"node_features\[1, 0\] is not a finite",
        ),
        (compressed(shape=None), "has no array shape"),
        (compressed(shape=np.array([5, 3])), r"shape is \[5, 3\], but 4 nodes have classes"),
        (compressed(shape=np.array([4, 2])), r"attr_indices\[0\] = 2, but shape says 2 features"),
        (
            compressed(attr_indptr=np.array([0, 2, 1, 3, 5])),
            r"attr_indptr\[1\] = 2 and attr_indptr\[2\] = 1",
        ),
        (compressed(attr_data=np.ones(4)), "attr_data has 4 entries and attr_indices 5"),
        (masks(val_masks=None), "has no array val_masks"),
        (masks(val_masks=np.ones((2, 3), bool)), r"val_masks is bool of shape \(2, 3\)"),
        (masks(val_masks=np.ones((2, 4))), "val_masks is float64"),
        (masks(val_masks=np.ones((1, 4), bool)), "different numbers of splits"),
    ],
)
def test_errors_name_file_array_index_and_value(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    path = write(tmp_path, given)
    with pytest.raises(DataError, match=message) as raised:
        read_node_graph(path)
    assert str(path) in str(raised.value)


def test_files_that_are_not_npz_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "graph.npz"
    with pytest.raises(DataError, match="does not exist"):
        read_node_graph(path)
    path.write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"not an \.npz file of plain arrays"):
        read_node_graph(path)
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(DataError, match=r"it is not a ZIP archive; write one with numpy.savez"):
        read_node_graph(tmp_path / "one.npy")
    whole = write(tmp_path, arrays()).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"not an \.npz file of plain arrays"):
        read_node_graph(path)
    np.savez(path, labels=np.array([{}, {}], dtype=object))
    with pytest.raises(DataError, match=r"not an \.npz file of plain arrays"):
        read_node_graph(path)
    with ZipFile(path, "w") as file:
        file.writestr("labels.npy", b"no array")
    with pytest.raises(DataError, match=r"labels is not a NumPy array; write the file with"):
        read_node_graph(path)
    with pytest.raises(DataError, match="cannot be read"):
        read_node_graph(tmp_path)
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(DataError, match="it is not a regular file"):
        read_node_graph(tmp_path / "pipe.npz")


def test_a_generated_graph_follows_its_settings(tmp_path: Path) -> None:
    settings = NodesConfig(nodes=4000, classes=3, degree=12, features=5, noise=2.0, within=0.7)
    path = make_nodes(tmp_path / "deep/graph.npz", settings)
    graph = read_node_graph(path)  # Would raise for self-loops or isolated nodes.
    assert (graph.nodes, graph.classes) == (4000, 3)
    degrees = np.diff(graph.indptr)
    assert 9 < degrees.mean() <= 12
    assert degrees.max() > 10 * np.median(degrees)
    owners = np.repeat(graph.labels, degrees)
    within = (owners == graph.labels[graph.indices]).mean()
    # A third of the edges that need not stay within a class do by chance.
    assert 0.75 < within < 0.85
    assert graph.features is not None
    vectors = graph.features.rows(0, 4000)
    centres = np.stack([vectors[graph.labels == kind].mean(0) for kind in range(3)])
    assert np.std(vectors - centres[graph.labels]) == pytest.approx(2.0, rel=0.05)
    assert np.std(centres) > 0.3


def test_a_generated_graph_is_reused_and_other_files_are_not_overwritten(tmp_path: Path) -> None:
    path = make_nodes(tmp_path / "graph.npz", NodesConfig(nodes=50))
    before = path.read_bytes()
    path.touch()
    make_nodes(path, NodesConfig(nodes=50))
    assert path.read_bytes() == before
    with pytest.raises(DataError, match="was not generated with these settings"):
        make_nodes(path, NodesConfig(nodes=51))
    other = write(tmp_path, arrays())
    with pytest.raises(DataError, match="was not generated with these settings"):
        make_nodes(other, NodesConfig(nodes=50))
    with pytest.raises(DataError, match=r"must end in \.npz"):
        make_nodes(tmp_path / "graph", NodesConfig(nodes=50))


def test_uncompressed_features_are_memory_mapped(tmp_path: Path) -> None:
    nodes, dim = 20_000, 256
    random = np.random.default_rng(1)
    given = {
        "edges": np.stack([np.arange(nodes), np.roll(np.arange(nodes), 1)], 1),
        "node_features": random.standard_normal((nodes, dim), np.float32),
        "labels": np.arange(nodes) % 3,
    }
    stored, packed = tmp_path / "stored.npz", tmp_path / "packed.npz"
    np.savez(stored, **given)
    np.savez_compressed(packed, **given)
    tracemalloc.start()
    graph = read_node_graph(stored)
    fingerprint = graph.fingerprint()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < given["node_features"].nbytes / 2
    loaded = read_node_graph(packed)
    assert loaded.fingerprint() == fingerprint
    for read in (graph, loaded):
        assert read.features is not None
        assert np.array_equal(read.features.rows(9_000, 9_100), given["node_features"][9_000:9_100])
        rows = read.features.rows(0, 1)
        rows += 1  # `rows` returns a copy, of mapped features too.

    where = stored.read_bytes().index(given["node_features"][12_345].tobytes())
    with stored.open("r+b") as file:
        file.seek(where)
        file.write(b"\x00\x00\xc0\x7f")
    with pytest.raises(
        DataError, match=r"is not an \.npz file of plain arrays: Bad CRC-32 for file 'node_features"
    ):
        read_node_graph(stored)


def test_a_nan_beyond_the_first_checked_piece_is_named(tmp_path: Path) -> None:
    features = np.zeros((70_000, 1), np.float32)
    features[66_000] = np.nan
    ring = np.stack([np.arange(70_000), np.roll(np.arange(70_000), 1)], 1)
    path = write(tmp_path, arrays(edges=ring, node_features=features, node_labels=ring[:, 0] % 2))
    with pytest.raises(DataError, match=r"node_features\[66000, 0\] is not a finite"):
        read_node_graph(path)


@pytest.mark.parametrize("place", [1, 1 << 20])
def test_an_archive_with_a_wrong_member_offset_is_refused(tmp_path: Path, place: int) -> None:
    path = write(tmp_path, arrays())
    content = bytearray(path.read_bytes())
    # The offset in the central directory: 42 bytes after the signature, 4 bytes before the name.
    entry = content.index(b"node_features.npy", content.index(b"PK\x01\x02")) - 4
    content[entry : entry + 4] = place.to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"is not an \.npz file of plain arrays"):
        read_node_graph(path)
