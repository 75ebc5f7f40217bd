"""Packages whose names are imported on first use, so that importing a package does not import torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def lazy(
    package: str, names: Mapping[str, Iterable[str]], modules: Iterable[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package.

    Args:
        package: Its name.
        names: The names that each of its modules gives to the package.
        modules: Modules and packages in it that are names of the package themselves.
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
