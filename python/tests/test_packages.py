"""`import rowmill` makes all public names available, and imports modules only on first use.

What could break: a public package that needs its own import statement, a listed name that does not exist, torch imported by
the command line's help, and frameworks imported without use.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import rowmill

PACKAGE = Path(rowmill.__file__).parent
PUBLIC = sorted(
    path.parent.name for path in PACKAGE.glob("*/__init__.py") if path.parent.name[0] != "_"
)
LAZY = (
    "rowmill",
    "rowmill.config",
    "rowmill.ctr",
    "rowmill.gnn",
    "rowmill.kge",
    "rowmill.optim",
    "rowmill.saved",
    "rowmill.store",
)


def in_a_new_interpreter(program: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_importing_rowmill_is_light_and_gives_every_public_package() -> None:
    assert {"ctr", "distributed", "gnn", "integrations", "kge", "nn", "store"} <= set(PUBLIC)
    loaded = in_a_new_interpreter(
        "import sys, rowmill\n"
        "large = {'torch', 'numpy', 'pyarrow', 'torchmetrics', 'rich', 'pykeen', 'torch_geometric'}\n"
        "assert not large & set(sys.modules), large & set(sys.modules)\n"
        f"names = {PUBLIC!r}\n"
        "assert set(names) <= set(dir(rowmill)), set(names) - set(dir(rowmill))\n"
        "for name in names:\n"
        "    assert getattr(rowmill, name).__name__ == f'rowmill.{name}'\n"
        "print(*sorted({'pykeen', 'torch_geometric', 'torchrec'} & set(sys.modules)))"
    )
    assert loaded == "\n"


def test_settings_optimizers_and_remote_checkpoints_need_no_torch() -> None:
    in_a_new_interpreter(
        "import sys\n"
        "from rowmill.config import SECTIONS\n"
        "from rowmill.optim import SGD\n"
        "from rowmill.store.remote import checkpoints\n"
        "assert {'kge', 'gnn', 'generate'} <= set(SECTIONS)\n"
        "assert 'torch' not in sys.modules"
    )


@pytest.mark.parametrize("package", LAZY)
def test_every_listed_name_exists(package: str) -> None:
    module = import_module(package)
    assert sorted(module.__all__) == dir(module)
    for name in module.__all__:
        assert getattr(module, name) is not None, name
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        module.nothing  # noqa: B018


def test_no_module_hides_a_name_of_its_package() -> None:
    """Importing a module sets it as an attribute of its package, and hides a function of the same name."""
    hidden = [
        f"{package}.{name}"
        for package in LAZY
        for name in import_module(package).__all__
        for path in [PACKAGE.joinpath(*package.split(".")[1:], name)]
        if path.is_dir() or path.with_suffix(".py").exists()
        if getattr(import_module(package), name) is not import_module(f"{package}.{name}")
    ]
    assert hidden == []
