"""Tensors of requests and replies as DLPack capsules, between the arena of a worker and torch.

Threads ask a worker in this process. A test takes the batches of its dense half, as the thread of a program does, and
reads from the metrics how much memory the messages hold. A buffer that is never freed stays there. One that is freed twice
ends the process, or its memory goes to two requests.
"""

from __future__ import annotations

import ctypes
import re
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from torch import Tensor, nn

from python.tests.serve.test_faults import until
from rowmill import _core
from rowmill.errors import InvalidInput, ServingError
from rowmill.partition.export import export
from rowmill.serve.device import Device, SizedProgram
from rowmill.serve.files import BundleFiles
from rowmill.serve.programs import ProgramThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from typing_extensions import CapsuleType

from_dlpack: Callable[[CapsuleType], Tensor] = cast("Any", torch).utils.dlpack.from_dlpack
to_dlpack: Callable[[Tensor], CapsuleType] = cast("Any", torch).utils.dlpack.to_dlpack

_KINDS = ("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool")  # fmt: skip
_WAIT_S = 60.0
_ROWS = 1500
"""So many rows of 6 bytes are beyond the size of a small tensor, which is not kept in the arena."""


class Reversed(nn.Module):
    """Returns its inputs with their rows in reverse order, so that its requests cannot be joined."""

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        return tuple(value.flip(0) for value in inputs.values())


class Views(nn.Module):
    """Returns views of its input: all elements in their order, and in another order."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        whole = x.squeeze(1)
        return whole, whole.transpose(1, 2)


class Chosen(nn.Module):
    """Returns the row of a table for each number, and raises if the table has no such row."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(8.0).reshape(4, 2) + 1)

    def forward(self, number: Tensor) -> Tensor:
        return cast("Tensor", self.table)[number]


def tensors_of_all_kinds(rows: int) -> dict[str, Tensor]:
    values = torch.arange(rows * 6).reshape(rows, 2, 3) % 100
    tensors = {kind: values.to(getattr(torch, kind)) for kind in _KINDS}
    return tensors | {"empty": torch.empty(rows, 0, 3), "flat": values[:, 0, 0].double()}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles")
    kinds = [(tensors_of_all_kinds(rows),) for rows in (4, 2)]
    export(Reversed(), kinds, out=folder / "reversed", seeds=["aten::flip"])
    views = [(torch.rand(rows, 1, 32, 64),) for rows in (4, 2)]
    export(Views(), views, out=folder / "views", seeds=["aten::squeeze", "aten::transpose"])
    chosen = [(torch.arange(rows) % 4,) for rows in (4, 2)]
    export(Chosen(), chosen, out=folder / "chosen", seeds=["aten::index"])
    return folder


class Asked:
    """A worker of this process with a model of one half, which the test or `ProgramThreads` run."""

    def __init__(
        self,
        bundle: Path,
        threads: ThreadPoolExecutor,
        rows: _core.NodeRows | None = None,
        batches: int = 1,
    ) -> None:
        self.files = BundleFiles.open(bundle, bundle.name)
        self.worker = _core.Worker(
            network_threads=1,
            lookup_threads=1,
            wire_memory=16 << 20,
            request_max=8 << 20,
            slo_s=_WAIT_S,
            batch_requests=8,
            batch_rows=8 * _ROWS,
            queue_requests=16,
            batches=batches,
            share_cores=False,
        )
        files = self.files
        ((_, self.queue),) = self.worker.add_model(
            files.name, files.folder, files.program, rows, None
        )
        self._metrics = self.worker.listen_metrics("127.0.0.1:0", insecure=False)
        self._threads = threads

    def ask(self, *tensors: Tensor) -> Future[list[Tensor]]:
        """The outputs of a request, in memory of their own."""
        given = [
            (
                value.clone(memory_format=torch.contiguous_format)
                .reshape(-1)
                .view(torch.uint8)
                .numpy(),
                str(value.dtype).removeprefix("torch."),
                list(value.shape),
            )
            for value in tensors
        ]

        def answer() -> list[Tensor]:
            return [
                torch.frombuffer(bytearray(data), dtype=getattr(torch, kind)).view(shape)
                if len(data)
                else torch.empty(shape, dtype=getattr(torch, kind))
                for data, kind, shape in self.worker.ask(self.files.name, given, _WAIT_S)
            ]

        return self._threads.submit(answer)

    def take(self) -> _core.Batch:
        batch = self.queue.take(0, _WAIT_S)
        assert batch is not None
        return batch

    def held_bytes(self) -> int:
        """Memory that messages hold."""
        return self._gauge("wire_memory_bytes")

    def waiting(self) -> int:
        """Requests that wait for the dense half."""
        return self._gauge(rf'queued_requests{{model="{self.files.name}",half="dense"}}')

    def _gauge(self, name: str) -> int:
        with urllib.request.urlopen(f"http://{self._metrics}/metrics") as page:
            found = re.search(
                rf"^rowmill_serve_{re.escape(name)} (\d+)$", page.read().decode(), re.M
            )
        assert found is not None
        return int(found[1])

    def close(self) -> None:
        self.worker.stop()
        self.worker.run(0.001)


