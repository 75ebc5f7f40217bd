"""oneCCL as a backend of torch.distributed, for tensors on the CPU.

Collectives run in order on a thread of their group (`shim.cpp`). All are therefore asynchronous, and a collective that fails
or is late raises in `Work.wait`. Point-to-point messages, and gather and scatter to one rank, are not implemented, because
oneCCL lacks them; torch raises for them.
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
    # torch, not an MPI launcher, assigns ranks.
    "CCL_PROCESS_LAUNCHER": "none",
    "CCL_ATL_TRANSPORT": "ofi",
    "FI_PROVIDER": "tcp",
    # Waiting threads yield. On shared cores a small collective then takes 70 us instead of milliseconds.
    "CCL_YIELD": "sched_yield",
    # At the default level oneCCL warns about each of these settings.
    "CCL_LOG_LEVEL": "error",
}
"""Settings of oneCCL for variables that the environment does not set."""

_TYPES = {
    torch.int8: 0,
    torch.uint8: 1,
    # For moves only; reductions of bool are refused.
    torch.bool: 1,
    torch.int16: 2,
    torch.int32: 4,
    torch.int64: 6,
    torch.float16: 8,
    torch.float32: 9,
    torch.float64: 10,
    torch.bfloat16: 11,
}
"""Values of `ccl::datatype`."""

_REDUCTIONS = {
    dist.ReduceOp.SUM: 0,
    # Computed as a sum and then divided.
    dist.ReduceOp.AVG: 0,
    dist.ReduceOp.PRODUCT: 1,
    dist.ReduceOp.MIN: 2,
    dist.ReduceOp.MAX: 3,
}
"""Values of `ccl::reduction`."""

_Item = TypeVar("_Item")

_abandoned: list[Work] = []
"""Works that had not ended when their group was closed. They keep the memory alive that oneCCL may still write to."""


class Work(dist.Work):
    """A started collective.

    Use `wait`: torch's `is_completed` and `is_success` are meaningless for a `Work` created in Python.
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
        """Tensors besides the outputs that the collective reads or writes; kept alive until its end."""
        self._watcher = backend.watcher
        self._finish = finish
        self._finishing = threading.Lock()

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """Wait for the end, at most `timeout`, or if zero the collective's timeout.

        Raises:
            torch.distributed.DistBackendError: The collective failed, or did not end in time.
        """
        limit = (timeout or self._timeout).total_seconds()
        self._settle(self._shim.rowmill_oneccl_wait(self._handle, limit), limit)
        return True

    def _settle(self, ended: int, limit: float) -> None:
        """Raise if the shim reports an error or a timeout after `limit` seconds; else finish the outputs."""
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
        """A future of the outputs, or of the error that `wait` raises."""
        ended: torch.futures.Future[None] = torch.futures.Future()
        # torch's C++ treats an exception set on a Python future as a value; an exception raised in `then` is an error.
        outputs = ended.then(self._outcome)
        self._watcher.watch(self, ended)
        return outputs

    def then(self, outputs: Sequence[Tensor], finish: Callable[[], object]) -> None:
        """Replace the outputs; `finish` fills the new ones at the end. Call it before any wait."""
        self._memory = [*self._memory, *self._outputs]
        self._outputs, self._finish = list(outputs), finish

    def result(self) -> list[Tensor]:
        """The outputs; valid after the end."""
        return self._outputs

    def ended(self, seconds: float = 0.0) -> bool:
        """Wait at most `seconds`; return whether the collective has ended, successfully or not."""
        return self._shim.rowmill_oneccl_wait(self._handle, seconds) != 0

    def last(self) -> None:
        """Wait for the end, successful or not, at most the collective's timeout."""
        self.ended(self._timeout.total_seconds())

    def _outcome(self, _: object) -> list[Tensor]:
        # No wait: the watcher has already waited.
        now = self._shim.rowmill_oneccl_wait(self._handle, 0.0)
        self._settle(now, self._timeout.total_seconds())
        return self._outputs

    def __del__(self) -> None:
        self._shim.rowmill_oneccl_release(self._handle)


class Watcher:
    """A thread that completes the futures of works in the order of their start, in which they also end."""

    def __init__(self) -> None:
        self._watched: queue.SimpleQueue[tuple[Work, torch.futures.Future[None]] | None] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._run, name="oneccl futures", daemon=True).start()

    def watch(self, work: Work, ended: torch.futures.Future[None]) -> None:
        """Complete `ended` when the work ends or times out."""
        self._watched.put((work, ended))

    def close(self) -> None:
        """End the thread after all watched works have ended."""
        self._watched.put(None)

    def _run(self) -> None:
        while (watched := self._watched.get()) is not None:
            work, ended = watched
            work.last()
            ended.set_result(None)


