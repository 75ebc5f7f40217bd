"""The real PyTorch Geometric with stored features and mapped edges: models, loader and interfaces.

PyTorch Geometric's own `NeighborSampler` needs pyg-lib or torch-sparse, which have no wheels for this torch. So
`rowmill.integrations.pyg.NeighbourSampler` samples; PyTorch Geometric's `NodeLoader` calls it, joins the features and
makes the batches. Every training run is compared with the same run over a `Data` in memory.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch_geometric.data import Data, EdgeAttr, TensorAttr, remote_backend_utils
from torch_geometric.loader import NeighborLoader, NodeLoader
from torch_geometric.nn import GAT, GraphSAGE
from torch_geometric.sampler import NodeSamplerInput, SamplerOutput

import rowmill
from benchmarks import common
from benchmarks.peer_frameworks import nodes
from rowmill import optim
from rowmill.errors import InvalidInput
from rowmill.integrations.pyg import LookaheadLoader, NeighbourSampler, StoredFeatures, StoredGraph

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES, DIM, CLASSES = 300, 16, 3


@pytest.fixture
def store(tmp_path: Path) -> Iterator[rowmill.Store]:
    with rowmill.open(tmp_path / "store", memory="64MiB") as opened:
        yield opened


def planted() -> Data:
    """A graph whose node classes follow from the features of neighbours, not their own; the last node is isolated."""
    random = torch.Generator().manual_seed(7)
    label = torch.arange(NODES) % CLASSES
    of_class = [torch.where(label[:-1] == kind)[0] for kind in range(CLASSES)]
    sources = torch.stack(
        [of_class[k][torch.randint(len(of_class[k]), (8,), generator=random)] for k in label[:-1]]
    )
    targets = torch.arange(NODES - 1).repeat_interleave(8)
    centers = torch.randn(CLASSES, DIM, generator=random)
    features = centers[label] + 1.5 * torch.randn(NODES, DIM, generator=random)
    return Data(x=features, y=label, edge_index=torch.stack([sources.flatten(), targets]))


def stored(data: Data, store: rowmill.Store, folder: Path) -> tuple[StoredFeatures, StoredGraph]:
    features, graph = StoredFeatures(store), StoredGraph(folder)
    features.put_tensor(data.x, group_name=None, attr_name="x", index=None)
    features.put_tensor(data.y, group_name=None, attr_name="y", index=None)
    edges = tuple(data.edge_index)
    graph.put_edge_index(edges, edge_type=None, layout="coo", size=(NODES, NODES))
    return features, graph


def train(model: nn.Module, loader: NodeLoader, *, epochs: int = 3) -> list[float]:
    """The loss of every step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses: list[float] = []
    for _ in range(epochs):
        for batch in loader:
            seeds = batch.batch_size
            out = model(batch.x, batch.edge_index)[:seeds]
            loss = nn.functional.cross_entropy(out, batch.y[:seeds])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", [GraphSAGE, GAT])
@pytest.mark.parametrize("row_memory", [None, "80KiB"])
def test_training_on_stored_features_equals_training_in_memory(
    tmp_path: Path, kind: Any, row_memory: str | None
) -> None:
    """Bit-identical through PyTorch Geometric's loader, also with features larger than row memory."""
    data = planted()
    if row_memory is not None:  # Wide enough to exceed row memory.
        data.x = torch.cat([data.x, torch.zeros(NODES, 512 - DIM)], dim=1)
    losses: list[list[float]] = []
    with rowmill.open(tmp_path / "store", memory="64MiB", row_memory=row_memory) as store:
        remote = stored(data, store, tmp_path / "graph")
        for source in (data, remote):
            torch.manual_seed(1)
            model = kind(data.x.shape[1], 16, num_layers=2, out_channels=CLASSES)
            sampler = NeighbourSampler(remote[1], [4, 4])
            torch.manual_seed(2)
            loader = NodeLoader(
                source, sampler, input_nodes=torch.arange(NODES), batch_size=64, shuffle=True
            )
            losses.append(train(model, loader))
        assert losses[0] == losses[1]
        assert sum(losses[1][-5:]) < 0.8 * sum(losses[1][:5])
        assert (store.stats()["cold_reads"] > 0) == (row_memory is not None)


