"""A missing package of an extra: the error names the package and the extra; other errors stay as they are.

The same for parts that need a newer torch.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import rowmill
from rowmill._extras import extra
from rowmill._torch import torch_since
from rowmill.errors import ExtraMissing, RowmillError, TorchTooOld
from rowmill.optim import SGD

if TYPE_CHECKING:
    from pathlib import Path


def test_a_missing_package_names_the_extra() -> None:
    with pytest.raises(ExtraMissing) as caught, extra("train"):
        import no_such_package.part  # pyright: ignore[reportMissingImports]  # noqa: F401
    assert str(caught.value) == "no_such_package is not installed: pip install 'rowmill[train]'"
    assert caught.value.name == "no_such_package"
    assert isinstance(caught.value, RowmillError)


def test_other_errors_of_the_imports_stay() -> None:
    with pytest.raises(ImportError, match="cannot import name") as caught, extra("train"):
        from json import no_such_name  # pyright: ignore[reportAttributeAccessIssue]  # noqa: F401
    assert type(caught.value) is ImportError


def test_a_part_that_needs_a_newer_torch_names_both_versions() -> None:
    with pytest.raises(TorchTooOld) as caught, torch_since("99.10", "time travel"):
        raise AssertionError("the block must not run")
    assert str(caught.value) == f"time travel needs torch 99.10 or newer, got {torch.__version__}"
    with torch_since("2.4", "the rest"):
        pass


_WITHOUT_EXTRA = """
import sys
from rowmill.cli.command import main

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
for arguments in {commands!r}:
    if code := main(arguments):
        sys.exit(f"{{arguments}}: {{code}}")
"""


def test_commands_for_copies_and_versions_need_no_extra(tmp_path: Path) -> None:
    store, url = tmp_path / "store", (tmp_path / "copy").as_uri()
    with rowmill.open(store, memory="16MiB") as opened:
        opened.table("t", dim=4, optimizer=SGD(lr=0.1)).put([1], np.ones((1, 4), np.float32))
        for name in ("first", "second"):
            opened.checkpoint(version=rowmill.NewVersion(name=name, keep=2))
    commands = [
        ["push", str(store), url],
        ["checkpoints", url],
        ["restore", url, str(tmp_path / "restored")],
        ["versions", str(store)],
        ["rollback", str(store), "first"],
    ]
    packages = {"pyarrow", "torchmetrics", "rich", "networkx", "safetensors", "tensorboard"}
    script = _WITHOUT_EXTRA.format(packages=packages, commands=commands)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
