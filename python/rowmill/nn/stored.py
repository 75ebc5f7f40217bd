"""Base classes of modules over stored tables, whose weights are in a store and are not parameters.

State dicts have the same entries as those of the torch modules, up to a size; save larger tables with
`Store.checkpoint`. `requires_grad_` of a module also freezes or unfreezes its stored rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from rowmill.errors import InvalidInput
from rowmill.size import format_size

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from rowmill.store.tables import Table

CHUNK_ROWS = 65_536
"""Rows per call when a whole table is read or written: some tens of MB at usual dims."""

_dense_only: ContextVar[bool] = ContextVar("rowmill_dense_only", default=False)


class StoredModule(nn.Module, ABC):
    """A module that reads and updates tables of a store.

    Attributes:
        frozen: True: forward never trains the rows. `requires_grad_` of this module or a parent module sets it.
        state_dict_bytes_max: Largest size in bytes of a table in a state dict; set it on a module or the class.
    """

    state_dict_bytes_max: int = 1 << 30

    def __init__(self) -> None:
        super().__init__()
        self.frozen = False

    @abstractmethod
    def stored_tables(self) -> dict[str, Table]:
        """The tables by the names of their weights in a state dict."""

    def check_trainable(self, path: str) -> None:
        """Raise if the module at this path was frozen when it was converted: its rows then have no optimizer."""
        for table in self.stored_tables().values():
            if table.lr == table.optimizer.lr == 0:
                raise InvalidInput(
                    f"{path}: the rows of table {table.name!r} have learning rate 0, because the module was frozen when "
                    "it was converted: call requires_grad_() before rowmill.convert, or set the `lr` of the table"
                )

    @property
    def trains_rows(self) -> bool:
        """Whether a forward now is a training get."""
        return self.training and not self.frozen and torch.is_grad_enabled()

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not _dense_only.get():
            for name, table in self.stored_tables().items():
                destination[prefix + name] = read_weights(
                    table, self.matrix_rows(table), prefix + name, self.state_dict_bytes_max
                )

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        tables = {prefix + name: table for name, table in self.stored_tables().items()}
        rest = {key: value for key, value in state_dict.items() if key not in tables}
        super()._load_from_state_dict(
            rest, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        for key, table in tables.items():
            if key not in state_dict:
                missing_keys.append(key)
                continue
            try:
                self.check_weights(state_dict[key])
                write_weights(table, state_dict[key], self.matrix_rows(table))
            except InvalidInput as error:
                error_msgs.append(f"{key}: {error}")

    def matrix_rows(self, table: Table) -> int | None:
        """Number of rows of a table in a state dict; None: the table has no matrix of weights."""
        return table.num_rows

    def check_weights(self, weights: Tensor) -> None:
        """Raise if loading these weights would not reproduce the torch module."""


class StoredBag(StoredModule):
    """A stored module over one table, named `weight` in state dicts."""

    def __init__(self, table: Table, num_embeddings: int | None, embedding_dim: int) -> None:
        super().__init__()
        if embedding_dim != table.dim:
            raise InvalidInput(
                f"embedding_dim must be {table.dim}, the dim of table {table.name!r}, got {embedding_dim}"
            )
        if table.num_rows is not None and num_embeddings != table.num_rows:
            raise InvalidInput(
                f"num_embeddings must be {table.num_rows}, the num_rows of table {table.name!r}, "
                f"got {num_embeddings}"
            )
        self.table = table
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim

    def stored_tables(self) -> dict[str, Table]:
        """The table, as `weight`."""
        return {"weight": self.table}

    def matrix_rows(self, table: Table) -> int | None:
        """Number of rows, as in the torch module."""
        return self.num_embeddings

    @property
    def weight(self) -> Tensor:
        """A copy of all weights, float32 `[num_embeddings, embedding_dim]`; changing it changes no row.

        Gradients cannot reach the rows through the copy: a backward pass through it raises `InvalidInput`.
        """
        if self.frozen or not torch.is_grad_enabled():
            return self._read_weight()
        weight = _WeightCopy.apply(torch.empty(0, requires_grad=True), self)
        assert isinstance(weight, Tensor)
        return weight

    def _read_weight(self) -> Tensor:
        return read_weights(self.table, self.num_embeddings, "weight", self.state_dict_bytes_max)


class _WeightCopy(torch.autograd.Function):
    """A copy of weights. Its backward raises, because no gradient of a copy reaches the rows."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, module: StoredBag) -> Tensor:
        ctx.table = module.table.name
        return module._read_weight()  # pyright: ignore[reportPrivateUsage]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise InvalidInput(
            f"the gradient of `weight` of table {ctx.table!r} cannot reach its rows, because `weight` is a copy. "
            "To regularise, use the vectors that the module returns for a batch. If another layer shares the weight, "
            "do not convert the module (rowmill.convert(..., skip=[path])). If you need no gradient, read `weight` "
            "under torch.no_grad()"
        )


