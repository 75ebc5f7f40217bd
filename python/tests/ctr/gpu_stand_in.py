"""A simulated GPU for tests on machines without one: its tensors are in CPU memory and are recognised by their storage.

`to("cuda:0")` and `device="cuda:0"` give tensors of the simulated GPU. `device` reports the GPU for them and for all results
computed from them; `cpu()` copies them back. A function that gets tensors of both devices raises, as with a real GPU, and so
does NumPy.

Limits: it sees only the thread that entered the mode. It does not see operations inside torch's C++ code, above all
derivatives of torch functions, whose results stay on the device of their inputs. gloo replaces NCCL.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter

from rowmill.train import dense

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

GPU = torch.device("cuda", 0)
NAME = "a stand-in"

# Each access to these returns another object, equal to the others.
_DEVICE, _IS_CUDA = Tensor.device.__get__, Tensor.is_cuda.__get__
_MOVES = (Tensor.to, Tensor.cpu)
_BETWEEN = (
    Tensor.copy_,
    Tensor.data.__set__,
    torch._has_compatible_shallow_copy_type,
)
"""Functions that accept tensors of both devices."""


class StandIn(TorchFunctionMode):
    """Tracks which tensors are on the simulated GPU."""

    def __init__(self) -> None:
        super().__init__()
        # A weak reference keeps the address of a storage from being reused.
        self._storages: dict[int, StorageWeakRef] = {}

    def holds(self, of: Tensor | torch.UntypedStorage) -> bool:
        """Whether a tensor is on the simulated GPU."""
        storage = of.untyped_storage() if isinstance(of, Tensor) else of
        return storage._cdata in self._storages

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func == _DEVICE:
            return GPU if self.holds(args[0]) else func(*args)
        if func == _IS_CUDA:
            return self.holds(args[0])
        if func in _MOVES:
            return self._move(func, *args, **(kwargs or {}))
        given = [one for one in tree_iter((args, kwargs)) if isinstance(one, Tensor)]
        there = any(self.holds(tensor) for tensor in given)
        if func is Tensor.numpy and there:
            raise TypeError("numpy was given a tensor of the GPU")
        # Scalars may be combined with tensors of either device.
        if func not in _BETWEEN and len({self.holds(one) for one in given if one.dim() > 0}) > 1:
            raise RuntimeError(f"{func.__name__} was given tensors of the CPU and of the GPU")
        settings = dict(kwargs or {})
        if settings.get("device") is not None:
            there = torch.device(settings["device"]).type == "cuda"
            settings["device"] = "cpu"
        made = func(*args, **settings)
        if there and func not in _BETWEEN:
            for one in tree_iter(made):
                if isinstance(one, Tensor):
                    self._take(one)
        return made

    def _move(self, func: Any, tensor: Tensor, *rest: Any, device: Any = None, **more: Any) -> Any:
        if rest and isinstance(rest[0], Tensor):
            like, *rest = rest
            rest = [GPU if self.holds(like) else "cpu", like.dtype, *rest]
        named = [one for one in (*rest, device) if isinstance(one, (str, torch.device))]
        others = [one for one in rest if not isinstance(one, (str, torch.device))]
        if func is Tensor.cpu:
            named = ["cpu"]
        was = self.holds(tensor)
        there = torch.device(named[0]).type == "cuda" if named else was
        made = tensor.to("cpu", *others, **more)
        if there != was and made.data_ptr() == tensor.data_ptr():
            made = made.clone()
        if there:
            self._take(made)
        return made

    def _take(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self._storages[storage._cdata] = StorageWeakRef(storage)


@contextmanager
def stand_in() -> Generator[StandIn]:
    """Within this context the machine has one GPU and NCCL, and a processor without bfloat16 products."""
    begin, autocast = dist.init_process_group, torch.autocast
    location_tag = torch.serialization.location_tag

    def begin_over_gloo(backend: str, **settings: Any) -> None:
        begin(backend.replace("nccl", "gloo"), **settings)

    def autocast_on_the_cpu(device: str, dtype: torch.dtype, *, enabled: bool) -> torch.autocast:
        assert device == "cuda"
        return autocast("cpu", dtype, enabled=enabled)

    def location_in_a_file(storage: torch.UntypedStorage) -> str:
        return str(GPU) if gpu.holds(storage) else location_tag(storage)

    with pytest.MonkeyPatch.context() as patch, StandIn() as gpu:
        patch.setattr(torch.serialization, "location_tag", location_in_a_file)
        patch.setattr(dist, "init_process_group", begin_over_gloo)
        patch.setattr(dist, "is_nccl_available", lambda: True)
        patch.setattr(torch, "autocast", autocast_on_the_cpu)
        patch.setattr(torch.cuda, "device_count", lambda: 1)
        patch.setattr(torch.cuda, "get_device_name", lambda _: NAME)
        patch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
        patch.setattr(torch.cuda, "set_device", lambda _: None)
        patch.setattr(dense, "multiplies_bf16", lambda: False)
        yield gpu