def test_the_loader_prefetches_rows(tmp_path: Path) -> None:
    """Rows are read from the device before their batch needs them, and the batches are the same."""
    data = planted()
    data.x = torch.cat([data.x, torch.zeros(NODES, 512 - DIM)], dim=1)
    with rowmill.open(tmp_path / "store", memory="64MiB", row_memory="300KiB") as store:
        remote = stored(data, store, tmp_path / "graph")
        batches: list[list[Data]] = []
        for loader, more in ((NodeLoader, {}), (LookaheadLoader, {"ahead": 2})):
            sampler = NeighbourSampler(remote[1], [2])
            torch.manual_seed(4)
            batches.append(
                list(
                    loader(remote, sampler, input_nodes=torch.arange(NODES), batch_size=16, **more)
                )
            )
            if not more:
                assert store.stats()["lookahead_loaded"] == 0
        assert store.stats()["lookahead_loaded"] > 0
        for plain, ahead in zip(*batches, strict=True):
            assert torch.equal(plain.n_id, ahead.n_id)
            assert torch.equal(plain.x, ahead.x)


def test_the_loader_samples_exactly_ahead_batches_in_advance(
    store: rowmill.Store, tmp_path: Path
) -> None:
    remote = stored(planted(), store, tmp_path / "graph")
    sampled: list[int] = []

    class Counting(NeighbourSampler):
        def sample_from_nodes(self, index: NodeSamplerInput, **more: Any) -> SamplerOutput:
            sampled.append(len(index.node))
            return super().sample_from_nodes(index, **more)

    sampler = Counting(remote[1], [2])
    loader = LookaheadLoader(
        remote, sampler, ahead=3, input_nodes=torch.arange(NODES), batch_size=50
    )
    batches = iter(loader)
    next(batches)
    assert len(sampled) == 4
    assert len(list(batches)) == 5
    assert sampled == [50] * 6
    with pytest.raises(InvalidInput, match=r"ahead must be in \[1, 63\], got 64"):
        LookaheadLoader(remote, sampler, ahead=64)
    with pytest.raises(InvalidInput, match="must be StoredFeatures"):
        LookaheadLoader((planted(), remote[1]), sampler)
    with pytest.raises(InvalidInput, match="persistent_workers"):
        LookaheadLoader(remote, sampler, persistent_workers=True, num_workers=1)


def test_a_full_sample_has_every_edge_of_its_inner_nodes_once(tmp_path: Path) -> None:
    """With all neighbours sampled, these are the edges into nodes less than two hops from a seed."""
    data = planted()
    graph = StoredGraph(tmp_path)
    graph.put_edge_index(tuple(data.edge_index), edge_type=None, layout="coo", size=(NODES, NODES))
    seeds = torch.tensor([5, NODES - 1, 70])  # The second has no neighbours.
    index = NodeSamplerInput(input_id=torch.arange(3), node=seeds)
    out = NeighbourSampler(graph, [-1, -1]).sample_from_nodes(index)
    assert torch.equal(out.node[:3], seeds)
    assert len(out.node.unique()) == len(out.node) == sum(out.num_sampled_nodes)
    inner = out.node[: sum(out.num_sampled_nodes[:2])]
    into = data.edge_index[:, torch.isin(data.edge_index[1], inner)]
    found = torch.stack([out.node[out.row], out.node[out.col]])
    assert sorted(zip(*found.tolist(), strict=True)) == sorted(zip(*into.tolist(), strict=True))
    of_seeds = torch.isin(data.edge_index[1], seeds).sum()
    assert out.num_sampled_edges == [of_seeds, into.shape[1] - of_seeds]
    few = NeighbourSampler(graph, [3], replace=True).sample_from_nodes(index)
    assert few.col.bincount(minlength=3).tolist() == [3, 0, 3]
    for sampler, message in (
        (lambda: NeighbourSampler(StoredGraph(tmp_path / "none"), [2]), "has no edges"),
        (lambda: NeighbourSampler(graph, [2]).sample_from_edges(None), "not links"),
    ):
        with pytest.raises(InvalidInput, match=message):
            sampler()
    for kind in ("cites", "likes"):
        edges = torch.zeros(1, dtype=torch.int64)
        several = StoredGraph(tmp_path / "several")
        several.put_edge_index(
            (edges, edges), edge_type=("a", kind, "a"), layout="coo", size=(1, 1)
        )
    with pytest.raises(InvalidInput, match="supports one type"):
        NeighbourSampler(several, [2])


