"""The ranks of a run: agreement on settings, collectives of the loss, and data parallelism of the dense model.

All calls are collectives: every rank makes the same calls in the same order.
"""

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from importlib.metadata import entry_points
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rowmill.distributed._liveness.whereabouts import Call, Whereabouts
from rowmill.distributed.both_ways import BYTES_MIN, BothWays
from rowmill.errors import ExchangeFailed, InvalidInput, RowmillError

_T = TypeVar("_T")


class Ranks:
    """All processes of `torch.distributed`, with a separate process group for rows.

    Collectives of the dense model use another group than those of the rows, so both may run at the same time. If ranks
    are in different calls, or a rank has ended, every waiting rank raises.

    Args:
        backend: Name of the backend for rows; None: that of `init_process_group`.
        timeout_s: Longest wait for another rank, in seconds; then the call raises `RankLost`.

    Raises:
        InvalidInput: torch.distributed is not initialized, or the backend is not available.
    """

    def __init__(self, *, backend: str | None = None, timeout_s: float = 60.0) -> None:
        if not dist.is_initialized():
            raise InvalidInput(
                "torch.distributed is not initialized: call torch.distributed.init_process_group first, "
                "in a process started by torchrun"
            )
        if backend is not None and not _available(backend):
            raise InvalidInput(
                f"backend {backend!r} is not available in this build of torch: choose another, such as gloo"
            )
        group = dist.new_group(backend=backend, timeout=timedelta(seconds=timeout_s))
        self.group = cast("dist.ProcessGroup", group)  # Not a non-member: the group has every rank.
        self.rank = dist.get_rank()
        self.count = dist.get_world_size()
        self._backend = backend
        self._timeout_s = timeout_s
        self._cores = os.sched_getaffinity(0)
        self.whereabouts = Whereabouts(self.group)
        self._down: dist.ProcessGroup | None = None
        """A second group, for messages of two ranks in the other direction."""
        if self.count == 2 and dist.get_backend(self.group) == "gloo":
            down = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
            self._down = cast("dist.ProcessGroup", down)
            self.whereabouts.include(self._down)
        self.stop_asked = False
        """Whether a rank asked to stop; equal on all ranks after each `mean` and `total`."""
        self._asks_to_stop = False

    def ask_to_stop(self) -> None:
        """Set `stop_asked` on all ranks with the next `mean` or `total`. Any rank may call it at any time, also in a signal handler."""
        self._asks_to_stop = True

    def apart(self, *, backend: str | None = None, timeout_s: float | None = None) -> "Ranks":
        """The same ranks with another process group, for independent collectives in the same thread.

        Args:
            backend: As in the constructor; None: the backend of this object.
            timeout_s: As in the constructor; None: the timeout of this object.
        """
        other = self._again(backend, timeout_s)
        other.whereabouts = self.whereabouts
        other.whereabouts.include(other.group)
        if other._down is not None:
            other.whereabouts.include(other._down)
        return other

    def beside(self) -> "Ranks":
        """The same ranks with another process group, for the collectives of another thread."""
        other = self._again(None, None)
        other.whereabouts = Whereabouts(other.group, self.whereabouts)
        return other

    def _again(self, backend: str | None, timeout_s: float | None) -> "Ranks":
        # torch's own wait in new_group does not detect ranks in different calls; this gather does.
        self.gather(None)
        # A group's threads inherit the cores of the thread that creates it. Give all groups the same cores.
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self._cores)
        try:
            return Ranks(backend=backend or self._backend, timeout_s=timeout_s or self._timeout_s)
        finally:
            os.sched_setaffinity(0, cores)

    def all_to_all(
        self, back: Tensor, out: Tensor, come: Sequence[int], to: Sequence[int]
    ) -> dist.Work:
        """Begin to send a part of `out` to each rank, and to receive a part of `back` from each; `wait` ends it.

        Args:
            back: Filled with the parts from all ranks, in the order of ranks: [sum of come], CPU.
            out: The parts for all ranks, in the order of ranks: [sum of to], CPU, same dtype.
            come: Per rank, the number of elements from it.
            to: Per rank, the number of elements to it.
        """
        if self._down is not None:
            # Both ranks know both sizes, so they choose alike.
            other = 1 - self.rank
            if out.element_size() * min(to[other], come[other]) >= BYTES_MIN:
                return BothWays(self.group, self._down, back, out, come, to)
        work = dist.all_to_all_single(
            back, out, list(come), list(to), group=self.group, async_op=True
        )
        return cast("dist.Work", work)

    def wait(self, work: dist.Work | None, call: Call) -> None:
        """Wait for a collective of a call.

        Raises:
            ExchangeFailed: On every rank, if ranks are in different calls.
            RankLost: Another rank ended, or did not join within the timeout.
        """
        assert work is not None
        self.whereabouts.wait(work, call, self._timeout_s)

    def agree(self, describe: Callable[[], tuple[_T, Mapping[str, Any]]], what: str) -> _T:
        """Run `describe` on every rank, and raise on every rank if it raises on one or the descriptions differ.

        Args:
            describe: Makes an object, and returns it with a description of settings that must be equal on all ranks.
            what: Name of the object in error messages.

        Returns:
            The object that this rank made.

        Raises:
            InvalidInput: The descriptions differ, or `describe` raised `InvalidInput` on a rank.
            ExchangeFailed: `describe` raised another error on a rank.
        """
        made, described, failure = None, None, None
        try:
            made, described = describe()
        except Exception as error:
            failure = error
        said = self.gather((described, None if failure is None else spell(failure)))
        raise_first([failed for _, failed in said], failure)
        first = said[0][0]
        for rank, (other, _) in enumerate(said):
            for name in sorted({*first, *other}):
                if first.get(name) != other.get(name):
                    raise InvalidInput(
                        f"ranks disagree on {what}, {name}: rank 0 has {first.get(name)!r}, "
                        f"rank {rank} has {other.get(name)!r}; it must be equal on all ranks"
                    )
        assert made is not None
        return made

    def gather(self, value: Any, name: str | None = None) -> list[Any]:
        """Gather a picklable value from every rank: a list in the order of ranks.

        Args:
            value: The value of this rank.
            name: Name of the call in errors; None: its number.
        """
        call = self.whereabouts.begin("gather", name=name)
        mine = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        sizes = [int(size) for size in self._gather(torch.tensor([len(mine)]), call)]
        padded = mine.new_zeros(max(sizes))
        padded[: len(mine)] = mine
        found = self._gather(padded, call).view(self.count, -1)
        return [
            pickle.loads(values[:size].numpy().tobytes())
            for values, size in zip(found, sizes, strict=True)
        ]

    def stack(self, mine: Tensor) -> Tensor:
        """Gather a tensor of equal shape and dtype from every rank: `[ranks, ...]`, without a gradient.

        Args:
            mine: The tensor of this rank, on the CPU.
        """
        call = self.whereabouts.begin("gather")
        flat = mine.detach().contiguous().view(-1)
        return self._gather(flat, call).view(self.count, *mine.shape)

    def _gather(self, mine: Tensor, call: Call) -> Tensor:
        """Gather tensors of equal size, concatenated in the order of ranks."""
        all_of_them = mine.new_empty(self.count * len(mine))
        work = dist.all_gather_into_tensor(all_of_them, mine, group=self.group, async_op=True)
        self.wait(work, call)
        return all_of_them

    def mean(self, losses: Tensor) -> Tensor:
        """This rank's share of the mean loss over the samples of all ranks.

        The sum of the shares is the mean, and the sum of their gradients is its gradient, also with different numbers of
        samples per rank. A rank without samples has the share 0, and must run its backward too.

        Args:
            losses: Loss of each of this rank's samples, any shape.

        Raises:
            InvalidInput: No rank has a sample.
        """
        count = int(self._sum("mean", torch.tensor(losses.numel())))
        if count == 0:
            raise InvalidInput(
                "no rank has a sample, so the mean loss is undefined: skip this step"
            )
        return losses.sum() / count

    def total(self, share: Tensor) -> float:
        """The sum of a scalar over all ranks; for shares of a mean loss, the mean loss."""
        return self._sum("total", share.detach())

    def _sum(self, what: str, mine: Tensor) -> float:
        # A mean may meet a total of another rank in the same collective, so each sends which one it is.
        call = self.whereabouts.begin("sum", name=self.whereabouts.begin(what).name)
        flags = torch.tensor([what == "mean", self._asks_to_stop]).double()
        sums = torch.cat([mine.cpu().double().view(1), flags])
        self.wait(dist.all_reduce(sums, group=self.group, async_op=True), call)
        value, means, asked = float(sums[0]), int(sums[1]), int(sums[2])
        self.stop_asked = asked > 0
        if means not in (0, self.count):
            raise ExchangeFailed(
                f"ranks are in different calls: of {self.count} ranks {means} take a mean and the others a total; make "
                "the same calls in the same order on every rank"
            )
        return value

    def data_parallel(
        self, model: nn.Module, *, repeatable: bool = False
    ) -> DistributedDataParallel:
        """Wrap the dense model in `DistributedDataParallel`, with gradients summed over the ranks, not averaged.

        With losses by `mean`, N ranks make the same step as one rank with all samples.

        Args:
            model: The dense model.
            repeatable: Sum gradients in the order of ranks, so that a resumed run is bit-identical to an uninterrupted
                one. Otherwise, with three ranks or more, the order depends on a gradient's position in its bucket, and
                buckets differ in the first step after a start. It costs traffic: each rank receives N - 1 times the
                gradients instead of at most twice.
        """
        parallel = DistributedDataParallel(model)
        # The sum of two summands does not depend on their order.
        hook = _add_in_order if repeatable and self.count > 2 else _add_up
        parallel.register_comm_hook(None, hook)  # pyright: ignore[reportUnknownMemberType]
        return parallel


