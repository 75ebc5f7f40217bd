"""The ranks of a run: who they are, what they must agree on, and the dense half of a step.

Everything here is a collective: every rank makes the same calls in the same order.
"""

import os
import pickle
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib.metadata import entry_points
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rowmill.distributed._liveness.whereabouts import Call, Whereabouts
from rowmill.errors import ExchangeFailed, InvalidInput, RowmillError

_T = TypeVar("_T")


class Ranks:
    """All processes of `torch.distributed`, with a group of their own for the rows.

    Collectives of the dense half never meet those of the rows, so either may be on its way while the other begins. Ranks
    that are in different calls, and a rank that ended, are told to all that wait.

    Args:
        backend: The backend that carries rows, by its name; None: that of `init_process_group`.
        timeout_s: Longest wait for another rank, in seconds; then the call raises `RankLost`.
    """

    def __init__(self, *, backend: str | None = None, timeout_s: float = 60.0) -> None:
        if not dist.is_initialized():
            raise InvalidInput(
                "torch.distributed is not initialized: call torch.distributed.init_process_group first, "
                "in a process started by torchrun"
            )
        if backend is not None and not _available(backend):
            raise InvalidInput(
                f"backend {backend!r} is not available: this torch has none of that name"
            )
        group = dist.new_group(backend=backend, timeout=timedelta(seconds=timeout_s))
        self.group = cast("dist.ProcessGroup", group)  # Every rank is in it.
        self.rank = dist.get_rank()
        self.count = dist.get_world_size()
        self._backend = backend
        self._timeout_s = timeout_s
        self._cores = os.sched_getaffinity(0)
        self.whereabouts = Whereabouts(self.group)

    def apart(self, *, backend: str | None = None, timeout_s: float | None = None) -> "Ranks":
        """The same ranks with another group, whose collectives do not meet those of this one; for the same thread.

        Args:
            backend: As in the constructor; None: as here.
            timeout_s: The same.
        """
        other = self._again(backend, timeout_s)
        other.whereabouts = self.whereabouts
        other.whereabouts.include(other.group)
        return other

    def beside(self) -> "Ranks":
        """The same ranks with another group, for a thread whose collectives must not meet those of others."""
        other = self._again(None, None)
        other.whereabouts = Whereabouts(other.group, self.whereabouts)
        return other

    def _again(self, backend: str | None, timeout_s: float | None) -> "Ranks":
        # Torch waits for the others without an ear for where they are.
        self.gather(None)
        # Threads of a group begin with the cores of the thread that makes it: those of all groups have the same.
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self._cores)
        try:
            return Ranks(backend=backend or self._backend, timeout_s=timeout_s or self._timeout_s)
        finally:
            os.sched_setaffinity(0, cores)

    def wait(self, work: dist.Work | None, call: Call) -> None:
        """Wait for a collective of a call.

        Raises:
            ExchangeFailed: On every rank: they are in different calls.
            RankLost: Another rank ended, or did not come in time.
        """
        assert work is not None
        self.whereabouts.wait(work, call, self._timeout_s)

    def agree(self, describe: Callable[[], tuple[_T, Mapping[str, Any]]], what: str) -> _T:
        """Run `describe` on every rank, and raise on all if it raises on one or they describe different things.

        Args:
            describe: Makes something, and says in words and numbers what ranks must have in common.
            what: A word for it, in errors.

        Returns:
            What this rank made.
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
                        f"rank {rank} has {other.get(name)!r}"
                    )
        assert made is not None
        return made

    def gather(self, value: Any) -> list[Any]:
        """A value of every rank."""
        call = self.whereabouts.begin("gather")
        mine = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        sizes = [int(size) for size in self._gather(torch.tensor([len(mine)]), call)]
        padded = mine.new_zeros(max(sizes))
        padded[: len(mine)] = mine
        found = self._gather(padded, call).view(self.count, -1)
        return [
            pickle.loads(values[:size].numpy().tobytes())
            for values, size in zip(found, sizes, strict=True)
        ]

    def _gather(self, mine: Tensor, call: Call) -> Tensor:
        """Tensors of one size, one rank after the other."""
        all_of_them = mine.new_empty(self.count * len(mine))
        work = dist.all_gather_into_tensor(all_of_them, mine, group=self.group, async_op=True)
        self.wait(work, call)
        return all_of_them

    def mean(self, losses: Tensor) -> Tensor:
        """This rank's share of the mean over the samples of all ranks.

        Shares of all ranks add up to the mean, and so do their gradients, however unevenly samples are spread. A rank
        without samples has the share 0, which it must take the backward of as well.
        """
        count = int(self._sum("mean", torch.tensor(losses.numel())))
        if count == 0:
            raise InvalidInput("no rank has a sample: there is no mean of nothing")
        return losses.sum() / count

    def total(self, share: Tensor) -> float:
        """The sum of a number of every rank: of shares of a loss, the loss."""
        return self._sum("total", share.detach())

    def _sum(self, what: str, mine: Tensor) -> float:
        # Means and totals meet on the wire, so each says what it is.
        call = self.whereabouts.begin("sum", name=self.whereabouts.begin(what).name)
        both = torch.stack([mine.cpu().double(), torch.tensor(float(what == "mean")).double()])
        self.wait(dist.all_reduce(both, group=self.group, async_op=True), call)
        value, means = float(both[0]), int(both[1])
        if means not in (0, self.count):
            raise ExchangeFailed(
                f"ranks are in different calls: of {self.count} ranks {means} take a mean and the others a total; make "
                "the same calls in the same order on every rank"
            )
        return value

    def data_parallel(
        self, model: nn.Module, *, repeatable: bool = False
    ) -> DistributedDataParallel:
        """The model with its dense weights on every rank, their gradients added up over the ranks.

        Sums and no means: with losses by `mean`, N ranks take the step that one rank with all samples takes.

        Args:
            model: The dense half.
            repeatable: Add up in the order of ranks. Otherwise the order within a sum of three ranks or more depends
                on where a gradient lies in its bucket, and buckets are other ones in the first step after a start, so
                that a resumed run may differ in the last bit from one that was never stopped. N ranks then receive N - 1
                times the gradients, and not up to twice.
        """
        parallel = DistributedDataParallel(model)
        # Two summands have one order.
        hook = _add_in_order if repeatable and self.count > 2 else _add_up
        parallel.register_comm_hook(None, hook)  # pyright: ignore[reportUnknownMemberType]
        return parallel


def spell(error: Exception) -> tuple[bool, str]:
    """An error as other ranks learn of it: whether input was wrong, and what it says."""
    named = isinstance(error, RowmillError)
    return isinstance(error, InvalidInput), str(
        error
    ) if named else f"{type(error).__name__}: {error}"


def raise_first(failures: list[tuple[bool, str] | None], own: Exception | None) -> None:
    """Raise what the first rank that failed said, the same on every rank; nothing if none did."""
    for rank, failure in enumerate(failures):
        if failure is not None:
            invalid, message = failure
            kind = InvalidInput if invalid else ExchangeFailed
            raise kind(f"rank {rank}: {message}") from own


def _available(backend: str) -> bool:
    """Whether torch has a backend, or a package that torch asks when the name is first used."""
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


# torch looks at the annotations of a hook, which therefore are no strings in this file.
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