@contextmanager
def asked(bundle: Path, batches: int = 1) -> Generator[Asked]:
    with ThreadPoolExecutor(8) as threads:
        found = Asked(bundle, threads, batches=batches)
        try:
            yield found
        finally:
            found.close()


@contextmanager
def running(bundle: Path, batches: int = 1) -> Generator[tuple[Asked, Device]]:
    """With a thread for each batch that runs at once."""
    with asked(bundle, batches) as found:
        device = Device("cpu", batches)
        threads = ProgramThreads(found.files, "dense", found.queue, device, None, 8 * _ROWS)
        yield found, device
    threads.join()


def same(found: Tensor, expected: Tensor) -> bool:
    return (found.dtype, found.shape) == (expected.dtype, expected.shape) and found.equal(expected)


@pytest.mark.parametrize("rows", [2, _ROWS])
def test_tensors_of_all_types_come_in_place_and_go_back(bundles: Path, rows: int) -> None:
    with asked(bundles / "reversed") as model:
        given = list(tensors_of_all_kinds(rows).values())
        future = model.ask(*given)
        batch = model.take()
        (request,) = batch.requests()
        tensors = [from_dlpack(capsule) for capsule in request]
        begin, size = model.worker.arena()
        for tensor, expected in zip(tensors, given, strict=True):
            assert same(tensor, expected)
            assert tensor.is_contiguous()
            if tensor.numel() > 0:
                assert begin <= tensor.data_ptr() < begin + size, "no copy was made"
        batch.reply([[to_dlpack(tensor.flip(0)) for tensor in tensors]], 0.0)
        for output, expected in zip(future.result(_WAIT_S), given, strict=True):
            assert same(output, expected.flip(0))
        assert model.held_bytes() > 0
        del request, tensors
        tensor = None
        assert model.held_bytes() == 0


@pytest.mark.parametrize("first", ["tensors", "capsules"])
def test_memory_is_freed_with_the_last_tensor_or_capsule(bundles: Path, first: str) -> None:
    with asked(bundles / "reversed") as model:
        future = model.ask(*tensors_of_all_kinds(_ROWS).values())
        batch = model.take()
        # Capsules that are never used, and parts of tensors whose capsules are gone.
        users: dict[str, Any] = {
            "capsules": batch.requests(),
            "tensors": [
                from_dlpack(capsule)[:1] for (request,) in [batch.requests()] for capsule in request
            ],
        }
        batch.fail("the test wants no answer")
        with pytest.raises(ServingError, match="wants no answer"):
            future.result(_WAIT_S)
        held = model.held_bytes()
        assert held > 0
        del users[first]
        assert model.held_bytes() == held
        users.clear()
        assert model.held_bytes() == 0


def test_a_failure_between_capsules_and_tensors_frees_both(bundles: Path) -> None:
    def fail(batch: _core.Batch) -> None:
        ((first, *_),) = batch.requests()
        tensor = from_dlpack(first)
        raise RuntimeError(f"{tensor.dtype}")

    with asked(bundles / "reversed") as model:
        for _ in range(50):  # As many times as a double release needs to meet memory in use.
            future = model.ask(*tensors_of_all_kinds(_ROWS).values())
            batch = model.take()
            with pytest.raises(RuntimeError, match="float32"):
                fail(batch)
            del batch
            with pytest.raises(ServingError, match="dropped the request"):
                future.result(_WAIT_S)
        assert model.held_bytes() == 0