def spell(error: Exception) -> tuple[bool, str]:
    """Encode an error for other ranks: whether it is an `InvalidInput`, and its message."""
    named = isinstance(error, RowmillError)
    return isinstance(error, InvalidInput), str(
        error
    ) if named else f"{type(error).__name__}: {error}"


def raise_first(failures: list[tuple[bool, str] | None], own: Exception | None) -> None:
    """Raise the error of the first failed rank, equal on every rank; return if no rank failed."""
    for rank, failure in enumerate(failures):
        if failure is not None:
            invalid, message = failure
            kind = InvalidInput if invalid else ExchangeFailed
            raise kind(f"rank {rank}: {message}") from own


def _available(backend: str) -> bool:
    """Whether torch has the backend, or an installed package registers it on first use."""
    there = {
        "gloo": dist.is_gloo_available,
        "nccl": dist.is_nccl_available,
        "mpi": dist.is_mpi_available,
        "ucc": dist.is_ucc_available,
    }
    if backend in there:
        return there[backend]()
    packages = entry_points(group="torch.distributed.backends")
    return backend in dist.Backend.backend_list or backend in packages.names


# torch inspects the annotations of a hook, so this file does not import `annotations`, which would make them strings.
def _add_up(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # pyright: ignore[reportPrivateImportUsage]
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None

    def first(done: torch.futures.Future[list[Tensor]]) -> Tensor:
        return done.value()[0]

    return work.get_future().then(first)


def _add_in_order(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # pyright: ignore[reportPrivateImportUsage]
    own = bucket.buffer()
    ranks = dist.get_world_size()
    all_of_them = own.new_empty(ranks * own.numel())
    work = dist.all_gather_into_tensor(all_of_them, own, async_op=True)
    assert work is not None

    def added(_: torch.futures.Future[list[Tensor]]) -> Tensor:
        first, *others = all_of_them.view(ranks, -1)
        own.copy_(first)
        for other in others:
            own.add_(other)
        return own

    return work.get_future().then(added)
