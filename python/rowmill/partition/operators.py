"""The kinds of operators of a partition: lookups, CPU-only operators, seeds of the dense half, and all others."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection


class Kind(Enum):
    """The kind of an operator, on which the rules depend."""

    INPUT = "input"
    """An input of the model: the CPU half receives it with the request."""
    LOOKUP = "lookup"
    """Reads rows of a table: stays with the tables, on the CPU."""
    CPU_ONLY = "CPU-only"
    """Sorts, or has results whose sizes depend on data: slow or impossible on an accelerator."""
    SEED = "seed"
    """Does the arithmetic that the dense half exists for."""
    PLAIN = "plain"
    """May run on either side."""


LOOKUPS = frozenset(
    {
        "rowmill::lookup",
        "aten::embedding",
        "aten::embedding_bag",
        "aten::_embedding_bag",
        "aten::_embedding_bag_forward_only",
    }
)

CPU_ONLY = frozenset(
    {
        "aten::argsort",
        "aten::bincount",
        "aten::bucketize",
        "aten::kthvalue",
        "aten::searchsorted",
        "aten::segment_reduce",
        "aten::sort",
        "aten::topk",
    }
)

SEEDS = frozenset(
    {
        "aten::_native_multi_head_attention",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_transformer_encoder_layer_fwd",
        "aten::addbmm",
        "aten::addmm",
        "aten::addmv",
        "aten::baddbmm",
        "aten::bilinear",
        "aten::bmm",
        "aten::conv1d",
        "aten::conv2d",
        "aten::conv3d",
        "aten::convolution",
        "aten::einsum",
        "aten::gru",
        "aten::linear",
        "aten::lstm",
        "aten::matmul",
        "aten::mm",
        "aten::mv",
        "aten::rnn_relu",
        "aten::rnn_tanh",
        "aten::scaled_dot_product_attention",
        "rowmill::interaction",
    }
)


@dataclass(frozen=True)
class Operators:
    """The kinds of operators, by names such as "aten::linear".

    Attributes:
        seeds: Operators that run in the dense half.
        cpu_only: Operators that never do.
    """

    seeds: frozenset[str] = SEEDS
    cpu_only: frozenset[str] = CPU_ONLY

    @classmethod
    def with_registered(
        cls, seeds: Collection[str] = (), cpu_only: Collection[str] = ()
    ) -> Operators:
        """The built-in kinds, overridden by the operators that the caller names."""
        return cls((SEEDS - set(cpu_only)) | set(seeds), (CPU_ONLY - set(seeds)) | set(cpu_only))

    def kind(self, target: Any) -> Kind:
        """The kind of a target of an FX node."""
        name = name_of(target)
        if name in LOOKUPS:
            return Kind.LOOKUP
        if name in self.cpu_only:
            return Kind.CPU_ONLY
        return Kind.SEED if name in self.seeds else Kind.PLAIN


def name_of(target: Any) -> str:
    """The name of an operator without its overload, such as "aten::linear"."""
    schema = schema_of(target)
    return getattr(target, "__name__", str(target)) if schema is None else schema.name


def schema_of(target: Any) -> Any:
    """The schema of an operator of torch; None for other functions."""
    return getattr(target, "_schema", None)