def test_samples_are_drawn_in_worker_processes(store: rowmill.Store, tmp_path: Path) -> None:
    """Only the main process reads the store."""
    data = planted()
    remote = stored(data, store, tmp_path / "graph")
    sampler = NeighbourSampler(remote[1], [2])
    loader = LookaheadLoader(
        remote, sampler, input_nodes=torch.arange(NODES), batch_size=64, num_workers=1
    )
    batches = list(loader)
    assert torch.cat([batch.n_id[: batch.batch_size] for batch in batches]).tolist() == list(
        range(NODES)
    )
    for batch in batches:
        assert torch.equal(batch.x, data.x[batch.n_id])


def test_embeddings_are_learned_through_the_loader(store: rowmill.Store, tmp_path: Path) -> None:
    """Embeddings of nodes without features: looked up for a batch, updated in its backward pass."""
    data = planted()
    features, graph = stored(data, store, tmp_path / "graph")
    table = features.add(
        "learned",
        "x",
        rows=NODES,
        dim=8,
        optimizer=optim.Adagrad(lr=0.1),
        initializer=rowmill.init.Normal(std=0.1),
    )
    vectors = rowmill.nn.Embedding(NODES, 8, table=table)
    model = GraphSAGE(8, 16, num_layers=1, out_channels=CLASSES)
    dense = torch.optim.Adam(model.parameters(), lr=0.05)
    sampler = NeighbourSampler(graph, [6])
    loader = NodeLoader(
        (features, graph), sampler, input_nodes=torch.arange(NODES), batch_size=60, shuffle=True
    )
    right = 0
    for epoch in range(15):
        for batch in loader:
            out = model(vectors(batch.n_id), batch.edge_index)[: batch.batch_size]
            label = batch.y[: batch.batch_size]
            dense.zero_grad()
            nn.functional.cross_entropy(out, label).backward()
            dense.step()
            right += int((out.argmax(dim=1) == label).sum()) if epoch == 14 else 0
    assert right > 0.9 * NODES
    assert len(table) == NODES


def test_features_are_found_after_reopening(tmp_path: Path) -> None:
    values = torch.randn(10, 3)
    edge_type = ("author", "writes", "paper")
    with rowmill.open(tmp_path / "store", memory="16MiB") as store:
        features = StoredFeatures(store)
        for group in (None, "paper", edge_type):
            assert features.put_tensor(values, group, "x", None)
        store.checkpoint()
    with rowmill.open(tmp_path / "store", memory="16MiB") as store:
        store.table("other", dim=2, optimizer=optim.SGD(lr=0.1))
        features = StoredFeatures(store)
        found = {attr.group_name for attr in features.get_all_tensor_attrs()}
        assert found == {None, "paper", edge_type}
        for group in found:
            assert torch.equal(features.get_tensor(group, "x", None), values)
            assert features.get_tensor_size(group, "x") == (10, 3)


@pytest.mark.parametrize("kind", ["stored", "in_memory"])
def test_indices_behave_as_for_a_tensor(store: rowmill.Store, kind: str) -> None:
    values = torch.arange(30.0).view(10, 3)
    if kind == "in_memory":
        values = values.long()
    features = StoredFeatures(store)
    features.put_tensor(values, "paper", "x", None)
    mask = torch.arange(10) % 3 == 0
    for index in (torch.tensor([3, 1, 3]), mask, slice(2, 5), slice(None), 4):
        assert torch.equal(features.get_tensor("paper", "x", index), values[index])
    assert torch.equal(features["paper"].x[torch.tensor([1])], values[[1]])
    # Overwrite some rows; the others keep their values.
    fresh = -values[:2]
    assert features.update_tensor(fresh, "paper", "x", torch.tensor([8, 9]))
    assert torch.equal(
        features.get_tensor("paper", "x", slice(7, 10)), torch.cat([values[7:8], fresh])
    )
    assert features.remove_tensor("paper", "x", None)
    assert features.get_all_tensor_attrs() == []
    assert not features.remove_tensor("paper", "y", None)


def test_rows_may_be_put_in_parts(store: rowmill.Store) -> None:
    values = torch.randn(10, 3)
    features = StoredFeatures(store)
    table = features.add("paper", "x", rows=10, dim=3)
    assert features.get_all_tensor_attrs() == []
    for start in (0, 5):
        features.put_tensor(values[start : start + 5], "paper", "x", slice(start, start + 5))
    assert torch.equal(features.get_tensor("paper", "x", None), values)
    assert len(table) == 10