def refuse_options(
    max_norm: float | None, scale_grad_by_freq: bool, dtype: torch.dtype | None, where: str
) -> None:
    """Raise for options of the torch modules that stored rows do not support."""
    if max_norm is not None:
        raise InvalidInput(
            f"{where}max_norm is not supported, because it changes rows on read: set max_norm=None"
        )
    if scale_grad_by_freq:
        raise InvalidInput(f"{where}scale_grad_by_freq is not supported: set it to False")
    if dtype not in (None, torch.float32):
        raise InvalidInput(
            f"{where}weights must be float32, got {dtype}; the storage type is the dtype of store.table(...)"
        )


def read_weights(table: Table, rows: int | None, name: str, bytes_max: int) -> Tensor:
    """Read the weights of ids in [0, rows); raise `InvalidInput` about `name` if they exceed `bytes_max`."""
    if rows is None:
        raise InvalidInput(
            f"{name}: table {table.name!r} of {table.store} takes any 64-bit id, so it has no matrix "
            "of weights; save it with store.checkpoint(), and the rest of the model with "
            "rowmill.nn.dense_state_dict(model)"
        )
    size = 4 * rows * table.dim
    if size > bytes_max:
        raise InvalidInput(
            f"{name}: the weights of table {table.name!r} take {format_size(size)}, more than "
            f"state_dict_bytes_max = {format_size(bytes_max)}; they are in {table.store}: save them "
            "with store.checkpoint(), and the rest of the model with "
            "rowmill.nn.dense_state_dict(model)"
        )
    out = torch.empty(rows, table.dim)
    for start in range(0, rows, CHUNK_ROWS):
        chunk = out[start : start + CHUNK_ROWS]
        table.get(torch.arange(start, start + len(chunk)), out=chunk)
    return out


def write_weights(table: Table, weights: Tensor, rows: int | None) -> None:
    """Put a matrix of weights into a table; raise unless it has `rows` rows (None: any number)."""
    rows = weights.shape[0] if rows is None else rows
    if tuple(weights.shape) != (rows, table.dim):
        raise InvalidInput(
            f"weights of table {table.name!r} must be [{rows}, {table.dim}], "
            f"got {list(weights.shape)}"
        )
    for start in range(0, rows, CHUNK_ROWS):
        chunk = weights[start : start + CHUNK_ROWS]
        table.put(torch.arange(start, start + len(chunk)), chunk)


def stored_modules(model: nn.Module) -> Iterator[tuple[str, StoredModule]]:
    """Yield every stored module of a model with its path."""
    for path, module in paths_of(model):
        if isinstance(module, StoredModule):
            yield path, module


_torch_requires_grad_ = nn.Module.requires_grad_


def _requires_grad_(self: nn.Module, requires_grad: bool = True) -> nn.Module:
    """`torch.nn.Module.requires_grad_`, extended to the rows of stored modules."""
    stored = list(stored_modules(self))
    if requires_grad:
        for path, module in stored:
            module.check_trainable(path or type(module).__name__)
    for _, module in stored:
        module.frozen = not requires_grad
    return _torch_requires_grad_(self, requires_grad)


# Rows are not parameters, and torch has no hook for requires_grad_: without this patch, a frozen model would still train
# its rows.
nn.Module.requires_grad_ = _requires_grad_


def paths_of(model: nn.Module, *, remove_duplicate: bool = True) -> Iterator[tuple[str, nn.Module]]:
    """`model.named_modules()`, typed."""
    yield from model.named_modules(remove_duplicate=remove_duplicate)


def tables_of(model: nn.Module) -> list[Table]:
    """The stored tables of a model, each once, in the order of its modules."""
    tables = (t for _, module in stored_modules(model) for t in module.stored_tables().values())
    return list(dict.fromkeys(tables))


def dense_state_dict(model: nn.Module) -> dict[str, Any]:
    """`model.state_dict()` without the stored weights, which the store's checkpoint holds."""
    with _dense_state():
        return model.state_dict()


def load_dense_state_dict(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load the result of `dense_state_dict`; raise `InvalidInput` if anything but stored weights is missing."""
    stored = {
        f"{path}.{name}".lstrip(".")
        for path, module in stored_modules(model)
        for name in module.stored_tables()
    }
    result = model.load_state_dict(state, strict=False)
    missing = sorted(set(cast("list[str]", result.missing_keys)) - stored)
    unexpected = cast("list[str]", result.unexpected_keys)
    if missing or unexpected:
        raise InvalidInput(
            f"the state does not match this model: missing {missing}, unexpected {unexpected}"
        )


@contextmanager
def _dense_state() -> Generator[None]:
    token = _dense_only.set(True)
    try:
        yield
    finally:
        _dense_only.reset(token)
