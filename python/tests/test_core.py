"""The installed package carries the binding: one build must serve every Python from 3.11 on.

A binding built without the stable ABI would load here and fail on the next minor version, so the
name of the loaded file is checked besides the import.
"""

from pathlib import Path

from rowmill import _core


def test_binding_loads_and_is_built_for_the_stable_abi() -> None:
    assert _core.__file__ is not None
    assert Path(_core.__file__).name == "_core.abi3.so"