def test_features_of_the_wrong_shape_dtype_or_name_are_refused(store: rowmill.Store) -> None:
    features = StoredFeatures(store)
    features.put_tensor(torch.randn(10, 3), "paper", "x", None)
    with pytest.raises(InvalidInput, match=r"needs float32 \[10, 3\], got torch.float32 \[10, 4\]"):
        features.put_tensor(torch.randn(10, 4), "paper", "x", None)
    with pytest.raises(InvalidInput, match=r"needs float32 \[2, 3\], got torch.int64 \[2, 3\]"):
        features.put_tensor(torch.ones(2, 3).long(), "paper", "x", torch.tensor([0, 1]))
    with pytest.raises(
        InvalidInput, match=r"\('author', 'x'\) does not exist yet: put all rows, or make"
    ):
        features.put_tensor(torch.randn(2, 3), "author", "x", torch.tensor([0, 1]))
    with pytest.raises(InvalidInput, match="does not exist yet: put the whole tensor"):
        features.put_tensor(torch.ones(2).long(), "author", "y", torch.tensor([0, 1]))
    with pytest.raises(KeyError, match=r"no rows of .*'z'.*features are .*'paper', 'x'"):
        features.get_tensor("paper", "z", None)
    with pytest.raises(InvalidInput, match="a mask has 9 entries, but there are 10 nodes"):
        features.get_tensor("paper", "x", torch.ones(9, dtype=torch.bool))
    with pytest.raises(InvalidInput, match="10"):
        features.get_tensor("paper", "x", torch.tensor([10]))
    with pytest.raises(InvalidInput, match="integers or be a boolean mask, got"):
        features.get_tensor("paper", "x", torch.tensor([0.7]))
    assert features.get_tensor("paper", "x", torch.tensor([])).shape == (0, 3)
    with pytest.raises(InvalidInput, match="must not contain '/'"):
        features.put_tensor(torch.randn(2, 3), "a/b", "x", None)
    store.table("features/any/x", dim=2, optimizer=optim.SGD(lr=0.1)).put([5], [[1.0, 1.0]])
    with pytest.raises(InvalidInput, match="make the table with num_rows"):
        features.get_tensor("any", "x", None)


def test_edges_are_mapped_and_found_after_reopening(tmp_path: Path) -> None:
    rows, columns = torch.tensor([0, 1, 2, 2]), torch.tensor([1, 1, 0, 2])
    graph = StoredGraph(tmp_path)
    graph.put_edge_index((rows, columns), edge_type=("a", "to", "b"), layout="coo", size=(3, 4))
    graph.put_edge_index((columns, rows), edge_type=("b", "to", "a"), layout="coo", size=(4, 3))
    for opened in (graph, StoredGraph(tmp_path)):
        found = opened.get_edge_index(edge_type=("a", "to", "b"), layout="coo")
        assert torch.equal(torch.stack(found), torch.stack([rows, columns]))
        sources, pointers, _ = opened.csc([("a", "to", "b")])
        assert pointers[("a", "to", "b")].tolist() == [0, 1, 3, 4, 4]  # Node 3 is isolated.
        assert sources[("a", "to", "b")].tolist() == [2, 0, 1, 2]
        assert {attr.edge_type for attr in opened.get_all_edge_attrs()} == {
            ("a", "to", "b"),
            ("b", "to", "a"),
        }
    found[0][0] = 7  # A caller's change must not reach the file.
    assert StoredGraph(tmp_path)[EdgeAttr(("a", "to", "b"), "coo")][0].tolist() == [0, 1, 2, 2]
    graph.csc(store=True)
    layouts = [attr.layout.value for attr in StoredGraph(tmp_path).get_all_edge_attrs()]
    assert sorted(layouts) == ["coo", "coo", "csc", "csc"]
    with pytest.raises(KeyError, match="not found"):
        graph.get_edge_index(edge_type=("a", "to", "b"), layout="csr")


def test_edges_put_again_or_removed_leave_no_files(tmp_path: Path) -> None:
    graph = StoredGraph(tmp_path)
    for count in (2, 3):
        ring = torch.arange(count)
        graph.put_edge_index(
            (ring, ring.roll(1)), edge_type=None, layout="coo", size=(count, count)
        )
    assert graph.get_edge_index(edge_type=None, layout="coo")[0].tolist() == [0, 1, 2]
    assert len(list(tmp_path.iterdir())) == 3
    assert graph.remove_edge_index(edge_type=None, layout="coo")
    assert not graph.remove_edge_index(edge_type=None, layout="coo")
    assert [path.name for path in tmp_path.iterdir()] == ["edges.json"]
    assert StoredGraph(tmp_path).get_all_edge_attrs() == []
    graph.put_edge_index((ring[:1], ring[:1]), edge_type=None, layout="coo")
    assert graph.get_edge_index(edge_type=None, layout="coo")[0].tolist() == [0]


