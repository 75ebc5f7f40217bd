"""KeyedJaggedTensors as inputs of an exported module: a request brings ids and offsets for each key.

In a graph, a KeyedJaggedTensor would be cut by key at places that depend on data, so that its collections could not be traced.
TorchRec is not imported here.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rowmill.errors import InvalidInput
from rowmill.nn.keyed import class_beside, is_keyed, ragged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Example = tuple[Any, ...] | Mapping[str, Any]


def per_key(module: nn.Module, examples: Sequence[Example]) -> tuple[nn.Module, Sequence[Example]]:
    """A module that takes tensors per key, and its examples; both unchanged where no example has a KeyedJaggedTensor.

    An argument X becomes a dict of keys. Each key has `values` (ids, int64 [N]), `offsets` (int64 [B + 1], from 0 to N) and,
    where X has weights, `weights` (float32 [N]).

    Raises:
        InvalidInput: The keys of an argument differ between examples, or have batch sizes of their own.
    """
    signature = inspect.signature(module.forward)
    found: list[dict[str, Any]] = []
    for example in examples:
        named = isinstance(example, Mapping)
        bound = signature.bind(**example) if named else signature.bind(*example)
        arguments = bound.arguments
        found.append({name: value for name, value in arguments.items() if is_keyed(value)})
    if not any(found):
        return module, examples
    keys = [{name: list(value.keys()) for name, value in keyed.items()} for keyed in found]
    if any(other != keys[0] for other in keys):
        raise InvalidInput(
            f"the examples have KeyedJaggedTensors with different keys, {keys}: give all examples the same keys in one order"
        )
    plain: list[Example] = [
        {name: _parts(value) for name, value in example.items()}
        if isinstance(example, Mapping)
        else tuple(_parts(value) for value in example)
        for example in examples
    ]
    return PerKey(module, signature, found[0]), plain


class PerKey(nn.Module):
    """A module whose KeyedJaggedTensors are made of tensors per key.

    Args:
        module: The module.
        signature: Of its forward, which is that of this one.
        keyed: By argument, a KeyedJaggedTensor like those that it takes.
    """

    def __init__(
        self, module: nn.Module, signature: inspect.Signature, keyed: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.module = module
        self._classes: dict[str, tuple[Any, Any]] = {
            name: (type(value), class_beside(value, "JaggedTensor"))
            for name, value in keyed.items()
        }

        def forward(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            for name in self._classes:
                bound.arguments[name] = self._made(name, bound.arguments[name])
            return self.module(*bound.args, **bound.kwargs)

        # torch.export names inputs by the signature.
        forward.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
        self.forward = forward

    def _made(self, name: str, value: Any) -> Any:
        keyed, jagged = self._classes[name]
        parts: list[dict[str, Tensor]] = list(value.values())
        lengths = [part["offsets"][1:] - part["offsets"][:-1] for part in parts]
        weights = [part["weights"] for part in parts if "weights" in part]
        ends = [part["offsets"][-1:] for part in parts]
        offsets = [parts[0]["offsets"]]
        for number, part in enumerate(parts[1:], 1):
            offsets.append(part["offsets"][1:] + torch.stack(ends[:number]).sum(0))
        return keyed(
            keys=list(value),
            values=torch.cat([part["values"] for part in parts]),
            weights=torch.cat(weights) if weights else None,
            lengths=torch.cat(lengths),
            offsets=torch.cat(offsets),
            stride=parts[0]["offsets"].shape[0] - 1,
            # With both of these, nothing is cut at a place that depends on data.
            length_per_key=[part["values"].shape[0] for part in parts],
            jt_dict={
                key: jagged(
                    values=part["values"],
                    weights=part.get("weights"),
                    lengths=length,
                    offsets=part["offsets"],
                )
                for (key, part), length in zip(value.items(), lengths, strict=True)
            },
        )


def definitions() -> dict[Any, Callable[..., Tensor]]:
    """TorchRec's operators that make offsets of lengths and regroup pooled vectors, in plain torch; empty without TorchRec."""
    try:
        return {
            torch.ops.fbgemm.asynchronous_complete_cumsum.default: _complete_cumsum,
            torch.ops.fbgemm.permute_pooled_embs.default: _permuted,
            torch.ops.fbgemm.permute_pooled_embs_auto_grad.default: _permuted,
        }
    except AttributeError:
        return {}


def _complete_cumsum(lengths: Tensor) -> Tensor:
    return nn.functional.pad(lengths.cumsum(-1, dtype=lengths.dtype), (1, 0))


def _permuted(
    pooled: Tensor, offsets: Tensor, order: Tensor, _inverse_offsets: Tensor, _inverse: Tensor
) -> Tensor:
    """Blocks of columns in another order.

    Args:
        pooled: float32 [B, D].
        offsets: First column of each block, and D at the end: int64 [blocks + 1].
        order: For each block of the result, its number among the given ones: int64 [blocks].
    """
    lengths = offsets.diff()[order]
    # A column of the result lies this much further left or right in `pooled`.
    shifts = offsets[order] - (lengths.cumsum(0) - lengths)
    width = pooled.shape[1]
    columns = torch.arange(width, device=pooled.device)
    shifts = shifts.to(pooled.device).repeat_interleave(lengths, output_size=width)
    return pooled.index_select(1, columns + shifts)


def _parts(value: Any) -> Any:
    """The tensors of each key of a KeyedJaggedTensor; anything else as it is."""
    if not is_keyed(value):
        return value
    batch = ragged(value, weighted=value.weights_or_none() is not None)
    found: dict[str, dict[str, Tensor]] = {}
    for number, key in enumerate(batch.features):
        ids, offsets = batch.bags(key)
        found[key] = {"values": ids, "offsets": offsets}
        if batch.weights is not None:
            start = int(batch.offsets[number * batch.batch_size])
            found[key]["weights"] = batch.weights[start : start + len(ids)]
    return found
