"""Dispatch by device: Triton's implementation for tensors on a GPU, else the CPU's."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from rowmill.errors import InvalidInput
from rowmill.ops.exchange.layout import Unique

if TYPE_CHECKING:
    from collections.abc import Callable

_P = ParamSpec("_P")
_R = TypeVar("_R")


def by_device(on_cpu: Callable[_P, _R]) -> Callable[_P, _R]:
    """Extend a CPU operator: for tensors on a GPU, call the operator of the same name in `triton`."""

    @wraps(on_cpu)
    def operator(*arguments: _P.args, **settings: _P.kwargs) -> _R:
        first: Any = arguments[0]
        tensor = first.ids if isinstance(first, Unique) else first
        run = _on_gpu(on_cpu.__name__) if tensor.is_cuda else on_cpu
        return run(*arguments, **settings)

    return operator


def _on_gpu(name: str) -> Callable[..., Any]:
    try:
        from rowmill.ops.exchange import triton
    except ModuleNotFoundError as error:
        raise InvalidInput(
            "exchanges of tensors on a GPU need Triton: pip install triton, or pass CPU tensors"
        ) from error
    return getattr(triton, name)
