"""Convert a torch model's embeddings to stored modules, in place, and back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rowmill import _core, init
from rowmill.conversion.tagged import tagged_optimizer
from rowmill.errors import InvalidInput
from rowmill.integrations.torchrec import KeyedBags, KeyedRows
from rowmill.integrations.torchrec.collections import (
    KeyedCollection,
    collections_of,
    keyed_twin,
    matches,
    plain_collection,
)
from rowmill.nn import Embedding, EmbeddingBag, stored_modules
from rowmill.nn.stored import StoredBag, paths_of, read_weights, refuse_options, write_weights
from rowmill.optim.specs import SGD, optimizer_to_dict
from rowmill.size import format_size, parse_size
from rowmill.store.store import Store
from rowmill.store.store import open as open_store

if TYPE_CHECKING:
    import os

    from rowmill.distributed import Ranks
    from rowmill.distributed.placement import PlacementSetting
    from rowmill.init import Initializer
    from rowmill.optim.specs import OptimizerSpec
    from rowmill.store.tables import Dtype, Table

_Source = nn.Embedding | nn.EmbeddingBag


_Found = tuple[dict[str, KeyedCollection], dict[str, _Source], "tuple[TablePlan, ...]"]


@dataclass(frozen=True)
class TablePlan:
    """The plan for one embedding module.

    Attributes:
        path: Path of the module in the model.
        table: Name of its table in the store.
        num_rows: Number of rows.
        dim: Weights per row.
        dtype: How weights are stored.
        optimizer: Optimizer of the rows; SGD with lr 0 for a frozen module.
        group: Number of the table's group. Tables of one group share a store call.
        bytes: Bytes of all rows with their optimizer state.
        tier: "memory" if all tables fit into the budget, else the share of rows that can be cached.
    """

    path: str
    table: str
    num_rows: int
    dim: int
    dtype: Dtype
    optimizer: OptimizerSpec
    group: int
    bytes: int
    tier: str


@dataclass(frozen=True)
class Conversion:
    """The result or plan of `convert`; `str()` shows it as a table.

    Attributes:
        tables: One plan per module.
        memory: The store's budget in bytes.
        store: The store, or None after a dry run on a path.
    """

    tables: tuple[TablePlan, ...]
    memory: int
    store: Store | None

    def __str__(self) -> str:
        header = ("module", "table", "rows", "dim", "optimizer", "group", "bytes", "tier")
        lines = [header] + [
            (
                plan.path,
                plan.table,
                f"{plan.num_rows:,}",
                str(plan.dim),
                type(plan.optimizer).__name__,
                str(plan.group),
                format_size(plan.bytes),
                plan.tier,
            )
            for plan in self.tables
        ]
        widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
        rows = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        total = sum(plan.bytes for plan in self.tables)
        rows.append(
            f"{len(self.tables)} tables, {format_size(total)} of rows, memory {format_size(self.memory)}"
        )
        return "\n".join(rows)


def convert(
    model: nn.Module,
    *,
    store: Store | str | os.PathLike[str],
    optimizer: OptimizerSpec | Mapping[str, OptimizerSpec] | None = None,
    memory: int | str = "2GiB",
    dtype: Dtype = "fp32",
    initializer: Initializer | None = None,
    staleness_bound: int | None = 0,
    direct_index: bool = True,
    dense_optimizer: torch.optim.Optimizer | None = None,
    skip: Collection[str] = (),
    prefix: str = "",
    reuse: bool = False,
    dry_run: bool = False,
    ranks: Ranks | None = None,
    placement: PlacementSetting | None = None,
) -> Conversion:
    """Replace every `nn.Embedding` and `nn.EmbeddingBag` of a model with its stored counterpart, in place.

    TorchRec's `EmbeddingBagCollection` and `EmbeddingCollection`, recognised by their structure, are replaced as a
    whole. The replacement takes the same KeyedJaggedTensor, returns the same KeyedTensor or JaggedTensors, and makes
    one call of the store per group of tables.

    Forward signatures and state-dict names stay the same; weights are copied into the store. A module on the
    meta device (`with torch.device("meta")`) has no weights to copy: its rows are created on first use. Use it to
    build a model larger than memory. All modules are checked before any is changed.

    With `ranks`, rows are sharded over the ranks, and each replacement is a module of `rowmill.conversion.sharded_modules`. All
    ranks call `convert` with equal models, each with its own store. Weights are taken from rank 0. In a process group of
    several ranks, convert raises without `ranks`, because every rank would train a separate copy of the rows.

    Args:
        model: The model. It must not be an embedding itself, which cannot be replaced in place.
        store: An open store, or a path to open one at (see `Conversion.store`).
        optimizer: Optimizer of the rows: one for all, or by module path (patterns such as "tables.*"). Weights tagged
            by `apply_optimizer_in_backward` have their own; a table must have exactly one.
        memory: Memory budget of the store, if it is opened here.
        dtype: How weights are stored, "fp32", "bf16" or "split-bf16"; see `Store.table`.
        initializer: Initial weights of rows that were not copied; None: normal(0, 1), as in torch.
        staleness_bound: See `Store.table`.
        direct_index: Index tables directly by ids in [0, num_embeddings); False: by hash, which saves memory if
            few of the ids ever occur.
        dense_optimizer: Optimizer of the other parameters, to check that it has no embedding weight.
        skip: Paths or patterns of modules to leave unchanged, including their submodules.
        prefix: Prefix of the table names; the rest is the module path.
        reuse: Allow existing tables with rows: keep their rows and copy no weights into them.
        dry_run: Change nothing, only return the plan.
        ranks: The ranks over which rows are sharded; `store` is then the open store of this rank.
        placement: With `ranks`, the placements of tables, by table name; see `ShardedCollection`.

    Raises:
        InvalidInput: A module cannot be converted; the message gives its path, the reason and the fix.

    Examples:
        >>> model = nn.Sequential(nn.EmbeddingBag(1000, 8, mode="sum"), nn.Linear(8, 1))
        >>> plan = convert(model, store="folder", optimizer=SGD(lr=0.1), dry_run=True)
        >>> print(plan)
        module  table  rows   dim  optimizer  group  bytes     tier
        0       0      1,000  8    SGD        0      31.2 KiB  memory
        1 tables, 31.2 KiB of rows, memory 2.0 GiB
    """
    initializer = init.Normal() if initializer is None else initializer
    budget = store.memory if isinstance(store, Store) else parse_size(memory)

    def check() -> tuple[_Found, dict[str, object]]:
        collections = collections_of(model, skip)
        sources = _sources(model, skip)
        _refuse_shared(model, sources)
        if dense_optimizer is not None:
            _refuse_trained_twice(sources, dense_optimizer)
        plans = _plans(sources, optimizer, dtype, prefix, budget)
        return (collections, sources, plans), {"the modules": list(sources)}

    # A rank that raised alone would leave the others waiting.
    agree = None if ranks is None or dry_run else ranks.agree
    collections, sources, plans = check()[0] if agree is None else agree(check, "the model")
    if dry_run:
        return Conversion(plans, budget, store if isinstance(store, Store) else None)
    if ranks is not None:
        # Imported here, because one process does not need rowmill.distributed.
        from rowmill.conversion.sharded import sharded_twins

        def make_tables() -> dict[str, Table]:
            into = _open_store(store)
            settings = (into, initializer, staleness_bound, direct_index, reuse)
            return {plan.path: _made(plan, *settings) for plan in plans}

        twins = sharded_twins(sources, collections, make_tables, ranks, placement)
        _put_in(model, twins, collections)
        return Conversion(plans, budget, _open_store(store))
    if placement is not None:
        raise InvalidInput(f"placement needs ranks=, got placement={placement!r} without it")
    _refuse_ranks(sources)
    opened = store if isinstance(store, Store) else open_store(store, memory=budget)
    try:
        tables = {
            plan.path: _table(
                sources[plan.path], plan, opened, initializer, staleness_bound, direct_index, reuse
            )
            for plan in plans
        }
        replaced: dict[str, nn.Module] = {
            path: keyed_twin(path, collection, tables) for path, collection in collections.items()
        }
        inside = {inner for path, found in collections.items() for inner in found.paths(path)}
        for path in tables.keys() - inside:
            replaced[path] = _twin(sources[path], tables[path])
    except BaseException:
        if not isinstance(store, Store):
            opened.close()
        raise
    _put_in(model, replaced, collections)
    return Conversion(plans, budget, opened)


def _open_store(store: Store | str | os.PathLike[str]) -> Store:
    if not isinstance(store, Store):
        raise InvalidInput(
            f"store must be an open store of this rank if ranks= is given, got {store!r}: pass "
            'rowmill.open(f"stores/{ranks.rank}"), or the result of Checkpoint.open()'
        )
    return store


def _put_in(
    model: nn.Module,
    twins: Mapping[str, nn.Module],
    collections: Mapping[str, KeyedCollection],
) -> None:
    for path, twin in twins.items():
        _replace(model, path, twin)
    for collection in collections.values():
        collection.forget_weights()


def unconvert(model: nn.Module) -> None:
    """Replace the stored modules of a model with plain torch modules with the same weights, in place.

    It needs memory for all weights. The store keeps its rows. TorchRec's collections are restored without
    their optimizer tags: tag them again to train them.

    Raises:
        InvalidInput: A stored module has no plain counterpart; nothing was changed.
    """
    stored = list(stored_modules(model))
    for path, module in stored:
        known = isinstance(module, KeyedBags | KeyedRows) or (
            isinstance(module, StoredBag) and module.num_embeddings is not None
        )
        if not known:
            raise InvalidInput(f"{path}: {type(module).__name__} has no plain torch counterpart")
    for path, module in stored:
        if isinstance(module, KeyedBags | KeyedRows):
            _replace(model, path, plain_collection(module))
        else:
            assert isinstance(module, StoredBag)
            _replace(model, path, _plain(module))


def _sources(model: nn.Module, skip: Collection[str]) -> dict[str, _Source]:
    sources: dict[str, _Source] = {}
    left = [path for path, _ in paths_of(model) if path and matches(path, skip)]
    for path, module in paths_of(model, remove_duplicate=False):
        if not isinstance(module, nn.Embedding | nn.EmbeddingBag) or matches(
            path, [*skip, *(f"{skipped}.*" for skipped in left)]
        ):
            continue
        if path == "":
            raise InvalidInput(
                "the model is an embedding itself and cannot be replaced in place: wrap it in a module"
            )
        if type(module) not in (nn.Embedding, nn.EmbeddingBag):
            raise InvalidInput(
                f"{path}: {type(module).__name__} is a subclass whose forward may differ; "
                f"skip it with skip=[{path!r}]"
            )
        refuse_options(module.max_norm, module.scale_grad_by_freq, module.weight.dtype, f"{path}: ")
        weight = module.weight.detach()
        known = weight.numel() and not weight.is_meta
        if known and not all(value.isfinite() for value in weight.aminmax()):
            raise InvalidInput(
                f"{path}: a weight is NaN or infinite, which a row cannot hold: set it to a finite number"
            )
        if isinstance(module, nn.EmbeddingBag) and module.mode == "max":
            raise InvalidInput(f'{path}: mode="max" is not supported, only "sum" and "mean"')
        padding = module.padding_idx if isinstance(module, nn.Embedding) else None
        if padding is not None and not weight.is_meta and bool(weight[padding].any()):
            raise InvalidInput(
                f"{path}: the row of padding_idx {padding} is not 0, but a stored table returns 0 for it: set the "
                "row to 0"
            )
        sources[path] = module
    if not sources:
        raise InvalidInput(
            "the model holds no nn.Embedding, nn.EmbeddingBag or TorchRec collection to convert"
        )
    return sources


def _refuse_shared(model: nn.Module, sources: Mapping[str, _Source]) -> None:
    owners: dict[Tensor, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(parameter, []).append(name)
    for path, module in sources.items():
        if len(owners[module.weight]) > 1:
            raise InvalidInput(
                f"{path}: its weight is shared by {', '.join(owners[module.weight])}; "
                f"a stored table has one user: skip it with skip=[{path!r}]"
            )


def _refuse_trained_twice(sources: Mapping[str, _Source], optimizer: torch.optim.Optimizer) -> None:
    held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    for path, module in sources.items():
        if module.weight in held:
            raise InvalidInput(
                f"{path}: its weight is also in the dense optimizer; create that optimizer from the other "
                "parameters, or after convert()"
            )


def _refuse_ranks(sources: Mapping[str, _Source]) -> None:
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return
    # Frozen rows are equal on all ranks.
    trained = [path for path, module in sources.items() if module.weight.requires_grad]
    if trained:
        raise InvalidInput(
            f"{trained[0]}: convert() in a process group of {dist.get_world_size()} ranks would give each rank its own "
            "rows, which miss the gradients of the other ranks: shard the rows with "
            "ranks=rowmill.distributed.Ranks(), or keep the torch embeddings"
        )


def _plans(
    sources: Mapping[str, _Source],
    optimizer: OptimizerSpec | Mapping[str, OptimizerSpec] | None,
    dtype: Dtype,
    prefix: str,
    budget: int,
) -> tuple[TablePlan, ...]:
    groups: dict[object, int] = {}
    plans: list[TablePlan] = []
    for path, module in sources.items():
        # Frozen rows need no optimizer state: SGD keeps none, and lr 0 marks them as frozen.
        trained = module.weight.requires_grad
        spec = _optimizer_of(path, module.weight, optimizer) if trained else SGD(lr=0.0)
        stride = _core.row_stride(module.embedding_dim, dtype, optimizer_to_dict(spec))
        group = groups.setdefault((module.embedding_dim, replace(spec, lr=0.0)), len(groups))
        rows = module.num_embeddings
        plans.append(
            TablePlan(
                path,
                prefix + path,
                rows,
                module.embedding_dim,
                dtype,
                spec,
                group,
                rows * stride,
                "",
            )
        )
    total = sum(plan.bytes for plan in plans)
    tier = "memory" if total <= budget else f"disk, {100 * budget // total}% cached"
    return tuple(replace(plan, tier=tier) for plan in plans)


def _optimizer_of(
    path: str,
    weight: Tensor,
    optimizer: OptimizerSpec | Mapping[str, OptimizerSpec] | None,
) -> OptimizerSpec:
    tagged = tagged_optimizer(weight, path)
    passed = optimizer
    if isinstance(optimizer, Mapping):
        passed = next((s for pattern, s in optimizer.items() if fnmatchcase(path, pattern)), None)
    if tagged is not None and passed is not None:
        raise InvalidInput(
            f"{path}: two optimizers, {tagged} by apply_optimizer_in_backward and {passed} by optimizer=; remove one "
            "of them (optimizer= may list only the modules without a tag)"
        )
    found = tagged if tagged is not None else passed
    if found is None or isinstance(found, Mapping):
        names = ", ".join(map(repr, optimizer)) if isinstance(optimizer, Mapping) else ""
        raise InvalidInput(
            f"{path}: no optimizer; optimizer= names only {names or 'nothing'}, and the weights are not tagged by "
            "apply_optimizer_in_backward: add this path to optimizer="
        )
    return found


def _table(
    module: _Source,
    plan: TablePlan,
    store: Store,
    initializer: Initializer,
    staleness_bound: int | None,
    direct_index: bool,
    reuse: bool,
) -> Table:
    """The table of a module, with the module's weights if it has no rows."""
    table = _made(plan, store, initializer, staleness_bound, direct_index, reuse)
    if len(table) == 0 and not module.weight.is_meta:
        write_weights(table, module.weight.detach(), plan.num_rows)
    return table


