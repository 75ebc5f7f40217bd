"""Halves of models that run in torch, each in threads that take batches of requests and answer them.

The tensors of a request are used in place, in the worker's arena. If a batch joins several requests, their tensors are copied
once, within the arena.
"""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from rowmill._extras import extra
from rowmill.partition.bundle import load_program
from rowmill.partition.compiled import PACKAGE, load_compiled, misfit
from rowmill.partition.named_lookup import rows_from
from rowmill.partition.plan_reference import evaluate_size
from rowmill.serve.checked_program import CheckedProgram
from rowmill.serve.device import CopiedProgram, Device, SizedProgram
from rowmill.serve.linears import use_faster_linears
from rowmill.serve.scheduling import yield_to_other_threads

with extra("train"):
    import safetensors.torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.fx import GraphModule
    from typing_extensions import CapsuleType

    from rowmill import _core
    from rowmill.serve.files import BundleFiles
    from rowmill.store import Store

    Run = Callable[..., Sequence[Tensor]]

_WAIT_S = 1.0
# As in torch.utils.dlpack, without the search for `__dlpack__` there, which takes a third of the time.
_from_capsule: Callable[[CapsuleType], Tensor] = cast("Any", torch)._C._from_dlpack
_to_capsule: Callable[[Tensor], CapsuleType] = cast("Any", torch)._C._to_dlpack


class ProgramThreads:
    """Run one half of one model until its queue closes: a thread for each batch that the device runs at once.

    Args:
        bundle: The bundle.
        half: "cpu", "dense" or "post".
        queue: Where requests come from.
        device: Where the dense half runs; all halves of a process share its turns.
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
            with device.turn, torch.inference_mode():
                example = self._random_inputs(0)
                self._sized = SizedProgram(self._program.program, device, example, batch_rows)
            self.said += f" {self._sized.said}"
        self._threads = [
            threading.Thread(
                target=self._loop, args=(number,), name=f"{bundle.name}-{half}-{number}"
            )
            for number in range(device.batches)
        ]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait for the end of the threads, which comes with the end of their queue."""
        for thread in self._threads:
            thread.join()

    def _loop(self, number: int) -> None:
        if number > 0 and not self._device.is_gpu:
            yield_to_other_threads()
        queue = self._queue
        rows = nullcontext() if self._rows is None else rows_from(self._rows)
        with torch.inference_mode(), rows:
            while not queue.closed:
                batch = queue.take(number, _WAIT_S)
                if batch is not None:
                    self._answer(batch)

    def _answer(self, batch: _core.Batch) -> None:
        try:
            is_joined = self._joins and self._sized is None and len(batch) > 1
            if is_joined and self._answer_joined(batch):
                return
            # A request is read-only; programs of torch.export change none of their inputs. The tensors go before the reply, so
            # that one message to the CPU half brings the reply and releases the request.
            answers, cpu_s = self._run(
                [list(map(_from_capsule, request)) for request in batch.requests()]
            )
            batch.reply(
                [
                    self._reason(answer)
                    if isinstance(answer, Exception)
                    else list(map(_capsule, answer))
                    for answer in answers
                ],
                cpu_s,
            )
        except Exception as error:
            batch.fail(self._reason(error))

    def _answer_joined(self, batch: _core.Batch) -> bool:
        """Answer a batch by one call of the program; return whether that worked.

        One request can make the whole batch raise, for example by an index that is out of range.
        """
        try:
            outputs, cpu_s = self._timed(self._program, *map(_from_capsule, batch.joined()))
            batch.reply_joined(list(map(_capsule, outputs)), cpu_s)
        except Exception:
            return False
        return True

    def _reason(self, error: Exception) -> str:
        return (
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
                    compiled = load_compiled(folder / PACKAGE, weights, device.batches)
                    return compiled, "compiled by AOTInductor"
                except Exception as error:  # Such as a library that this machine lacks.
                    reason = str(error)
            said = f"program, because the compiled one does not fit: {reason}"
        loaded = cast("GraphModule", load_program(folder / f"{half}.pt2", weights))
        return CheckedProgram(use_faster_linears(loaded)), said

    def _run(
        self, requests: list[list[Tensor]]
    ) -> tuple[Sequence[Sequence[Tensor] | Exception], float]:
        """The outputs of each request or its error, and the CPU time of the program in seconds."""
        if self._sized is not None:
            with suppress(Exception):  # As in `_answer_joined`.
                return self._timed(self._sized, requests)
        answers: list[Sequence[Tensor] | Exception] = []
        cpu_s = 0.0
        for tensors in requests:
            try:
                outputs, more_s = self._timed(self._program, *tensors)
            except Exception as error:  # Such as a row that cannot be read; others do not need it.
                # Frames of the traceback hold the tensors of the requests, and this frame holds the error: a cycle.
                answers.append(error.with_traceback(None))
                continue
            answers.append(outputs)
            cpu_s += more_s
        return answers, cpu_s

    def _timed(self, program: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
        """What a program gives, when the device is free, and its CPU time."""
        with self._device.turn:
            begun = time.thread_time()
            outputs = program(*arguments)
            return outputs, time.thread_time() - begun

    @torch.inference_mode()
    def _rows_are_independent(self) -> bool:
        """Run the program at the sizes of the examples, which warms it; whether joined requests have the answers of each."""
        examples = [self._random_inputs(number) for number in range(2)]
        apart = [self._timed(self._program, *example)[0] for example in examples]
        try:
            inputs = [torch.cat(parts) for parts in zip(*examples, strict=True)]
            joined, _ = self._timed(self._program, *inputs)
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


def _capsule(output: Tensor) -> CapsuleType:
    # What a capsule cannot hold: gaps between elements, and the mark that a view negates them.
    return _to_capsule(output.contiguous().resolve_neg())
