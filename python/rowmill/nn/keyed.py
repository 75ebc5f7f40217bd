"""TorchRec's KeyedJaggedTensor as a batch.

TorchRec is not imported here. Inputs are recognised by their methods, and the output classes are looked up in the module
that defines the class of the input.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rowmill.errors import InvalidInput
from rowmill.nn.embedding_bag import as_long
from rowmill.nn.ragged import RaggedBatch

if TYPE_CHECKING:
    from torch import Tensor

_KJT = ("keys", "values", "offsets", "lengths", "stride", "to_dict", "weights_or_none")


def is_keyed(value: object) -> bool:
    """Whether a value is a KeyedJaggedTensor."""
    return all(callable(getattr(value, method, None)) for method in _KJT)


def ragged(features: Any, *, weighted: bool) -> RaggedBatch:
    """The ids of a KeyedJaggedTensor, whose keys have one batch size, with weights where asked for."""
    if not is_keyed(features):
        raise InvalidInput(
            f"features must be a KeyedJaggedTensor, got a {type(features).__name__}; make one with "
            "KeyedJaggedTensor.from_lengths_sync(keys, values, lengths)"
        )
    varies = getattr(features, "variable_stride_per_key", None)
    if callable(varies) and varies():
        raise InvalidInput(
            "features have a different batch size per key (variable_stride_per_key), which is not supported: give all keys the same batch size"
        )
    weights: Tensor | None = features.weights_or_none() if weighted else None
    if weighted and weights is None:
        raise InvalidInput(
            "is_weighted is True, but the features have no weights: pass weights to the KeyedJaggedTensor"
        )
    values, offsets = features.values(), features.offsets()
    return RaggedBatch(
        tuple(features.keys()),
        as_long(values, "values").to(values.device),
        as_long(offsets, "offsets").to(values.device),
        None if weights is None else weights.float(),
    )


def class_beside(features: Any, name: str) -> Any:
    """Find a class by name in the module that defines the class of `features` or one of its base classes."""
    for class_ in type(features).__mro__:
        found = getattr(sys.modules.get(class_.__module__), name, None)
        if found is not None:
            return found
    raise InvalidInput(
        f"{type(features).__module__}, which defines {type(features).__name__}, has no {name}; pass TorchRec's "
        "KeyedJaggedTensor"
    )