def test_outputs_that_cannot_be_sent_are_refused_and_freed(bundles: Path) -> None:
    used = to_dlpack(torch.rand(3))
    user = from_dlpack(used)
    wrong = {
        "output 0: its strides [6, 2] leave gaps in the shape [4, 3]": torch.rand(4, 6)[:, ::2],
        "output 0: its strides [1, 6] leave gaps in the shape [6, 4]": torch.rand(4, 6).t(),
        "output 0: its strides [0] leave gaps in the shape [5]": torch.rand(1).expand(5),
        "(DLPack's code 5, 64 bits) is not served": torch.rand(3, dtype=torch.complex64),
        "(DLPack's code 1, 16 bits) is not served": torch.zeros(3, dtype=torch.uint16),
        "output 0: it has 9 dimensions, at most 8 are possible": torch.rand(
            1, 1, 1, 1, 1, 1, 1, 1, 1
        ),
    }
    capsules = {reason: to_dlpack(tensor) for reason, tensor in wrong.items()}
    capsules['expected a DLPack capsule ("dltensor") that no other tensor uses'] = used
    capsules["output 0: its memory is on DLPack's device 2, not on the CPU"] = on_a_gpu(
        torch.rand(3)
    )
    with asked(bundles / "reversed") as model:
        given = list(tensors_of_all_kinds(_ROWS).values())
        future = model.ask(*given)
        batch = model.take()
        for reason, capsule in capsules.items():
            with pytest.raises(InvalidInput, match=re.escape(reason)):
                batch.reply([[capsule]], 0.0)
        with pytest.raises(TypeError, match="PyCapsule"):
            batch.reply([[cast("Any", torch.rand(3))]], 0.0)
        batch.reply([[to_dlpack(tensor.flip(0)) for tensor in given]], 0.0)
        assert len(future.result(_WAIT_S)) == len(given)
        with pytest.raises(InvalidInput, match="answered already"):
            batch.reply([[]], 0.0)
        assert user.numel() == 3


