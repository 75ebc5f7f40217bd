"""The stub of the binding matches the built module in names, properties and parameters."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import rowmill
from rowmill import _core

# Special methods whose presence is compared. Types have the others as slots, or have them all.
SPECIAL = ("__iter__", "__next__", "__version__")

STUB = ast.parse((Path(rowmill.__file__).parent / "_core.pyi").read_text())


def parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def built(holder: Any) -> dict[str, Any]:
    """Public names, with the parameters of callables; properties map to None."""
    names = {
        name: value
        for name, value in vars(holder).items()
        if not name.startswith("_") or name in SPECIAL
    }
    out: dict[str, Any] = {}
    for name, value in names.items():
        if isinstance(value, type):
            out[name] = built(value)
        elif callable(value) or isinstance(value, staticmethod):
            out[name] = parameters(getattr(holder, name))
        else:
            out[name] = None
    return out


def declared(body: list[ast.stmt]) -> dict[str, Any]:
    """The same from the stub, without its type aliases, which the module lacks."""
    out: dict[str, Any] = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            out[node.name] = declared(node.body)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if "TypeAlias" in ast.unparse(node.annotation):
                continue
            out[node.target.id] = None
        elif isinstance(node, ast.FunctionDef):
            if node.name.startswith("_") and node.name not in SPECIAL:
                continue
            is_property = any(
                isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list
            )
            args = [arg.arg for arg in [*node.args.args, *node.args.kwonlyargs]]
            out[node.name] = None if is_property else [arg for arg in args if arg != "self"]
    return out


def test_the_stub_declares_what_the_module_has() -> None:
    assert declared(STUB.body) == built(_core)


def test_versions_are_the_same() -> None:
    assert rowmill.__version__ == _core.__version__
