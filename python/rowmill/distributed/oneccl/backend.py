"""oneCCL as a backend of torch.distributed, for tensors on the CPU.

Collectives run one after the other on a thread of their group (`shim.cpp`), so all of them are asynchronous, and a
work that fails or is late raises where it is waited for. What torch asks of a backend and oneCCL has no counterpart for
(point to point, gather and scatter to one rank) is not there: torch says so.
"""

from __future__ import annotations

import ctypes
import os
import queue
import threading
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from rowmill.distributed.oneccl import library

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ENVIRONMENT = {
    # Ranks are told who they are by torch, not by a launcher of MPI.
    "CCL_PROCESS_LAUNCHER": "none",
    "CCL_ATL_TRANSPORT": "ofi",
    "FI_PROVIDER": "tcp",
    # Threads that wait let others run, which on shared cores is 70 us for a small collective instead of milliseconds.
    "CCL_YIELD": "sched_yield",
    # Else it warns of each of these.
    "CCL_LOG_LEVEL": "error",
}
"""Settings of oneCCL that hold unless the environment has others."""

_TYPES = {
    torch.int8: 0,
    torch.uint8: 1,
    # To be moved; a reduction of it is refused.
    torch.bool: 1,
    torch.int16: 2,
    torch.int32: 4,
    torch.int64: 6,
    torch.float16: 8,
    torch.float32: 9,
    torch.float64: 10,
    torch.bfloat16: 11,
}
"""As `ccl::datatype`."""

_REDUCTIONS = {
    dist.ReduceOp.SUM: 0,
    # A sum that is divided.
    dist.ReduceOp.AVG: 0,
    dist.ReduceOp.PRODUCT: 1,
    dist.ReduceOp.MIN: 2,
    dist.ReduceOp.MAX: 3,
}
"""As `ccl::reduction`."""

_Item = TypeVar("_Item")

_abandoned: list[Work] = []
"""Works that had not ended when their group was left: what they may still write to must stay."""


class Work(dist.Work):
    """A collective that was begun.

    What torch's own `is_completed` and `is_success` say of a work that Python made is nothing: wait for it.
    """

    def __init__(
        self,
        backend: Backend,
        handle: int,
        what: str,
        timeout: timedelta,
        outputs: Sequence[Tensor] = (),
        *,
        memory: Sequence[Tensor] = (),
        finish: Callable[[], object] | None = None,
    ) -> None:
        super().__init__()
        self._shim = backend.shim
        self._handle = handle
        self._name = f"oneccl: {what} of {backend}"
        self._timeout = timeout
        self._outputs = list(outputs)
        self._memory = memory
        """What the collective reads and writes beside its outputs."""
        self._watcher = backend.watcher
        self._finish = finish
        self._finishing = threading.Lock()

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """Wait for the end, as long as the collective was given, or `timeout`.

        Raises:
            torch.distributed.DistBackendError: It failed, or has not ended by then.
        """
        limit = (timeout or self._timeout).total_seconds()
        self._settle(self._shim.rowmill_oneccl_wait(self._handle, limit), limit)
        return True

    def _settle(self, ended: int, limit: float) -> None:
        """What the shim said after so many seconds, as an error or as outputs."""
        if ended < 0:
            why = self._shim.rowmill_oneccl_error(self._handle).decode(errors="replace")
            raise dist.DistBackendError(f"{self._name} failed: {why}")
        if ended == 0:
            raise dist.DistBackendError(
                f"{self._name} has not ended in {limit:g} s: another rank is late, gone, or in another collective"
            )
        with self._finishing:
            if self._finish is not None:
                self._finish()
                self._finish = None

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """Its outputs, or what `wait` raises."""
        ended: torch.futures.Future[None] = torch.futures.Future()
        # An exception set on a future of Python is a value to torch's C++; one raised in `then` is an error.
        outputs = ended.then(self._outcome)
        self._watcher.watch(self, ended)
        return outputs

    def then(self, outputs: Sequence[Tensor], finish: Callable[[], object]) -> None:
        """Make others the outputs: `finish` fills them at the end. Nobody waits yet."""
        self._memory = [*self._memory, *self._outputs]
        self._outputs, self._finish = list(outputs), finish

    def result(self) -> list[Tensor]:
        """Its outputs, which are there when it has ended."""
        return self._outputs

    def ended(self, seconds: float = 0.0) -> bool:
        """Whether it has ended within that time, well or not."""
        return self._shim.rowmill_oneccl_wait(self._handle, seconds) != 0

    def last(self) -> None:
        """Wait for the end as long as the collective was given, however it ends."""
        self.ended(self._timeout.total_seconds())

    def _outcome(self, _: object) -> list[Tensor]:
        # The watcher has waited already.
        now = self._shim.rowmill_oneccl_wait(self._handle, 0.0)
        self._settle(now, self._timeout.total_seconds())
        return self._outputs

    def __del__(self) -> None:
        self._shim.rowmill_oneccl_release(self._handle)


