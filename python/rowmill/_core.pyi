from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import CapsuleType

from rowmill.store.access import Access

_Ids: TypeAlias = NDArray[np.int64]
_Floats: TypeAlias = NDArray[np.float32]
_Numbers: TypeAlias = NDArray[np.int32]
_AnyFloats: TypeAlias = NDArray[np.float32] | NDArray[np.int16]
"""float32, or the bits of bfloat16 as int16."""
OwnedArguments: TypeAlias = tuple[_Numbers, _Numbers, _Numbers, Sequence[int]]
"""`(unique_counts, inverse, counts, dims)`: distinct rows per category, the distinct row of each row of the message, and
the message's counts and dims."""
BagArguments: TypeAlias = tuple[
    _Numbers,
    Sequence[int],
    _Numbers,
    _Ids,
    _Floats | None,
    Sequence[tuple[int, int, bool]],
    int,
    int,
]
"""`(counts, dims, combined, offsets, weights, features, bags, stride)`: counts and dims of the message, each lookup's row in
it, bag offsets, factors of lookups, features, bags per feature, and floats per sample of the output. A feature is `(dim,
column, mean)`."""

__version__: str

def push_folder(path: str, url: str, keep: int) -> dict[str, Any]: ...
def checkpoints(url: str) -> list[dict[str, Any]]: ...
def restore(url: str, path: str, checkpoint: int | None) -> dict[str, Any]: ...
def remote_read(url: str, key: str) -> bytes | None: ...
def remote_write(url: str, key: str, content: bytes) -> None: ...
def remote_list(url: str, folder: str) -> list[tuple[str, int]]: ...
def remote_remove(url: str, keys: Sequence[str]) -> None: ...
def row_stride(dim: int, dtype: str, optimizer: dict[str, Any]) -> int: ...
def fsck(path: str, repair: bool) -> dict[str, Any]: ...
def versions(path: str) -> list[dict[str, Any]]: ...
def rollback(path: str, version: str) -> int: ...
def prepare_rollback(path: str, version: str) -> int: ...
def drop_version(path: str, version: str) -> None: ...
def settle(path: str, at: int) -> None: ...
def interact(
    dense: _AnyFloats,
    pooled: _AnyFloats,
    out: _AnyFloats,
    shape: tuple[int, int, int],
    threads: int,
) -> None: ...
def interact_backward(
    dense: _AnyFloats,
    pooled: _AnyFloats,
    gradient: _AnyFloats,
    dense_gradient: _AnyFloats,
    pooled_gradient: _AnyFloats,
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
def bag_sort(
    ids: _Ids,
    offsets: _Ids,
    features: Sequence[tuple[int, int | None, int | None]],
    ranks: int,
    sorted: _Ids,
    positions: _Numbers,
    lengths: _Numbers,
) -> int: ...
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
    owned: OwnedArguments,
    wire: _Floats,
) -> None: ...
def unpack_add(
    wire: _Floats,
    owned: OwnedArguments,
    rows: _Floats,
) -> None: ...
def recover(
    wire: _Floats,
    bags: BagArguments,
    out: _AnyFloats,
) -> None: ...
def recover_backward(
    gradients: _AnyFloats,
    bags: BagArguments,
    wire: _Floats,
) -> None: ...
def weights_backward(
    wire: _Floats,
    gradients: _Floats,
    bags: BagArguments,
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
        version: str | None,
        history: int,
        feed_bytes: int | None,
        feed_interval_s: float,
        feed_waiting: int,
        io: str,
        alter: Sequence[tuple[str, int | None, Mapping[str, Any] | None, Mapping[str, Any] | None]],
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
    def check_process(self) -> None: ...
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
        out: _AnyFloats,
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
    def checkpoint(
        self, attachments: Sequence[tuple[str, bytes]], version: dict[str, Any] | None = None
    ) -> dict[str, Any]: ...
    def prepare(
        self, attachments: Sequence[tuple[str, bytes]], version: dict[str, Any] | None = None
    ) -> dict[str, Any]: ...
    def versions(self) -> list[dict[str, Any]]: ...
    def kept_versions(self) -> list[tuple[int, str]]: ...
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
    def set_steps(self, steps: int) -> None: ...
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
class NodeRows:
    @staticmethod
    def open(
        url: str,
        *,
        access: Access,
        wait_s: float,
    ) -> NodeRows: ...
    @property
    def url(self) -> str: ...
    def tables(self) -> list[dict[str, Any]]: ...
    def lookup(
        self,
        tables: Sequence[str],
        ids: _Ids,
        offsets: _Ids,
        weights: _Floats | None,
        features: Sequence[int],
        bags: int,
        paddings: Sequence[int | None],
        means: Sequence[bool],
        out: _AnyFloats,
        row_stride: int,
    ) -> None: ...
    def rows_of(
        self, tables: Sequence[str], ids: _Ids, counts: Sequence[int], out: _Floats
    ) -> None: ...
    def close(self) -> None: ...

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
        self,
        store: Store,
        rank: int,
        ranks: int,
        counters: bool,
        keepers: Mapping[str, tuple[str, int]],
    ) -> int: ...
    def attachment(self, name: str) -> bytes | None: ...

