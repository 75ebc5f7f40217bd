# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false
"""PyTorch Geometric over stored rows: node features in a store, memory-mapped edges, a sampler and a prefetching loader.

This module needs PyTorch Geometric, on which rowmill does not depend, so no other module of rowmill imports it.
docs/frameworks.md shows how to combine the parts.
"""

from __future__ import annotations

import json
import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from rowmill import gnn
from rowmill._extras import extra
from rowmill.errors import InvalidInput
from rowmill.init import Zeros
from rowmill.optim.specs import SGD

with extra("pyg"):
    from torch_geometric.data import EdgeAttr, FeatureStore, GraphStore, TensorAttr
    from torch_geometric.loader import NodeLoader
    from torch_geometric.loader.base import DataLoaderIterator
    from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rowmill.init import Initializer
    from rowmill.optim.specs import OptimizerSpec
    from rowmill.store.store import Store
    from rowmill.store.tables import Dtype, Ids, Table

Group = str | tuple[str, str, str] | None
"""A node type or edge type; None for a graph with one type of each."""

_CHUNK_ROWS = 65_536
"""Rows per write; a few hundred MB for the widest features."""


class StoredFeatures(FeatureStore):
    """A `FeatureStore` that keeps each float32 matrix as a table of a store, one row per node.

    Putting a float32 matrix makes a table with its number of rows. Reading never inserts rows. Other tensors, such as
    labels, masks and times, are held in memory by this object only: put them again after reopening the store.

    Args:
        store: The store. Features that it already has, with rows, are found.
        prefix: Prefix of the names of the tables.
    """

    def __init__(self, store: Store, *, prefix: str = "features/") -> None:
        super().__init__()
        self.store = store
        self.prefix = prefix
        self._in_memory: dict[tuple[Group, str], Tensor] = {}
        # Holds references, because a store closes tables that are not referenced.
        self._tables: dict[str, Table] = {}

    def add(
        self,
        group: Group,
        name: str,
        *,
        rows: int,
        dim: int,
        optimizer: OptimizerSpec | None = None,
        initializer: Initializer | None = None,
        dtype: Dtype = "fp32",
    ) -> Table:
        """Create or open the table of a feature; its rows are put later, or learned.

        Args:
            group: Node type or edge type; None for a graph with one type of each.
            name: Name of the feature, such as "x".
            rows: Number of nodes.
            dim: Weights per row.
            optimizer: For learned rows (`rowmill.nn.Embedding` over this table); None: `SGD`, which has no state per row.
            initializer: Initial values of rows; None: zeros.
            dtype: Storage type of the weights.
        """
        table_name = self._table_name(group, name)
        table = self._tables[table_name] = self.store.table(
            table_name,
            dim=dim,
            num_rows=rows,
            optimizer=optimizer or SGD(lr=0.0),
            initializer=initializer or Zeros(),
            dtype=dtype,
        )
        return table

    def table(self, group: Group, name: str) -> Table:
        """The table of a feature; raises `KeyError` if there is none."""
        table = self._find(group, name)
        if table is None:
            known = [(attr.group_name, attr.attr_name) for attr in self.get_all_tensor_attrs()]
            raise KeyError(f"no rows of {(group, name)}; the features are {known}")
        return table

    def lookahead(self, ids: Ids, group: Group = None, *, steps: int = 1) -> bool:
        """Prefetch all stored features of some nodes of a group; see `Store.lookahead`."""
        tables = [
            self.table(attr.group_name, attr.attr_name)
            for attr in self._stored_attrs()
            if attr.group_name == group
        ]
        return self.store.lookahead({table: ids for table in tables}, steps=steps)

    # The interface of torch_geometric.data.FeatureStore.

    def _put_tensor(self, tensor: Tensor | np.ndarray[Any, Any], attr: TensorAttr) -> bool:
        values = torch.as_tensor(tensor)
        group, name = attr.group_name, attr.attr_name
        table = self._find(group, name)
        if table is None and (values.dtype != torch.float32 or values.dim() != 2):
            known = self._in_memory.get((group, name))
            if _is_all(attr.index):
                self._in_memory[group, name] = values
            elif known is None:
                raise InvalidInput(
                    f"{(group, name)} does not exist yet: put the whole tensor first, with index=None"
                )
            else:
                known[attr.index] = values
            return True
        if table is None:
            if not _is_all(attr.index):
                raise InvalidInput(
                    f"{(group, name)} does not exist yet: put all rows, or make the table with add({group!r}, {name!r}, "
                    "rows=..., dim=...)"
                )
            table = self.add(group, name, rows=len(values), dim=values.shape[1])
        ids = _ids(attr.index, _rows(table))
        if values.dtype != torch.float32 or tuple(values.shape) != (len(ids), table.dim):
            raise InvalidInput(
                f"{(group, name)} needs float32 [{len(ids)}, {table.dim}], got {values.dtype} {list(values.shape)}"
            )
        for start in range(0, len(ids), _CHUNK_ROWS):
            chunk = slice(start, start + _CHUNK_ROWS)
            table.put(ids[chunk], values[chunk])
        return True

    def _get_tensor(self, attr: TensorAttr) -> Tensor:
        known = self._in_memory.get((attr.group_name, attr.attr_name))
        if known is not None:
            return known if _is_all(attr.index) else known[attr.index]
        table = self.table(attr.group_name, attr.attr_name)
        rows = table.get(_ids(attr.index, _rows(table)))
        return rows[0] if isinstance(attr.index, int) else rows

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        if self._in_memory.pop((attr.group_name, attr.attr_name), None) is not None:
            return True
        table = self._find(attr.group_name, attr.attr_name)
        if table is None:
            return False
        removed = 0
        for start in range(0, _rows(table), _CHUNK_ROWS):
            removed += table.delete(np.arange(start, min(start + _CHUNK_ROWS, _rows(table))))
        return removed > 0

    def update_tensor(
        self, tensor: Tensor | np.ndarray[Any, Any], *args: Any, **kwargs: Any
    ) -> bool:
        """Overwrite values; rows that are not in the index keep theirs."""
        return self.put_tensor(tensor, *args, **kwargs)

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        known = self._in_memory.get((attr.group_name, attr.attr_name))
        if known is not None:
            return tuple(known.shape)
        table = self._find(attr.group_name, attr.attr_name)
        return None if table is None else (_rows(table), table.dim)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """All features in memory, and the stored features that have rows."""
        in_memory = [TensorAttr(group, name) for group, name in self._in_memory]
        return [*self._stored_attrs(), *in_memory]

    def _stored_attrs(self) -> list[TensorAttr]:
        found: list[TensorAttr] = []
        for table_name in self.store.table_names():
            if table_name.startswith(self.prefix):
                *group, name = table_name.removeprefix(self.prefix).split("/")
                known: Any = (None, *group)[-1] if len(group) < 2 else tuple(group)
                if len(self.table(known, name)):
                    found.append(TensorAttr(known, name))
        return found

    def _find(self, group: Group, name: str) -> Table | None:
        table_name = self._table_name(group, name)
        if table_name not in self._tables:
            if table_name not in self.store.table_names():
                return None
            self._tables[table_name] = self.store.open_table(table_name)
        return self._tables[table_name]

    def _table_name(self, group: Group, name: str) -> str:
        parts = [] if group is None else [group] if isinstance(group, str) else list(group)
        if any("/" in part for part in [*parts, name]):
            raise InvalidInput(f"group and feature names must not contain '/', got {(group, name)}")
        return self.prefix + "/".join([*parts, name])


