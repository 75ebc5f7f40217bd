from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

_Ids: TypeAlias = NDArray[np.int64]
_Floats: TypeAlias = NDArray[np.float32]
_Numbers: TypeAlias = NDArray[np.int32]

__version__: str

def push_folder(path: str, url: str, keep: int) -> dict[str, Any]: ...
def checkpoints(url: str) -> list[dict[str, Any]]: ...
def restore(url: str, path: str, checkpoint: int | None) -> dict[str, Any]: ...
def row_stride(dim: int, dtype: str, optimizer: dict[str, Any]) -> int: ...
def fsck(path: str, repair: bool) -> dict[str, Any]: ...
def interact(
    dense: _Floats,
    pooled: _Floats,
    out: _Floats,
    shape: tuple[int, int, int],
    threads: int,
) -> None: ...
def interact_backward(
    dense: _Floats,
    pooled: _Floats,
    gradient: _Floats,
    dense_gradient: _Floats,
    pooled_gradient: _Floats,
    shape: tuple[int, int, int],
    threads: int,
) -> None: ...
def split_sgd(
    upper: NDArray[np.int16],
    lower: NDArray[np.int16],
    gradient: NDArray[np.int16],
    lr: float,
    threads: int,
) -> None: ...
def check_graph(indptr: _Ids, indices: NDArray[Any]) -> None: ...
def sample_neighbours(
    indptr: _Ids,
    indices: NDArray[Any],
    seeds: _Ids,
    fanouts: list[int],
    replace: bool,
    seed: int,
    batch: int,
) -> tuple[bytearray, list[tuple[bytearray, bytearray, int]]]: ...
def segment_unique(
    ids: _Ids,
    offsets: Sequence[int],
    paddings: Sequence[int | None],
    unique: _Ids,
    counts: _Numbers,
    inverse: _Numbers,
    threads: int,
) -> int: ...
def rank_sort(
    unique: _Ids,
    unique_counts: _Numbers,
    categories: Sequence[int],
    ranks: int,
    sorted: _Ids,
    positions: _Numbers,
    counts: _Numbers,
) -> None: ...
def owner_unique(
    received: _Ids,
    counts: _Numbers,
    unique: _Ids,
    unique_counts: _Numbers,
    inverse: _Numbers,
    threads: int,
) -> int: ...
def combine(inverse: _Numbers, positions: _Numbers, combined: _Numbers) -> None: ...
def pack(
    rows: _Floats,
    unique_counts: _Numbers,
    inverse: _Numbers,
    counts: _Numbers,
    dims: Sequence[int],
    wire: _Floats,
) -> None: ...
def unpack_add(
    wire: _Floats,
    unique_counts: _Numbers,
    inverse: _Numbers,
    counts: _Numbers,
    dims: Sequence[int],
    rows: _Floats,
) -> None: ...
def recover(
    wire: _Floats,
    counts: _Numbers,
    dims: Sequence[int],
    combined: _Numbers,
    offsets: _Ids,
    weights: _Floats | None,
    features: Sequence[tuple[int, int, bool]],
    bags: int,
    stride: int,
    out: _Floats,
) -> None: ...
def recover_backward(
    gradients: _Floats,
    counts: _Numbers,
    dims: Sequence[int],
    combined: _Numbers,
    offsets: _Ids,
    weights: _Floats | None,
    features: Sequence[tuple[int, int, bool]],
    bags: int,
    stride: int,
    wire: _Floats,
) -> None: ...
def weights_backward(
    wire: _Floats,
    gradients: _Floats,
    counts: _Numbers,
    dims: Sequence[int],
    combined: _Numbers,
    offsets: _Ids,
    weights: _Floats | None,
    features: Sequence[tuple[int, int, bool]],
    bags: int,
    stride: int,
    factors: _Floats,
) -> None: ...