@final
class ChangedRows:
    def __iter__(self) -> ChangedRows: ...
    def __next__(self) -> tuple[str, bytearray, bytearray, int, int, bytearray]: ...

@final
class FolderLock:
    @staticmethod
    def take(path: str) -> FolderLock: ...
    def release(self) -> None: ...

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

_Handed: TypeAlias = tuple[WireBytes, str, list[int]]

def loadtest(
    url: str,
    model: str,
    requests: Path,
    *,
    senders: int | None,
    rate: float | None,
    trace: Path | None,
    speed: float,
    seconds: float | None,
    warm_up_s: float,
    slo_s: float,
    seed: int,
    connections: int,
    check: float | None,
) -> str: ...
def start_serving_logs(level: str) -> None: ...

@final
class WireBytes:
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Program:
    closed: bool
    def take(self, number: int, wait_s: float) -> Batch | None: ...

@final
class Batch:
    def __len__(self) -> int: ...
    def requests(self) -> list[list[CapsuleType]]: ...
    def joined(self) -> list[CapsuleType]: ...
    def reply_joined(self, outputs: Sequence[CapsuleType], cpu_s: float) -> None: ...
    def reply(self, answers: Sequence[Sequence[CapsuleType] | str], cpu_s: float) -> None: ...
    def fail(self, reason: str) -> None: ...

@final
class Worker:
    def __init__(
        self,
        *,
        network_threads: int,
        lookup_threads: int,
        wire_memory: int,
        request_max: int,
        slo_s: float,
        batch_requests: int,
        batch_rows: int,
        queue_requests: int,
        batches: int,
        share_cores: bool,
    ) -> None: ...
    def add_model(
        self,
        name: str,
        folder: Path,
        program: int,
        rows: Store | NodeRows | None,
        dense: str | None,
    ) -> list[tuple[str, Program]]: ...
    def add_dense(self, name: str, folder: Path, program: int) -> Program | None: ...
    def listen_http(self, address: str, insecure: bool) -> str: ...
    def listen_grpc(self, address: str, insecure: bool) -> str: ...
    def listen_metrics(self, address: str, insecure: bool) -> str: ...
    def listen_dense(self, address: str, insecure: bool) -> str: ...
    def ask(
        self, name: str, inputs: Sequence[tuple[Any, str, Sequence[int]]], wait_s: float
    ) -> list[_Handed]: ...
    def arena(self) -> tuple[int, int]: ...
    def tell(self, name: str, half: str, how: str) -> None: ...
    def set_ready(self) -> None: ...
    def stop(self) -> None: ...
    def run(self, drain_s: float) -> None: ...

@final
class StorageNode:
    urls: list[str]
    metrics: str
    def __init__(self, config: Path) -> None: ...
    def run(self) -> None: ...

def storage_fill(
    sources: Sequence[tuple[Path, int | None]],
    replicated: Sequence[str],
    url: str,
    *,
    dtype_name: str | None,
    access: Access,
) -> tuple[int, int, int, int]: ...
def storage_status(
    url: str, *, access: Access
) -> tuple[list[tuple[str, int, str, int | None]], int]: ...

@final
class StorageFollower:
    def __init__(
        self,
        store: Path,
        url: str,
        *,
        dtype_name: str | None,
        access: Access,
    ) -> None: ...
    def run(self, seconds: float) -> tuple[int, int, int, int, int, bool]: ...
