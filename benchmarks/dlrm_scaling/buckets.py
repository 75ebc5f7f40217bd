"""Sum the gradients of the dense layers over the ranks in buckets, during the backward pass or after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rowmill.distributed.meter import Meter

BUCKET_BYTES = 1 << 20
"""Bytes at which a bucket is sent. Smaller buckets start earlier; larger ones make fewer messages."""


class _Bucket:
    """Some parameters, and one message for their gradients."""

    def __init__(self, parameters: list[nn.Parameter], dtype: torch.dtype | None) -> None:
        self.parameters = parameters
        first = parameters[0]
        size = sum(parameter.numel() for parameter in parameters)
        self.flat = torch.empty(size, dtype=dtype or first.dtype, device=first.device)
        self.missing = len(parameters)
        self.work: Any = None
        parts = torch.split(self.flat, [parameter.numel() for parameter in parameters])
        self.views = [
            part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)
        ]

    def fill(self) -> None:
        for view, parameter in zip(self.views, self.parameters, strict=True):
            assert parameter.grad is not None
            view.copy_(parameter.grad)

    def spread(self) -> None:
        for view, parameter in zip(self.views, self.parameters, strict=True):
            assert parameter.grad is not None
            if view.dtype == parameter.dtype:
                parameter.grad = view
            else:
                parameter.grad.copy_(view)


class Buckets:
    """The parameters of a model in buckets, last parameters first, which is the order of the backward pass.

    Gradients are summed, not averaged. The buckets are the same with and without overlap, so results are bit-identical.

    Args:
        parameters: Every one gets a gradient in each backward pass. Do not use their gradients before `finish`, and clear
            them (`zero_grad`) before the next backward pass.
        overlap: Send a bucket when it is full; else `finish` sends all buckets, one after the other.
        dtype: Type in which gradients are sent; None: their own.
        meter: Receives every collective, as "allreduce".
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        overlap: bool,
        dtype: torch.dtype | None,
        meter: Meter,
    ) -> None:
        self._overlap = overlap
        self._meter = meter
        self.buckets: list[_Bucket] = []
        taken: list[nn.Parameter] = []
        for parameter in reversed(list(parameters)):
            taken.append(parameter)
            size = sum(one.numel() * (dtype or one.dtype).itemsize for one in taken)
            if size >= BUCKET_BYTES:
                self.buckets.append(_Bucket(taken, dtype))
                taken = []
        if taken:
            self.buckets.append(_Bucket(taken, dtype))
        self._next = 0
        """The first bucket that was not sent. All ranks must send buckets in the same order."""
        for bucket in self.buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(self._hook(bucket))

    def finish(self) -> None:
        """Wait until all gradients hold the sums over all ranks."""
        if self._overlap:
            with self._meter.waiting("allreduce"):
                for bucket in self.buckets:
                    bucket.work.wait()
        else:
            for bucket in self.buckets:
                self._send(bucket)
                with self._meter.waiting("allreduce"):
                    bucket.work.wait()
        for bucket in self.buckets:
            bucket.spread()
            bucket.work = None
            bucket.missing = len(bucket.parameters)
        self._next = 0

    @property
    def bytes_total(self) -> int:
        """Bytes of all gradients as they are sent."""
        return sum(bucket.flat.nbytes for bucket in self.buckets)

    def _hook(self, bucket: _Bucket) -> Any:
        def ready(_: Tensor) -> None:
            bucket.missing -= 1
            if not self._overlap:
                return
            while self._next < len(self.buckets) and self.buckets[self._next].missing == 0:
                self._send(self.buckets[self._next])
                self._next += 1

        return ready

    def _send(self, bucket: _Bucket) -> None:
        bucket.fill()
        bucket.work = dist.all_reduce(bucket.flat, async_op=True)
        self._meter.begun("allreduce", bucket.work)