def test_requests_of_a_batch_are_joined_and_each_gets_its_rows(bundles: Path) -> None:
    numbers = [[1, 3], [0], [2, 2, 1]]
    table = torch.arange(8.0).reshape(4, 2) + 1
    with asked(bundles / "chosen") as model:
        futures = []
        for count, number in enumerate(numbers, 1):
            futures.append(model.ask(torch.tensor(number)))
            until("it waits", lambda count=count: model.waiting() == count)
        batch = model.take()
        joined = from_dlpack(batch.joined()[0])
        assert joined.tolist() == [1, 3, 0, 2, 2, 1]
        outputs = table[joined]
        with pytest.raises(
            InvalidInput, match=re.escape("tensor 0 has shape [5, 2], must have 6 rows")
        ):
            batch.reply_joined([to_dlpack(outputs[:5])], 0.0)
        large = torch.rand(6, model.worker.arena()[1] // 64)
        with pytest.raises(ServingError, match="no room for"):
            batch.reply_joined([to_dlpack(large) for _ in range(3)], 0.0)
        batch.reply_joined([to_dlpack(outputs)], 0.0)
        for number, future in zip(numbers, futures, strict=True):
            assert same(future.result(_WAIT_S)[0], table[number])
        with pytest.raises(InvalidInput, match="answered already"):
            batch.reply_joined([to_dlpack(outputs)], 0.0)


def test_outputs_without_room_fail_their_request_alone(bundles: Path) -> None:
    with asked(bundles / "chosen") as model:
        futures = [model.ask(torch.zeros(1, dtype=torch.int64)) for _ in range(3)]
        until("all wait", lambda: model.waiting() == 3)
        batch = model.take()
        large = torch.rand(2, (model.worker.arena()[1] // 8) - 4096)
        small = torch.rand(1, 2)
        batch.reply(
            [[to_dlpack(small)], [to_dlpack(large), to_dlpack(large)], [to_dlpack(small)]], 0.0
        )
        errors = [error for future in futures if (error := future.exception(_WAIT_S)) is not None]
        (error,) = errors
        assert isinstance(error, ServingError)
        assert "no room for" in str(error)
        for future in futures:
            if future.exception() is None:
                (output,) = future.result()
                assert same(output, small)
        until("memory returns", lambda: model.held_bytes() == 0)


def on_a_gpu(tensor: Tensor) -> CapsuleType:
    """A capsule that says so."""
    capsule = to_dlpack(tensor)
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    # The device is behind the pointer to the data.
    ctypes.c_int32.from_address(pointer_of(capsule, b"dltensor") + 8).value = 2
    return capsule


def test_a_program_answers_each_request_by_itself_where_rows_depend_on_each_other(
    bundles: Path,
) -> None:
    with running(bundles / "reversed") as (model, device):
        requests = [list(tensors_of_all_kinds(rows).values()) for rows in (2, 1, _ROWS, 0)]
        with device.turn:  # The first waits here, and the others become one batch.
            futures = [model.ask(*request) for request in requests]
        for request, future in zip(requests, futures, strict=True):
            for output, given in zip(future.result(_WAIT_S), request, strict=True):
                assert same(output, given.flip(0))
        assert model.held_bytes() == 0


@pytest.mark.parametrize("sized", [False, True])
def test_a_request_that_raises_in_a_joined_batch_fails_alone(bundles: Path, sized: bool) -> None:
    table = torch.arange(8.0).reshape(4, 2) + 1
    numbers = [[0], [3, 1], [1, 4, 2], [2]]
    with asked(bundles / "chosen") as model:
        device = Device("cpu")
        threads = ProgramThreads(model.files, "dense", model.queue, device, None, 8)
        assert threads._joins
        if sized:  # As on a GPU.
            example = [torch.tensor([0])]
            threads._sized = SizedProgram(threads._program, device, example, rows_max=8)
        for together in ([0, 1, 3], [0, 1, 2, 3], [2], [0, 1, 3]):
            with torch.inference_mode():
                answers, _ = threads._run([[torch.tensor(numbers[at])] for at in together])
            for at, answer in zip(together, answers, strict=True):
                if at == 2:
                    assert isinstance(answer, IndexError)
                    assert answer.__traceback__ is None
                else:
                    assert not isinstance(answer, Exception)
                    assert same(answer[0], table[numbers[at]])
        with device.turn:  # The first waits here, and the others become one batch.
            futures = [model.ask(torch.tensor(number)) for number in numbers]
        for at, future in enumerate(futures):
            if at == 2:
                with pytest.raises(ServingError, match="half of chosen failed: IndexError"):
                    future.result(_WAIT_S)
            else:
                assert same(future.result(_WAIT_S)[0], table[numbers[at]])
        # The thread drops its tensors after it has replied.
        until("memory is free", lambda: model.held_bytes() == 0)
    threads.join()


def test_a_program_may_answer_with_views_of_its_request(bundles: Path) -> None:
    with running(bundles / "views") as (model, device):
        for together in (1, 1, 8, 8):
            requests = [torch.rand(1 + number % 3, 1, 32, 64) for number in range(together)]
            with device.turn:
                futures = [model.ask(request) for request in requests]
            for request, future in zip(requests, futures, strict=True):
                whole, transposed = future.result(_WAIT_S)
                assert same(whole, request.squeeze(1))
                assert same(transposed, request.squeeze(1).transpose(1, 2))
        # A thread drops its tensors after it has replied.
        until("memory is free", lambda: model.held_bytes() == 0)


def test_as_many_batches_run_at_once_as_the_device_may_run(bundles: Path) -> None:
    with asked(bundles / "views", batches=2) as model:
        requests = [torch.rand(2, 1, 32, 64) for _ in range(3)]
        futures = [model.ask(requests[0])]
        first = model.take()
        futures.append(model.ask(requests[1]))
        second = model.take()
        futures.append(model.ask(requests[2]))
        assert model.queue.take(0, 0.05) is None
        for batch in (second, first):
            (request,) = batch.requests()
            value = from_dlpack(request[0]).squeeze(1)
            batch.reply([[to_dlpack(value), to_dlpack(value.transpose(1, 2).contiguous())]], 0.0)
        third = model.take()
        third.fail("the test ends")
        for request, future in zip(requests[:2], futures[:2], strict=True):
            assert same(future.result(_WAIT_S)[0], request.squeeze(1))
        assert futures[2].exception(_WAIT_S) is not None


def test_a_thread_for_each_batch_answers_every_request(bundles: Path) -> None:
    with running(bundles / "views", batches=3) as (model, _):
        requests = [torch.rand(1 + number % 3, 1, 32, 64) for number in range(64)]
        futures = [model.ask(request) for request in requests]
        for request, future in zip(requests, futures, strict=True):
            assert same(future.result(_WAIT_S)[0], request.squeeze(1))
        # A thread drops its tensors after it has replied.
        until("memory is free", lambda: model.held_bytes() == 0)
