"""Halves of models that run in torch, each in a thread that takes batches of requests and answers them.

Requests are used where they lie in the worker's arena. Where a batch joins several, their tensors are copied once.
"""

from __future__ import annotations

import threading
import time
import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import safetensors.torch
import torch
from torch import Tensor

from rowmill.partition.bundle import load_program
from rowmill.partition.compiled import PACKAGE, load_compiled, misfit
from rowmill.partition.named_lookup import rows_from
from rowmill.partition.plan_reference import evaluate_size
from rowmill.serve.device import CopiedProgram, Device, SizedProgram
from rowmill.serve.linears import use_faster_linears

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.fx import GraphModule

    from rowmill import _core
    from rowmill.serve.files import BundleFiles, Named
    from rowmill.store import Store

    Run = Callable[..., Sequence[Tensor]]

_WAIT_S = 1.0
# A request is read-only; programs of torch.export change none of their inputs.
warnings.filterwarnings("ignore", message="The given buffer is not writable")


class ProgramThread:
    """Runs one half of one model until its queue closes.

    Args:
        bundle: The bundle.
        half: "cpu", "dense" or "post".
        queue: Where requests come from.
        device: Where the dense half runs; all halves of a process take turns.
        rows: The rows of the bundle, for a CPU half.
        batch_rows: Rows of the largest batch.

    Attributes:
        said: How the half runs, for people.
    """

    def __init__(
        self,
        bundle: BundleFiles,
        half: str,
        queue: _core.Program,
        device: Device,
        rows: Store | None,
        batch_rows: int,
    ) -> None:
        self._bundle = bundle
        self._half = half
        self._queue = queue
        self._device = device
        self._rows = rows
        self._program, self.said = self._load()
        self._joins = half == "dense" and self._rows_are_independent()
        self._sized: SizedProgram | None = None
        if isinstance(self._program, CopiedProgram) and self._joins and self._has_fixed_rows():
            with device.lock, torch.inference_mode():
                example = self._random_inputs(0)
                self._sized = SizedProgram(self._program.program, device, example, batch_rows)
            self.said += f" {self._sized.said}"
        self._thread = threading.Thread(target=self._loop, name=f"{bundle.name}-{half}")
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the thread, which comes with the end of its queue."""
        self._thread.join()

    def _loop(self) -> None:
        while not self._queue.closed:
            batch = self._queue.take(_WAIT_S)
            if batch is None:
                continue
            try:
                batch.reply(self._answers(batch.requests()))
            except Exception as error:
                batch.fail(
                    f"the {self._half} half of {self._bundle.name} failed: {type(error).__name__}: {error}"
                )

    def _load(self) -> tuple[Run, str]:
        """The program of the half and how it runs: compiled where the bundle has a package that fits."""
        folder, half, device = self._bundle.folder, self._half, self._device
        weights = safetensors.torch.load_file(folder / "weights.safetensors")
        if half == "dense" and device.is_gpu:
            portable = folder / "dense.portable.pt2"
            path = portable if portable.exists() else folder / "dense.pt2"
            program = cast("Run", load_program(path, weights, device.device))
            return CopiedProgram(program, device), f"program on {device.device}"
        said = "program"
        if half == "dense" and "compiled" in self._bundle.manifest:
            reason = misfit(self._bundle.manifest["compiled"])
            if reason is None:
                try:
                    return load_compiled(folder / PACKAGE, weights), "compiled by AOTInductor"
                except Exception as error:  # Such as a library that this machine lacks.
                    reason = str(error)
            said = f"program, because the compiled one does not fit: {reason}"
        loaded = cast("GraphModule", load_program(folder / f"{half}.pt2", weights))
        return cast("Run", use_faster_linears(loaded)), said

    def _answers(self, requests: list[list[Any]]) -> list[list[Any]]:
        inputs = [[_as_tensor(*named) for named in request] for request in requests]
        if self._sized is not None:
            answers = self._timed(self._sized, inputs)
        elif self._joins and len(inputs) > 1:
            rows = [tensors[0].shape[0] for tensors in inputs]
            joined = [torch.cat(parts) for parts in zip(*inputs, strict=True)]
            outputs: list[Sequence[Tensor]] = [
                cast("Any", output).split(rows) for output in self._run(joined)
            ]
            answers = [list(parts) for parts in zip(*outputs, strict=True)]
        else:
            answers = [list(self._run(tensors)) for tensors in inputs]
        return [[_as_named(output) for output in answer] for answer in answers]

    def _run(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return self._timed(self._program, *tensors)

    def _timed(self, program: Callable[..., Any], *arguments: Any) -> Any:
        """What a program gives, when the device is free; its time on the CPU is counted."""
        rows = nullcontext() if self._rows is None else rows_from(self._rows)
        with self._device.lock, torch.inference_mode(), rows:
            begun = time.thread_time()
            outputs = program(*arguments)
            self._queue.add_cpu(time.thread_time() - begun)
            return outputs

    def _rows_are_independent(self) -> bool:
        """Run the program at the sizes of the examples, which warms it; whether joined requests have the answers of each."""
        examples = [self._random_inputs(number) for number in range(2)]
        apart = [list(self._run(example)) for example in examples]
        try:
            joined = self._run([torch.cat(parts) for parts in zip(*examples, strict=True)])
        except Exception:
            return False
        expected = [torch.cat(parts) for parts in zip(*apart, strict=True)]
        return all(
            a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
            for a, b in zip(joined, expected, strict=True)
        )

    def _has_fixed_rows(self) -> bool:
        """Whether the batch is the first size of every tensor, and no other size differs between requests."""
        signature = self._bundle.signature
        shapes = [named["shape"] for named in (*signature["crossing"], *signature["reply"])]
        batches = {shape[0] if shape else None for shape in shapes}
        rest = [size for shape in shapes for size in shape[1:]]
        return len(batches) == 1 and all(isinstance(size, int) for size in rest)

    def _random_inputs(self, seed: int) -> list[Tensor]:
        signature = self._bundle.signature
        described = {
            named["name"]: named for named in (*signature["crossing"], *signature["inputs"])
        }
        inputs, _ = next(iter(self._bundle.examples()))
        sizes = {
            size: actual
            for named, (_, _, shape) in zip(signature["inputs"], inputs, strict=True)
            for size, actual in zip(named["shape"], shape, strict=True)
            if isinstance(size, str)
        }
        generator = torch.Generator().manual_seed(seed)
        tensors: list[Tensor] = []
        for name in signature["halves"]["dense"]["inputs"]:
            about = described.get(name)
            # A tensor without elements, whose first size is the batch.
            shape = [evaluate_size(size, sizes) for size in about["shape"]] if about else [2, 0]
            dtype = getattr(torch, about["dtype"]) if about else torch.float32
            tensors.append(torch.rand(shape, generator=generator).to(dtype))
        return tensors


def _as_tensor(data: Any, dtype: str, shape: list[int]) -> Tensor:
    kind = getattr(torch, dtype)
    return (
        torch.frombuffer(data, dtype=kind).view(shape)
        if len(data)
        else torch.empty(shape, dtype=kind)
    )


def _as_named(value: Tensor) -> Named:
    flat = value.detach().contiguous().reshape(-1)
    dtype = str(value.dtype).removeprefix("torch.")
    return cast("Named", (flat.view(torch.uint8).numpy(), dtype, list(value.shape)))
