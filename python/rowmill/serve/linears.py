"""Linear layers of programs, by the faster of torch's two libraries.

Where `rowmill.ops.linear` says that oneDNN is faster, it takes the place of torch's own library, MKL, for large layers.
torch itself calls oneDNN only in compiled graphs.

Shapes: B rows of a batch, I inputs, O outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from rowmill.ops.linear import PRODUCTS_MIN, onednn_is_faster

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import GraphModule, Node


def use_faster_linears(program: GraphModule) -> GraphModule:
    """Replace float32 linear layers of a program, each with the ReLU behind it, by calls of the faster library.

    Results differ by rounding. Where torch's own library is the faster one, they do not: a ReLU then overwrites its input, in
    place of writing to other memory.
    """
    is_onednn = onednn_is_faster()
    graph = program.graph
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default):
        relu = _relu_behind(node)
        if not is_onednn and relu is not None:
            relu.target = torch.ops.aten.relu_.default
        if not is_onednn or not _is_float32(program, node.args[1]):
            continue
        with graph.inserting_before(node):
            bias = node.args[2] if len(node.args) > 2 else None
            layer = graph.call_function(
                linear_layer, (node.args[0], node.args[1], bias, relu is not None)
            )
        for replaced in (relu, node):
            if replaced is not None:
                replaced.replace_all_uses_with(layer)
                graph.erase_node(replaced)
    program.recompile()
    return program


def linear_layer(x_BI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, relu: bool) -> Tensor:
    """`x W^T + b`, `[B, O]`, without its negative values if `relu`."""
    if x_BI.dim() == 2 and x_BI.shape[0] * weight_OI.numel() >= PRODUCTS_MIN:
        activation = "relu" if relu else "none"
        return torch.ops.mkldnn._linear_pointwise.default(
            x_BI, weight_OI, bias_O, activation, [], ""
        )
    out_BO = functional.linear(x_BI, weight_OI, bias_O)
    return out_BO.relu_() if relu else out_BO


def _is_float32(program: GraphModule, weight: object) -> bool:
    """Whether a weight is a constant of the program, of this type."""
    if not isinstance(weight, torch.fx.Node) or weight.op != "get_attr":
        return False
    owner: object = program
    for name in str(weight.target).split("."):
        owner = getattr(owner, name)
    return isinstance(owner, torch.Tensor) and owner.dtype == torch.float32


def _relu_behind(node: Node) -> Node | None:
    """The ReLU that is all that uses a value."""
    (user, *others) = node.users
    relus = (torch.ops.aten.relu.default, torch.ops.aten.relu_.default)
    return user if not others and user.op == "call_function" and user.target in relus else None
