"""The device of dense halves, and programs on it.

On a GPU, requests are copied from the worker's arena, whose pages are pinned. Where the rows of a program are independent,
a batch runs at the next size of a power of two, by a CUDA graph for each size.

No machine with a GPU has run this yet. Tests run the same classes on a CPU, without pinning and graphs.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from rowmill.errors import InvalidInput, ServingError
from rowmill.serve.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Run = Callable[..., Sequence[Tensor]]

_WARM_RUNS = 2
"""Before a graph is captured, libraries choose their kernels and take memory."""


class Device:
    """Where halves in torch run: on a GPU one batch at a time, on one stream.

    Args:
        name: "cpu", "cuda" or "cuda:NUMBER".
        batches: Batches that run at once; 1 on a GPU.

    Attributes:
        device: As torch has it.
        batches: Batches that run at once.
        turn: Held while a program runs.

    Raises:
        InvalidInput: torch sees no such GPU.
    """

    def __init__(self, name: str, batches: int = 1) -> None:
        self.device = torch.device(name)
        self.batches = batches
        self.turn = Turns(batches)
        self.stream: Any = None
        self._pinned: int | None = None
        if self.is_gpu:
            count = torch.cuda.device_count()
            if not torch.cuda.is_available() or (self.device.index or 0) >= count:
                raise InvalidInput(
                    f'device is {name!r}, but torch {torch.__version__} sees {count} GPUs: use device = "cpu", or install a '
                    "driver and a build of torch for CUDA"
                )
            self.stream = torch.cuda.Stream(self.device)

    @property
    def is_gpu(self) -> bool:
        """Whether tensors are copied to it."""
        return self.device.type != "cpu"

    def pin(self, address: int, size: int) -> None:
        """Pin memory for copies to a GPU; all its pages become resident."""
        if self.is_gpu:
            code = int(_cuda_runtime().cudaHostRegister(address, size, 0))
            if code != 0:
                raise ServingError(
                    f"CUDA cannot pin the {size} bytes of wire_memory (error {code}): lower wire_memory, or raise the "
                    "limit of locked memory (ulimit -l)"
                )
            self._pinned = address

    def close(self) -> None:
        """Release what is pinned."""
        if self._pinned is not None:
            _cuda_runtime().cudaHostUnregister(self._pinned)
            self._pinned = None

    def on_stream(self) -> Any:
        """Work within this context goes to the stream."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def synchronize(self) -> None:
        """Wait for the work on the stream."""
        if self.stream is not None:
            self.stream.synchronize()


class CopiedProgram:
    """A program on a device, for requests one at a time: their tensors are copied there, the answers back.

    Attributes:
        program: Takes and gives tensors on the device.
    """

    def __init__(self, program: Run, device: Device) -> None:
        self.program = program
        self._device = device

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Answer one request."""
        device = self._device
        with device.on_stream():
            moved = [tensor.to(device.device, non_blocking=True) for tensor in inputs]
            return _to_host(self.program(*moved), device)


class SizedProgram:
    """A program on a device at sizes that are powers of two, for requests that are joined.

    Rows after those of the batch contain values of earlier batches, and their outputs are dropped. So the rows of the program
    must be independent.

    Args:
        program: Takes and gives tensors on the device, whose first dimension is the batch.
        device: The device.
        example: Inputs of any number of rows, for their types and other sizes.
        rows_max: The largest batch.

    Attributes:
        said: How batches run, for people.
    """

    def __init__(
        self, program: Run, device: Device, example: Sequence[Tensor], rows_max: int
    ) -> None:
        self._program = program
        self._device = device
        self._sizes = sizes_to(rows_max)
        with device.on_stream():
            self._inputs = [
                torch.zeros((rows_max, *tensor.shape[1:]), dtype=tensor.dtype, device=device.device)
                for tensor in example
            ]
        self._graphs: dict[int, tuple[Any, Sequence[Tensor]]] = {}
        self.said = "without CUDA graphs"
        if device.is_gpu:
            try:
                self._capture()
                self.said = f"with {len(self._graphs)} CUDA graphs"
            except Exception as error:
                self._graphs.clear()
                self.said += f", because one cannot be captured: {error}"

    def __call__(self, requests: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Answer requests that have at most `rows_max` rows together."""
        rows = [tensors[0].shape[0] for tensors in requests]
        total = sum(rows)
        with self._device.on_stream():
            for at, whole in enumerate(self._inputs):
                parts: Sequence[Tensor] = cast("Any", whole[:total]).split(rows)
                for part, tensors in zip(parts, requests, strict=True):
                    part.copy_(tensors[at], non_blocking=True)
            outputs = self._run(next(size for size in self._sizes if size >= total))
            found = _to_host([output[:total] for output in outputs], self._device)
        split: list[Sequence[Tensor]] = [cast("Any", output).split(rows) for output in found]
        return [list(answer) for answer in zip(*split, strict=True)]

    def _run(self, size: int) -> Sequence[Tensor]:
        if size in self._graphs:
            graph, outputs = self._graphs[size]
            graph.replay()
            return outputs
        return self._program(*(whole[:size] for whole in self._inputs))

    def _capture(self) -> None:
        """A graph per size, the largest first, so that the others find their memory in its pool."""
        pool: Any = None
        for size in reversed(self._sizes):
            with self._device.on_stream():
                for _ in range(_WARM_RUNS):
                    self._run(size)
            self._device.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=self._device.stream):
                outputs = self._program(*(whole[:size] for whole in self._inputs))
            pool = graph.pool()
            self._graphs[size] = graph, outputs


def sizes_to(rows_max: int) -> list[int]:
    """Powers of two below a number of rows, and that number."""
    return [*(1 << at for at in range((rows_max - 1).bit_length())), rows_max]


def _cuda_runtime() -> Any:
    return cast("Any", torch.cuda).cudart()


def _to_host(outputs: Sequence[Tensor], device: Device) -> list[Tensor]:
    found = [
        torch.empty(output.shape, dtype=output.dtype, pin_memory=device.is_gpu)
        for output in outputs
    ]
    for to, output in zip(found, outputs, strict=True):
        to.copy_(output, non_blocking=True)
    device.synchronize()
    return found
