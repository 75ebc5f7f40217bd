"""Linear layers of programs, by the faster of torch's two libraries.

Where `rowmill.ops.linear` says that oneDNN is faster, it takes the place of torch's own library, MKL, for large layers.
torch itself calls oneDNN only in compiled graphs. Weights do not change while a program is served, so they are put into the
order of oneDNN once. In every call, that takes 20 us of 157 for 64 rows x 415 x 256, and 0.1 ms of 2.1 for 1,024 rows (Zen 4).

Shapes: B rows of a batch, I inputs, O outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from rowmill.ops.linear import PRODUCTS_MIN, onednn_is_faster

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node


def use_faster_linears(program: GraphModule) -> GraphModule:
    """Replace float32 linear layers of a program, each with the ReLU behind it, by calls of the faster library.

    The program then also holds a copy of each of their weights, in the order of oneDNN. Results differ by rounding. Where torch's
    own library is the faster one, they do not: a ReLU then overwrites its input, in place of writing to other memory.
    """
    is_onednn = onednn_is_faster()
    graph = program.graph
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default):
        relu = _relu_behind(node)
        if not is_onednn and relu is not None:
            relu.target = torch.ops.aten.relu_.default
        weight = cast("Node", node.args[1])
        if not is_onednn or not _is_float32(program, weight):
            continue
        with graph.inserting_before(node):
            packed = graph.get_attr(_packed(program, weight))
            bias = node.args[2] if len(node.args) > 2 else None
            arguments = (node.args[0], weight, packed, bias, relu is not None)
            layer = graph.call_function(linear_layer, arguments)
        for replaced in (relu, node):
            if replaced is not None:
                replaced.replace_all_uses_with(layer)
                graph.erase_node(replaced)
    program.recompile()
    return program


def linear_layer(
    x_BI: Tensor, weight_OI: Tensor, packed_OI: Tensor, bias_O: Tensor | None, relu: bool
) -> Tensor:
    """`x W^T + b`, `[B, O]`, without its negative values if `relu`; `packed` is the weight in the order of oneDNN."""
    if x_BI.dim() == 2 and x_BI.shape[0] * weight_OI.numel() >= PRODUCTS_MIN:
        activation = "relu" if relu else "none"
        return torch.ops.mkldnn._linear_pointwise.default(
            x_BI, packed_OI, bias_O, activation, [], ""
        )
    out_BO = functional.linear(x_BI, weight_OI, bias_O)
    return out_BO.relu_() if relu else out_BO


def _packed(program: GraphModule, weight: Node) -> str:
    """The name of a weight in the order of oneDNN, which is added to the constants of the program."""
    name = f"packed_{weight.target}".replace(".", "_")
    if not hasattr(program, name):
        weight_OI = _constant(program, weight).detach()
        packed_OI = torch.ops.mkldnn._reorder_linear_weight.default(weight_OI, None)
        program.register_buffer(name, packed_OI, persistent=False)
    return name


def _is_float32(program: GraphModule, weight: Node) -> bool:
    """Whether a weight is a constant of the program, of this type."""
    return weight.op == "get_attr" and _constant(program, weight).dtype == torch.float32


def _constant(program: GraphModule, node: Node) -> Tensor:
    value: Any = program
    for name in str(node.target).split("."):
        value = getattr(value, name)
    return value


def _relu_behind(node: Node) -> Node | None:
    """The ReLU that is all that uses a value."""
    (user, *others) = node.users
    relus = (torch.ops.aten.relu.default, torch.ops.aten.relu_.default)
    return user if not others and user.op == "call_function" and user.target in relus else None
