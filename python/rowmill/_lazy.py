"""Lazy imports: importing a package does not import torch before one of its names is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def lazy(
    package: str, names: Mapping[str, Iterable[str]], modules: Iterable[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make `__getattr__` and `__dir__` of a package.

    Args:
        package: Name of the package.
        names: For each module of the package, the names that the package exports from it.
        modules: Modules and sub-packages that the package exports under their own names.
    """
    homes = {name: module for module, given in names.items() for name in given}
    inside = frozenset(modules)

    def get(name: str) -> Any:
        if name in inside:
            return import_module(f"{package}.{name}")
        if name in homes:
            return getattr(import_module(f"{package}.{homes[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted({*homes, *inside})