class Watcher:
    """A thread that completes the futures of works, in the order of the works, which is that of their ends."""

    def __init__(self) -> None:
        self._watched: queue.SimpleQueue[tuple[Work, torch.futures.Future[None]] | None] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._run, name="oneccl futures", daemon=True).start()

    def watch(self, work: Work, ended: torch.futures.Future[None]) -> None:
        """Complete `ended` when the work ends or its time is over."""
        self._watched.put((work, ended))

    def close(self) -> None:
        """End the thread when all it watches has ended."""
        self._watched.put(None)

    def _run(self) -> None:
        while (watched := self._watched.get()) is not None:
            work, ended = watched
            work.last()
            ended.set_result(None)


class Backend(c10d.Backend):
    """One group of ranks over oneCCL.

    Args:
        store: What the ranks of this group share, and nobody else: there they learn where the first one is.
        rank: Of this one in the group.
        size: Ranks of the group.
        timeout: How long to wait for the others, and for a collective that says nothing else.

    Raises:
        BackendMissing: oneCCL is not installed.
        torch.distributed.DistBackendError: Not all ranks came in time.
    """

    def __init__(self, store: c10d.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        _configure(rank, size)
        self.shim = library.load()
        self.watcher = Watcher()
        self._default = timeout
        self._begun: deque[Work] = deque()
        """Works whose memory must stay, in their order."""
        # Where there is nothing to point to, pointers must not be null.
        self._nothing = torch.empty(16, dtype=torch.uint8)
        address = ctypes.create_string_buffer(library.ADDRESS_BYTES)
        offer = ctypes.c_void_p()
        if rank == 0:
            error = self.shim.rowmill_oneccl_offer(address, ctypes.byref(offer))
            # The others wait for a word, and get it at once.
            store.set("oneccl", "" if error else address.raw.hex())
            if error:
                raise dist.DistBackendError(f"oneccl: {error.decode(errors='replace')}")
        else:
            found = store.get("oneccl")
            if not found:
                raise dist.DistBackendError("oneccl: rank 0 could not begin, and says why")
            address.raw = bytes.fromhex(found.decode())
        self._group = ctypes.c_void_p(self.shim.rowmill_oneccl_open(offer, address, rank, size))
        connecting = self.shim.rowmill_oneccl_connecting(self._group)
        Work(self, connecting, "connect", timeout).wait()

    def __str__(self) -> str:
        return f"rank {self.rank()} of {self.size()}"

    def getBackendName(self) -> str:
        """Its name among the backends."""
        return "oneccl"

    def set_timeout(self, timeout: timedelta) -> None:
        """How long collectives wait from now on that say nothing else."""
        self._default = timeout

    def shutdown(self) -> None:
        """Leave the group when what was begun has ended, and after some seconds if it does not."""
        if self._group:
            self.watcher.close()
            self.shim.rowmill_oneccl_close(self._group)
            self._group = ctypes.c_void_p()
        _abandoned.extend(work for work in self._begun if not work.ended())
        self._begun.clear()

    abort = shutdown

    # Collectives.

    def allreduce(self, tensors: list[Tensor], opts: c10d.AllreduceOptions) -> Work:
        """Every rank's tensor becomes the reduction of all of them."""
        tensor = _one(tensors)
        reduction, finish = self._reduction(opts.reduceOp, tensor)
        return self._begin(
            "allreduce",
            opts,
            (self._at(tensor), *_typed(tensor), reduction),
            [tensor],
            finish=finish,
        )

    def broadcast(self, tensors: list[Tensor], opts: c10d.BroadcastOptions) -> Work:
        """Every rank's tensor becomes that of one rank."""
        tensor = _one(tensors)
        arguments = (self._at(tensor), *_typed(tensor), opts.rootRank)
        return self._begin("broadcast", opts, arguments, [tensor])

    def all_gather_single(
        self, output: Tensor, tensor: Tensor, opts: c10d.AllgatherOptions
    ) -> Work:
        """`output` becomes the tensors of all ranks, one behind the other."""
        _check_sizes("output", output, self.size() * tensor.numel(), tensor)
        count, kind = _typed(tensor)
        arguments = (self._at(tensor), count, self._at(output), kind)
        return self._begin("allgather", opts, arguments, [output], memory=[tensor])

    def allgather(
        self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: c10d.AllgatherOptions
    ) -> Work:
        """Each of the outputs becomes the tensor of one rank."""
        tensor, parts = _one(tensors), _one(outputs)
        self._check_parts("outputs", parts, tensor)
        whole = tensor.new_empty(self.size() * tensor.numel())
        work = self.all_gather_single(whole, tensor, opts)

        def finish() -> None:
            for part, found in zip(parts, whole.chunk(self.size()), strict=True):
                part.copy_(found.view_as(part))

        work.then(parts, finish)
        return work

    def reduce_scatter_single(
        self, output: Tensor, tensor: Tensor, opts: c10d.ReduceScatterOptions
    ) -> Work:
        """`output` becomes this rank's part of the reduction of all tensors."""
        _check_sizes("input", tensor, self.size() * output.numel(), output)
        reduction, finish = self._reduction(opts.reduceOp, output)
        arguments = (self._at(tensor), self._at(output), *_typed(output), reduction)
        return self._begin(
            "reduce_scatter", opts, arguments, [output], memory=[tensor], finish=finish
        )

    def reduce_scatter(
        self, outputs: list[Tensor], tensors: list[list[Tensor]], opts: c10d.ReduceScatterOptions
    ) -> Work:
        """`outputs` holds one tensor, which becomes the reduction of what all ranks have for this one."""
        output, parts = _one(outputs), _one(tensors)
        self._check_parts("inputs", parts, output)
        whole = torch.cat([part.reshape(-1) for part in parts])
        return self.reduce_scatter_single(output, whole, opts)

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: c10d.AllToAllOptions,
    ) -> Work:
        """Of each rank's tensor, every rank gets a part: so many rows, or as many as any other."""
        if output.dtype != tensor.dtype:
            raise ValueError(f"oneccl: output is of {output.dtype}, input of {tensor.dtype}")
        counts = [
            self._counts("output", output, output_splits),
            self._counts("input", tensor, input_splits),
        ]
        _, kind = _typed(tensor)
        pointers = self._at(tensor), self._at(output)
        arguments = (self.size(), pointers[0], counts[1], pointers[1], counts[0], kind)
        return self._begin("all_to_all", opts, arguments, [output], memory=[tensor])

    def barrier(self, opts: c10d.BarrierOptions) -> Work:
        """Ends when all ranks have begun theirs."""
        return self._begin("barrier", opts, ())

    # What torch called them before.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single

    def _begin(
        self,
        operation: str,
        opts: Any,
        arguments: Sequence[Any],
        outputs: Sequence[Tensor] = (),
        *,
        memory: Sequence[Tensor] = (),
        finish: Callable[[], object] | None = None,
    ) -> Work:
        if not self._group:
            raise dist.DistBackendError(f"oneccl: {self} has left its group")
        timeout = opts.timeout if opts.timeout > timedelta() else self._default
        handle = getattr(self.shim, f"rowmill_oneccl_{operation}")(self._group, *arguments)
        work = Work(self, handle, operation, timeout, outputs, memory=memory, finish=finish)
        while self._begun and self._begun[0].ended():
            self._begun.popleft()
        self._begun.append(work)
        return work

    def _reduction(
        self, operation: dist.ReduceOp | dist.ReduceOp.RedOpType, tensor: Tensor
    ) -> tuple[int, Callable[[], object] | None]:
        """The number of a reduction for oneCCL, and what is left to do afterwards."""
        known: Any = getattr(operation, "op", operation)
        if known not in _REDUCTIONS or tensor.dtype == torch.bool:
            raise ValueError(
                f"oneccl reduces numbers by sum, average, product, min or max, got {known} of {tensor.dtype}"
            )
        average = known == dist.ReduceOp.AVG
        return _REDUCTIONS[known], (lambda: tensor.div_(self.size())) if average else None

    def _check_parts(self, name: str, parts: Sequence[Tensor], like: Tensor) -> None:
        if len(parts) != self.size():
            raise ValueError(f"oneccl: {name} must be {self.size()} tensors, got {len(parts)}")
        for part in parts:
            _check_sizes(name, part, like.numel(), like)

    def _counts(self, name: str, tensor: Tensor, splits: Sequence[int]) -> Any:
        """How many elements go to or come from each rank."""
        rows, size = tensor.shape[0] if tensor.dim() else 1, self.size()
        if not splits:
            if rows % size:
                raise ValueError(
                    f"oneccl: {name} has {rows} rows, which {size} ranks do not divide"
                )
            splits = [rows // size] * size
        if len(splits) != size or sum(splits) != rows or min(splits) < 0:
            raise ValueError(
                f"oneccl: splits of {name} must be {size} counts that sum up to its {rows} rows, got {list(splits)}"
            )
        width = tensor.numel() // max(rows, 1)
        return (ctypes.c_uint64 * size)(*(rows * width for rows in splits))

    def _at(self, tensor: Tensor) -> int:
        return tensor.data_ptr() or self._nothing.data_ptr()


def calls() -> dict[str, int]:
    """How many collectives libccl has run in this process, by name."""
    if not library.load.cache_info().currsize:
        return dict.fromkeys(library.OPERATIONS, 0)
    count = library.load().rowmill_oneccl_calls
    return {name: count(number) for number, name in enumerate(library.OPERATIONS)}


def _configure(rank: int, size: int) -> None:
    """Settings that oneCCL reads when it is loaded."""
    local = {
        # torchrun says which of the machine's ranks this is; else all of them are taken to be on this machine.
        "CCL_LOCAL_RANK": os.environ.get("LOCAL_RANK", str(rank)),
        "CCL_LOCAL_SIZE": os.environ.get("LOCAL_WORLD_SIZE", str(size)),
    }
    for name, value in {**ENVIRONMENT, **local}.items():
        os.environ.setdefault(name, value)


def _one(items: Sequence[_Item]) -> _Item:
    if len(items) != 1:
        raise ValueError(f"oneccl takes one tensor per rank, got {len(items)}")
    return items[0]


def _typed(tensor: Tensor) -> tuple[int, int]:
    """Elements of a tensor and oneCCL's number of their type."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.dtype not in _TYPES:
        raise ValueError(
            "oneccl takes contiguous tensors on the CPU, of integers, float16, bfloat16, float32 or float64: got "
            f"{tensor.dtype} on {tensor.device}, {'' if tensor.is_contiguous() else 'not '}contiguous"
        )
    return tensor.numel(), _TYPES[tensor.dtype]


def _check_sizes(name: str, tensor: Tensor, count: int, like: Tensor) -> None:
    if tensor.numel() != count or tensor.dtype != like.dtype or not tensor.is_contiguous():
        raise ValueError(
            f"oneccl: {name} must be {count} contiguous elements of {like.dtype}, got {list(tensor.shape)} of {tensor.dtype}"
        )