@final
class Store:
    @staticmethod
    def open(
        path: str,
        *,
        memory: int,
        row_memory: int | None,
        threads: int,
        seed: int,
        wait_deadline_s: float,
        create: bool,
        read_only: bool,
        at: int | None,
        history: int,
        feed_bytes: int | None,
        feed_interval_s: float,
        feed_waiting: int,
        io: str,
    ) -> Store: ...
    @property
    def seed(self) -> int: ...
    @property
    def read_only(self) -> bool: ...
    @property
    def event_time(self) -> int | None: ...
    def table(
        self,
        name: str,
        *,
        dim: int,
        dtype: str,
        optimizer: dict[str, Any],
        initializer: dict[str, Any],
        staleness_bound: int | None,
        dense_rows: int | None,
        eviction: dict[str, Any] | None,
        admission: dict[str, int] | None,
    ) -> Table: ...
    def open_table(self, name: str) -> Table: ...
    def table_names(self) -> list[str]: ...
    def ticket(self, event_time: int | None) -> Ticket: ...
    def lookup(
        self,
        tables: Sequence[Table],
        ids: _Ids,
        offsets: _Ids,
        weights: _Floats | None,
        features: Sequence[int],
        bags: int,
        paddings: Sequence[int | None],
        means: Sequence[bool],
        out: _Floats,
        row_stride: int,
        ticket: Ticket | None,
        training: bool,
    ) -> Lookup | None: ...
    def lookup_rows(
        self,
        tables: Sequence[Table],
        ids: _Ids,
        counts: Sequence[int],
        times: _Numbers,
        out: _Floats,
        ticket: Ticket | None,
        training: bool,
    ) -> Lookup | None: ...
    def apply(
        self,
        lookup: Lookup,
        gradients: _Floats,
        row_stride: int,
        rates: Sequence[float],
        ticket: Ticket | None,
    ) -> None: ...
    def row_gradients(
        self, lookup: Lookup, gradients: _Floats, row_stride: int
    ) -> list[tuple[bytearray, bytearray]]: ...
    def lookahead(
        self, tables: Sequence[Table], ids: Sequence[_Ids], into: str, steps: int
    ) -> bool: ...
    def lookahead_pending(self) -> int: ...
    def checkpoint(self, attachments: Sequence[tuple[str, bytes]]) -> dict[str, Any]: ...
    def prepare(self, attachments: Sequence[tuple[str, bytes]]) -> dict[str, Any]: ...
    def commit(self) -> dict[str, Any]: ...
    def push(self, url: str, keep: int) -> dict[str, Any]: ...
    def changes(self, since: int) -> Changes: ...
    def publish(self) -> int: ...
    def attachment_names(self) -> list[str]: ...
    def attachment(self, name: str) -> bytes | None: ...
    def stats(self) -> dict[str, Any]: ...
    def metrics(self) -> str: ...
    def close(self) -> None: ...

@final
class Table:
    @property
    def name(self) -> str: ...
    @property
    def dim(self) -> int: ...
    @property
    def dtype(self) -> Literal["fp32", "bf16", "split-bf16"]: ...
    @property
    def dense_rows(self) -> int | None: ...
    @property
    def staleness_bound(self) -> int | None: ...
    @property
    def group(self) -> int: ...
    @property
    def category(self) -> int: ...
    @property
    def optimizer(self) -> dict[str, Any]: ...
    @property
    def initializer(self) -> dict[str, Any]: ...
    @property
    def eviction(self) -> dict[str, Any] | None: ...
    @property
    def admission(self) -> dict[str, int] | None: ...
    @property
    def state_floats(self) -> int: ...
    @property
    def row_bytes(self) -> int: ...
    @property
    def steps(self) -> int: ...
    def len(self) -> int: ...
    def scan(self, batch: int) -> Scan: ...
    def hottest(self, count: int) -> list[tuple[int, int]]: ...
    def contains(self, ids: _Ids) -> bytearray: ...
    def get(self, ids: _Ids, out: _Floats, ticket: Ticket | None) -> None: ...
    def get_or_init(self, ids: _Ids, out: _Floats, ticket: Ticket | None) -> None: ...
    def get_later(self, ids: _Ids, ticket: Ticket) -> QueuedGet: ...
    def put(self, ids: _Ids, values: _Floats, ticket: Ticket | None) -> None: ...
    def rmw(self, ids: _Ids, gradients: _Floats, lr: float, ticket: Ticket | None) -> None: ...
    def delete(self, ids: _Ids) -> int: ...
    def evict(self) -> bytearray: ...
    def set_scores(self, ids: _Ids, scores: _Floats) -> None: ...
    def get_state(self, ids: _Ids, out: _Floats) -> None: ...
    def put_state(self, ids: _Ids, state: _Floats) -> None: ...

@final
class QueuedGet:
    def is_ready(self) -> bool: ...
    def wait(self) -> bytearray: ...

@final
class Ticket:
    def release(self) -> None: ...

@final
class Lookup: ...

@final
class Changes:
    @staticmethod
    def open(path: str, since: int, at: int | None = None) -> Changes: ...
    @property
    def since(self) -> int: ...
    @property
    def until(self) -> int: ...
    def tables(self) -> list[dict[str, Any]]: ...
    def rows(self, batch: int) -> ChangedRows: ...
    def replay(self, store: Store) -> tuple[int, int]: ...
    def replay_share(
        self, store: Store, rank: int, ranks: int, counters: bool, owners: Mapping[str, int]
    ) -> int: ...
    def attachment(self, name: str) -> bytes | None: ...

@final
class ChangedRows:
    def __iter__(self) -> ChangedRows: ...
    def __next__(self) -> tuple[str, bytearray, bytearray, int, int, bytearray]: ...

@final
class FeedReader:
    @staticmethod
    def open(path: str, since: int) -> FeedReader: ...
    @staticmethod
    def at_checkpoint(path: str, epoch: int) -> FeedReader: ...
    @property
    def position(self) -> int: ...
    def poll(self) -> dict[str, Any] | None: ...

@final
class Scan:
    def __iter__(self) -> Scan: ...
    def __next__(self) -> tuple[bytearray, bytearray]: ...