def _made(
    plan: TablePlan,
    store: Store,
    initializer: Initializer,
    staleness_bound: int | None,
    direct_index: bool,
    reuse: bool,
) -> Table:
    existed = plan.table in store.table_names()
    table = store.table(
        plan.table,
        dim=plan.dim,
        dtype=plan.dtype,
        optimizer=plan.optimizer,
        initializer=initializer,
        staleness_bound=staleness_bound,
        num_rows=plan.num_rows if direct_index else None,
    )
    if existed and len(table) > 0 and not reuse:
        raise InvalidInput(
            f"{plan.path}: table {plan.table!r} of {store} already holds {len(table)} rows; pass "
            "reuse=True to continue training them, or a prefix to create another table"
        )
    return table


def _twin(module: _Source, table: Table) -> StoredBag:
    if isinstance(module, nn.EmbeddingBag):
        assert module.mode in ("sum", "mean")
        twin = EmbeddingBag(
            module.num_embeddings,
            module.embedding_dim,
            norm_type=module.norm_type,
            mode=module.mode,
            sparse=module.sparse,
            include_last_offset=module.include_last_offset,
            padding_idx=module.padding_idx,
            table=table,
        )
    else:
        twin = Embedding(
            module.num_embeddings,
            module.embedding_dim,
            padding_idx=module.padding_idx,
            norm_type=module.norm_type,
            sparse=module.sparse,
            table=table,
        )
    twin.frozen = not module.weight.requires_grad
    twin.train(module.training)
    return twin


def _plain(module: StoredBag) -> _Source:
    assert module.num_embeddings is not None
    # The size limit of state dicts is passed as the full size: the caller asked for plain modules.
    rows = module.num_embeddings
    weight = read_weights(module.table, rows, "weight", 4 * rows * module.embedding_dim)
    if isinstance(module, EmbeddingBag):
        plain = nn.EmbeddingBag(
            rows,
            module.embedding_dim,
            norm_type=module.norm_type,
            mode=module.mode,
            sparse=module.sparse,
            _weight=weight,
            include_last_offset=module.include_last_offset,
            padding_idx=module.padding_idx,
        )
    else:
        assert isinstance(module, Embedding)
        plain = nn.Embedding(
            rows,
            module.embedding_dim,
            padding_idx=module.padding_idx,
            norm_type=module.norm_type,
            sparse=module.sparse,
            _weight=weight,
        )
    plain.weight.requires_grad_(not module.frozen)
    plain.train(module.training)
    return plain


def _replace(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
