"""A missing package of an extra: the error names the package and the extra; other errors stay as they are.

The same for parts that need a newer torch.
"""

import pytest
import torch

from rowmill._extras import extra
from rowmill._torch import torch_since
from rowmill.errors import ExtraMissing, RowmillError, TorchTooOld


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