class Backend(c10d.Backend):
    """One group of ranks over oneCCL.

    Args:
        store: Key-value store of this group only, through which ranks learn the address of rank 0.
        rank: This rank within the group.
        size: Number of ranks in the group.
        timeout: Timeout for connecting, and default timeout of collectives.

    Raises:
        BackendMissing: oneCCL is not installed.
        torch.distributed.DistBackendError: Not all ranks connected in time.
    """

    def __init__(self, store: c10d.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        _configure(rank, size)
        self.shim = library.load()
        self.watcher = Watcher()
        self._default = timeout
        self._begun: deque[Work] = deque()
        """Started works, in order, whose memory must stay alive."""
        # Stands in for empty tensors, because oneCCL takes no null pointers.
        self._nothing = torch.empty(16, dtype=torch.uint8)
        address = ctypes.create_string_buffer(library.ADDRESS_BYTES)
        offer = ctypes.c_void_p()
        if rank == 0:
            error = self.shim.rowmill_oneccl_offer(address, ctypes.byref(offer))
            # Other ranks wait for this key, so it is also set on an error.
            store.set("oneccl", "" if error else address.raw.hex())
            if error:
                raise dist.DistBackendError(f"oneccl: {error.decode(errors='replace')}")
        else:
            found = store.get("oneccl")
            if not found:
                raise dist.DistBackendError(
                    "oneccl: rank 0 failed to start; see the error of rank 0"
                )
            address.raw = bytes.fromhex(found.decode())
        self._group = ctypes.c_void_p(self.shim.rowmill_oneccl_open(offer, address, rank, size))
        connecting = self.shim.rowmill_oneccl_connecting(self._group)
        Work(self, connecting, "connect", timeout).wait()

    def __str__(self) -> str:
        return f"rank {self.rank()} of {self.size()}"

    def getBackendName(self) -> str:
        """The backend's name."""
        return "oneccl"

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the default timeout of collectives."""
        self._default = timeout

    def shutdown(self) -> None:
        """Close the group after all started collectives have ended, or after some seconds."""
        if self._group:
            self.watcher.close()
            self.shim.rowmill_oneccl_close(self._group)
            self._group = ctypes.c_void_p()
        _abandoned.extend(work for work in self._begun if not work.ended())
        self._begun.clear()

    abort = shutdown

    # Collectives.

    def allreduce(self, tensors: list[Tensor], opts: c10d.AllreduceOptions) -> Work:
        """Reduce the tensors of all ranks, in place on every rank."""
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
        """Copy the tensor of the root rank into every rank's tensor."""
        tensor = _one(tensors)
        arguments = (self._at(tensor), *_typed(tensor), opts.rootRank)
        return self._begin("broadcast", opts, arguments, [tensor])

    def all_gather_single(
        self, output: Tensor, tensor: Tensor, opts: c10d.AllgatherOptions
    ) -> Work:
        """Gather the tensors of all ranks into `output`, concatenated in the order of ranks."""
        _check_sizes("output", output, self.size() * tensor.numel(), tensor)
        count, kind = _typed(tensor)
        arguments = (self._at(tensor), count, self._at(output), kind)
        return self._begin("allgather", opts, arguments, [output], memory=[tensor])

    def allgather(
        self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: c10d.AllgatherOptions
    ) -> Work:
        """Gather the tensors of all ranks, one output per rank."""
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
        """Reduce the tensors of all ranks, and write this rank's part into `output`."""
        _check_sizes("input", tensor, self.size() * output.numel(), output)
        reduction, finish = self._reduction(opts.reduceOp, output)
        arguments = (self._at(tensor), self._at(output), *_typed(output), reduction)
        return self._begin(
            "reduce_scatter", opts, arguments, [output], memory=[tensor], finish=finish
        )

    def reduce_scatter(
        self, outputs: list[Tensor], tensors: list[list[Tensor]], opts: c10d.ReduceScatterOptions
    ) -> Work:
        """Reduce over all ranks the input tensors for this rank into the single tensor of `outputs`."""
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
        """Send to each rank its part of the input's rows, by the given splits, or equal parts without splits."""
        if output.dtype != tensor.dtype:
            raise ValueError(f"oneccl: output has dtype {output.dtype}, input {tensor.dtype}")
        counts = [
            self._counts("output", output, output_splits),
            self._counts("input", tensor, input_splits),
        ]
        _, kind = _typed(tensor)
        pointers = self._at(tensor), self._at(output)
        arguments = (self.size(), pointers[0], counts[1], pointers[1], counts[0], kind)
        return self._begin("all_to_all", opts, arguments, [output], memory=[tensor])

    def barrier(self, opts: c10d.BarrierOptions) -> Work:
        """Wait until all ranks have reached the barrier."""
        return self._begin("barrier", opts, ())

    # Names in older versions of torch.
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
        """The number of a reduction in oneCCL, and the operation to apply afterwards, if any."""
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
        """Number of elements sent to or received from each rank, as a C array."""
        rows, size = tensor.shape[0] if tensor.dim() else 1, self.size()
        if not splits:
            if rows % size:
                raise ValueError(
                    f"oneccl: {name} has {rows} rows, not a multiple of {size} ranks: pass splits"
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
    """Number of collectives that libccl has run in this process, by name."""
    if not library.load.cache_info().currsize:
        return dict.fromkeys(library.OPERATIONS, 0)
    count = library.load().rowmill_oneccl_calls
    return {name: count(number) for number, name in enumerate(library.OPERATIONS)}


def _configure(rank: int, size: int) -> None:
    """Set environment variables that oneCCL reads when it is loaded."""
    local = {
        # torchrun sets these variables; without torchrun all ranks are assumed to be on this machine.
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
    """Number of elements of a tensor, and oneCCL's number of its dtype; raise if oneCCL cannot take the tensor."""
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