@pytest.mark.parametrize(
    ("rows", "columns", "layout", "size", "message"),
    [
        ([0, 1], [1], "coo", (2, 2), "2 rows and 1 columns"),
        ([0, 5], [1, 0], "coo", (2, 2), r"row of edges None has node 5, .* in \[0, 2\)"),
        ([0, -1], [1, 0], "coo", None, "has node -1"),
        (
            [0, 1],
            [0, 2],
            "csc",
            (2, 2),
            "col of edges None must be 3 ascending offsets from 0 to 2",
        ),
        ([0, 1], [0, 3, 2], "csc", (2, 2), "ascending offsets from 0 to 2"),
        ([], [0], "csr", None, "row of edges None must be 0 ascending offsets"),
        ([0.5], [0], "coo", None, "must be int64 of one dimension, got torch.float32"),
    ],
)
def test_invalid_edges_are_refused(
    tmp_path: Path, rows: list[Any], columns: list[int], layout: str, size: Any, message: str
) -> None:
    given = torch.tensor(rows) if rows else torch.zeros(0, dtype=torch.int64)
    with pytest.raises(InvalidInput, match=message):
        StoredGraph(tmp_path).put_edge_index(
            (given, torch.tensor(columns)), edge_type=None, layout=layout, size=size
        )


def test_errors_name_damaged_edge_files(tmp_path: Path) -> None:
    ring = torch.arange(5)
    folder = tmp_path / "graph"
    StoredGraph(folder).put_edge_index((ring, ring), edge_type=None, layout="coo", size=(5, 5))
    file = folder / "1.row.npy"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(InvalidInput, match=r"1\.row\.npy is missing or damaged .*None again"):
        StoredGraph(folder).get_edge_index(edge_type=None, layout="coo")
    file.unlink()
    with pytest.raises(InvalidInput, match=r"1\.row\.npy is missing or damaged"):
        StoredGraph(folder).get_edge_index(edge_type=None, layout="coo")
    (folder / "edges.json").write_text("[{")
    with pytest.raises(InvalidInput, match=r"edges\.json is not a valid list of edges"):
        StoredGraph(folder)
    with pytest.raises(InvalidInput, match="is a file; give a folder"):
        StoredGraph(folder / "edges.json")


def test_a_sampler_without_layers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="fanouts is empty"):
        NeighbourSampler(StoredGraph(tmp_path), fanouts=[])


def test_sizes_of_node_types_are_known(store: rowmill.Store, tmp_path: Path) -> None:
    features, graph = StoredFeatures(store), StoredGraph(tmp_path / "graph")
    features.put_tensor(torch.randn(5, 2), "paper", "x", None)
    ring = torch.arange(4)
    graph.put_edge_index((ring, ring), edge_type=("a", "to", "a"), layout="coo", size=(4, 4))
    assert remote_backend_utils.num_nodes(features, graph, "paper") == 5
    assert remote_backend_utils.num_nodes(features, graph, "a") == 4
    assert TensorAttr("paper", "x") in features.get_all_tensor_attrs()


def test_pygs_own_sampler_needs_packages_without_wheels(
    store: rowmill.Store, tmp_path: Path
) -> None:
    """When this fails, `NeighborLoader` can be tested with stored features too."""
    remote = stored(planted(), store, tmp_path / "graph")
    loader = NeighborLoader(remote, [2], input_nodes=torch.arange(NODES), batch_size=8)
    with pytest.raises(ImportError, match="requires either 'pyg-lib' or 'torch-sparse'"):
        next(iter(loader))


def test_the_benchmark_compares_the_same_work() -> None:
    """Runs benchmarks/peer_frameworks in its smallest form; times are not checked."""
    benchmark = common.Benchmark(common.Settings(True, 1, None, ""))
    shape = nodes.Shape(nodes=400, features=8, classes=4, hidden=16, heads=2, batch=32, batches=3)
    nodes.measure(benchmark, shape, watts=5.0, rounds=1)
    variants = [f"{kind}_{name}" for kind in ("graphsage", "gat") for name in nodes.VARIANTS]
    assert [cell["units"] for cell in benchmark.cells] == [96] * 6
    assert {cell["variant"] for cell in benchmark.cells} == set(variants)
    assert benchmark.summary["gat_rowmill_time_over_pyg"] > 0


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = Path(__file__).parents[3] / "examples/pyg_feature_store.py"
    assert runpy.run_path(str(example))["right"] > 0.8