class StoredGraph(GraphStore):
    """A `GraphStore` with edges in memory-mapped files; the operating system caches the pages that a sampler reads.

    Args:
        folder: The folder of the files; made if it does not exist.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__()
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise InvalidInput(f"{self.folder} is a file; give a folder for the edges")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._edges: dict[tuple[Any, str], dict[str, Any]] = {}
        self._mapped: dict[str, Tensor] = {}
        if self._list.exists():
            try:
                for entry in json.loads(self._list.read_text()):
                    self._edges[_edge_key(entry)] = entry
            except (ValueError, KeyError, TypeError) as error:
                raise InvalidInput(
                    f"{self._list} is not a valid list of edges ({error}): put the edges again, into another folder"
                ) from None

    @property
    def _list(self) -> Path:
        return self.folder / "edges.json"

    def _put_edge_index(self, edge_index: tuple[Tensor, Tensor], edge_attr: EdgeAttr) -> bool:
        rows, columns = (torch.as_tensor(part) for part in edge_index)
        _check_edges(rows, columns, edge_attr)
        number = 1 + max((entry["number"] for entry in self._edges.values()), default=0)
        entry = {
            "number": number,
            "edge_type": edge_attr.edge_type,
            "layout": edge_attr.layout.value,
            "is_sorted": edge_attr.is_sorted,
            "size": edge_attr.size,
        }
        for part, values in (("row", rows), ("col", columns)):
            with self._file(entry, part).open("wb") as file:
                np.save(file, values.contiguous().numpy())
                os.fsync(file.fileno())
        self._replace(_edge_key(entry), entry)
        return True

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        entry = self._edges.get((edge_attr.edge_type, edge_attr.layout.value))
        return None if entry is None else (self._map(entry, "row"), self._map(entry, "col"))

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        key = edge_attr.edge_type, edge_attr.layout.value
        if key not in self._edges:
            return False
        self._replace(key, None)
        return True

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """The type, layout and size of every stored set of edges."""
        return [
            EdgeAttr(
                key[0],
                entry["layout"],
                entry["is_sorted"],
                None if entry["size"] is None else tuple(entry["size"]),
            )
            for key, entry in self._edges.items()
        ]

    def _replace(self, key: tuple[Any, str], entry: dict[str, Any] | None) -> None:
        """Set or remove the entry of some edges in the list, durably, then delete the files of the old entry."""
        old = self._edges.pop(key, None)
        if entry is not None:
            self._edges[key] = entry
        unfinished = self._list.with_suffix(".new")
        with unfinished.open("w") as file:
            json.dump(list(self._edges.values()), file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self._list)
        if old is None:
            return
        for part in ("row", "col"):
            file = self._file(old, part)
            self._mapped.pop(file.name, None)
            file.unlink()

    def _map(self, entry: dict[str, Any], part: str) -> Tensor:
        file = self._file(entry, part)
        if file.name not in self._mapped:
            try:
                # Copy-on-write: torch cannot make tensors read-only, and writes must not reach the file.
                self._mapped[file.name] = torch.from_numpy(np.load(file, mmap_mode="c"))
            except (OSError, ValueError, EOFError, TypeError) as error:
                raise InvalidInput(
                    f"{file} is missing or damaged ({error}): put edges {_edge_key(entry)[0]} again"
                ) from None
        return self._mapped[file.name]

    def _file(self, entry: dict[str, Any], part: str) -> Path:
        return self.folder / f"{entry['number']}.{part}.npy"


class NeighbourSampler(BaseSampler):
    """Samples neighbours for a `NodeLoader` with the kernel of `rowmill.gnn`, in a graph with one edge type.

    Samples depend on torch's random numbers: `torch.manual_seed` makes them repeatable. Links cannot be sampled.

    Args:
        graph: The edges, in any layout. The `csc` layout of a `StoredGraph` is used without a copy.
        fanouts: Neighbours to sample per node in each hop, the batch's hop first; -1: all neighbours.
        replace: Sample with replacement.
    """

    def __init__(self, graph: GraphStore, fanouts: Sequence[int], *, replace: bool = False) -> None:
        if len(fanouts) == 0:
            raise InvalidInput("fanouts is empty: give one fan-out per layer of the model")
        if len(graph.get_all_edge_attrs()) == 0:
            raise InvalidInput("the graph has no edges: put them with put_edge_index")
        sources, pointers, _ = graph.csc()
        if isinstance(sources, dict):
            if len(sources) != 1:
                raise InvalidInput(
                    f"the graph has edges of types {list(sources)}, but a NeighbourSampler supports one type: give a graph with one"
                )
            [sources], [pointers] = sources.values(), pointers.values()
        self._sampler = gnn.NeighbourSampler(
            pointers.numpy(), sources.numpy(), fanouts=fanouts, replace=replace
        )

    def sample_from_nodes(self, index: NodeSamplerInput, **kwargs: Any) -> SamplerOutput:
        """Sample the neighbourhood of some nodes; the neighbours of each node are drawn once."""
        sample = self._sampler.sample(index.node, batch=int(torch.randint(2**62, ())))
        nodes, edges = [len(index.node)], [0]
        rows: list[Tensor] = []
        columns: list[Tensor] = []
        earlier = 0
        for block in sample.blocks:
            # A block begins with the targets of the block before it; their edges were added then.
            first = int(block.indptr[earlier])
            rows.append(block.indices[first:])
            columns.append(block.owners[first:])
            earlier = block.targets
            nodes.append(block.sources - block.targets)
            edges.append(len(rows[-1]))
        return SamplerOutput(
            node=sample.nodes,
            row=torch.cat(rows),
            col=torch.cat(columns),
            edge=None,
            num_sampled_nodes=nodes,
            num_sampled_edges=edges[1:],
            metadata=(index.input_id, index.time),
        )

    def sample_from_edges(self, index: Any, neg_sampling: Any = None) -> SamplerOutput:
        """Raise `InvalidInput`: this sampler does not sample links."""
        raise InvalidInput(
            "NeighbourSampler samples neighbours of nodes, not links: use another sampler for links"
        )


class LookaheadLoader(NodeLoader):
    """A `NodeLoader` of PyTorch Geometric that samples batches ahead of time and prefetches their rows.

    Args:
        data: Stored features and a graph.
        node_sampler: As for `NodeLoader`.
        ahead: Number of batches to sample ahead, in [1, 63].
        kwargs: As for `NodeLoader`.
    """

    def __init__(
        self,
        data: tuple[StoredFeatures, GraphStore],
        node_sampler: Any,
        *,
        ahead: int = 4,
        **kwargs: Any,
    ) -> None:
        features: Any = data[0]
        if not isinstance(features, StoredFeatures):
            raise InvalidInput(
                f"data[0] must be StoredFeatures, got {type(features).__name__}: put the features into a store, or use NodeLoader"
            )
        if not 1 <= ahead <= 63:
            raise InvalidInput(f"ahead must be in [1, 63], got {ahead}")
        if kwargs.get("persistent_workers"):
            raise InvalidInput(
                "persistent_workers=True does not work with LookaheadLoader: leave it out"
            )
        self.ahead = ahead
        super().__init__(data, node_sampler, filter_per_worker=False, **kwargs)

    def _get_iterator(self) -> Any:
        sampled = DataLoader._get_iterator(self)  # pyright: ignore[reportPrivateUsage]
        return DataLoaderIterator(self._announced(sampled), self._read)

    def _read(self, out: Any) -> Any:
        # Prefetched rows are held until their store step begins, and a read alone does not begin one.
        with self.data[0].store.forward():
            return self.filter_fn(out)

    def _announced(self, sampled: Iterator[Any]) -> Iterator[Any]:
        waiting: deque[Any] = deque()
        for out in sampled:
            nodes = out.node if isinstance(out.node, dict) else {None: out.node}
            for group, ids in nodes.items():
                self.data[0].lookahead(ids, group, steps=len(waiting) + 1)
            waiting.append(out)
            if len(waiting) > self.ahead:
                yield waiting.popleft()
        yield from waiting


def _is_all(index: Any) -> bool:
    return index is None or (isinstance(index, slice) and index == slice(None))


def _ids(index: Any, rows: int) -> Tensor:
    if index is None:
        return torch.arange(rows)
    if isinstance(index, slice):
        return torch.arange(*index.indices(rows))
    ids = torch.as_tensor(index).reshape(-1)
    if ids.dtype == torch.bool:
        if len(ids) != rows:
            raise InvalidInput(
                f"a mask has {len(ids)} entries, but there are {rows} nodes: give one entry per node"
            )
        return ids.nonzero().view(-1)
    # torch makes an empty list a tensor of floats, which is allowed.
    if ids.is_floating_point() and len(ids):
        raise InvalidInput(f"an index must hold integers or be a boolean mask, got {ids.dtype}")
    return ids.long()


def _rows(table: Table) -> int:
    if table.num_rows is None:
        raise InvalidInput(
            f"table {table.name!r} has no num_rows, but features are numbered from 0: make the table with num_rows"
        )
    return table.num_rows


def _edge_key(entry: dict[str, Any]) -> tuple[Any, str]:
    kind = entry["edge_type"]
    return None if kind is None else tuple(kind), entry["layout"]


def _check_edges(rows: Tensor, columns: Tensor, attr: EdgeAttr) -> None:
    """Raise `InvalidInput` unless two arrays are valid edges of the layout and size in `attr`."""
    for part, values in (("row", rows), ("col", columns)):
        if values.dtype != torch.int64 or values.dim() != 1:
            raise InvalidInput(
                f"{part} of edges {attr.edge_type} must be int64 of one dimension, got {values.dtype} {list(values.shape)}"
            )
    layout = attr.layout.value
    pointers = {"csr": "row", "csc": "col"}.get(layout)
    if pointers is None and len(rows) != len(columns):
        raise InvalidInput(
            f"edges {attr.edge_type} have {len(rows)} rows and {len(columns)} columns: give the same number of both"
        )
    for part, values, other, place in (("row", rows, columns, 0), ("col", columns, rows, 1)):
        nodes = None if attr.size is None else attr.size[place]
        if part == pointers:
            wanted = len(values) if nodes is None else nodes + 1
            if (
                len(values) != wanted
                or len(values) == 0
                or values[0] != 0
                or values[-1] != len(other)
                or bool((values.diff() < 0).any())
            ):
                raise InvalidInput(
                    f"{part} of edges {attr.edge_type} must be {wanted} ascending offsets from 0 to {len(other)}"
                )
        elif len(values) and (
            int(values.min()) < 0 or (nodes is not None and int(values.max()) >= nodes)
        ):
            worst = int(values.min()) if int(values.min()) < 0 else int(values.max())
            raise InvalidInput(
                f"{part} of edges {attr.edge_type} has node {worst}, but node numbers must be in [0, {nodes or 'nodes'})"
            )
