"""The installed package contains the binding, in one build for every Python from 3.11 on.

A binding built without the stable ABI would load here and fail on the next minor version, so the test
also checks the name of the loaded file.
"""

from pathlib import Path

from rowmill import _core


def test_binding_loads_and_is_built_for_the_stable_abi() -> None:
    assert _core.__file__ is not None
    assert Path(_core.__file__).name == "_core.abi3.so"
