"""Linear layers of exported programs, by the faster library."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from rowmill.serve import linears
from rowmill.serve.linears import use_faster_linears


@pytest.fixture(autouse=True)
def _on_any_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linears, "onednn_is_faster", lambda: True)


class Layers(nn.Module):
    """A large and a small layer with ReLU, one without, one used twice, one without bias, and one over a third dimension."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.large = nn.Linear(300, 200)
        self.small = nn.Linear(200, 4)
        self.twice = nn.Linear(4, 4)
        self.plain = nn.Linear(4, 3, bias=False)
        self.wide = nn.Linear(3, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        large = self.large(x).relu()
        small = self.small(large).relu()
        twice = self.twice(self.twice(small))
        unused = self.twice(small)
        return self.plain(twice.unsqueeze(1)), unused.relu() + unused, self.wide(x[:, :3].double())


def _program() -> GraphModule:
    batch = {0: torch.export.Dim("batch", min=1)}
    program = torch.export.export(
        Layers().eval(), (torch.rand(8, 300),), dynamic_shapes=(batch,)
    ).module(check_guards=False)
    assert isinstance(program, GraphModule)
    return program


def test_results_differ_by_rounding_alone() -> None:
    before, after = _program(), use_faster_linears(_program())
    with torch.inference_mode():
        for rows in (1, 2, 17, 64, 300):
            x = torch.rand(rows, 300) - 0.5
            for expected, found in zip(before(x), after(x), strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
                if rows * 300 * 200 < linears.PRODUCTS_MIN:
                    assert torch.equal(found, expected), "small products are computed as before"


def test_layers_and_the_relus_behind_them_are_replaced() -> None:
    targets = [node.target for node in use_faster_linears(_program()).graph.nodes]
    assert targets.count(linears.linear_layer) == 6
    assert targets.count(torch.ops.aten.linear.default) == 1, "float64 is left"
    assert targets.count(torch.ops.aten.relu.default) == 1, "a value that is used twice is kept"


def test_a_weight_is_packed_once() -> None:
    packed = {name for name, _ in use_faster_linears(_program()).named_buffers()}
    layers = ("large", "small", "twice", "plain")
    assert packed == {f"packed_{layer}_weight" for layer in layers}


def test_only_relus_change_where_torch_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linears, "onednn_is_faster", lambda: False)
    before, after = _program(), use_faster_linears(_program())
    in_place = {torch.ops.aten.relu.default: torch.ops.aten.relu_.default}
    changed = [
        (old.target, new.target)
        for old, new in zip(before.graph.nodes, after.graph.nodes, strict=True)
        if old.target != new.target
    ]
    assert changed == list(in_place.items()) * 2, (
        "the third ReLU is over a value that is used twice"
    )
    with torch.inference_mode():
        x = torch.rand(17, 300) - 0.5
        for expected, found in zip(before(x), after(x), strict=True):
            assert torch.equal(found, expected)


def test_large_products_call_the_other_library(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, str]] = []

    def counted(x: Tensor, weight: Tensor, bias: Tensor, activation: str, *rest: object) -> Tensor:
        assert weight.is_mkldnn
        calls.append((x.shape[0], activation))
        out = torch.nn.functional.linear(x, weight.to_dense(), bias)
        return out.relu() if activation == "relu" else out

    program = use_faster_linears(_program())
    library = SimpleNamespace(_linear_pointwise=SimpleNamespace(default=counted))
    monkeypatch.setattr(torch.ops, "mkldnn", library)
    with torch.inference_mode():
        for rows in (69, 70):
            program(torch.rand(rows, 300))
    assert calls == [(70, "relu")], "70 * 300 * 200 is the first product of 2^22"
