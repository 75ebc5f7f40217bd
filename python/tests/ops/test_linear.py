"""The linear layer of the models compared with torch's.

What could break: a missing or transposed gradient; oneDNN used where it must not be (graphs, other dtypes), or never used.
The two libraries round differently, so values agree up to rounding.
"""

import pytest
import torch
from torch import Tensor

from rowmill.ctr.models import mlp
from rowmill.ops import linear as module
from rowmill.ops.linear import linear, onednn_is_faster

LARGE, SMALL = (512, 128, 100), (7, 5, 3)


@pytest.fixture(autouse=True)
def _on_any_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        monkeypatch.setattr(module, "onednn_is_faster", lambda: True)


def inputs(shape: tuple[int, int, int], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    batch, ins, outs = shape
    torch.manual_seed(5)
    tensors = [torch.rand(batch, ins), torch.rand(outs, ins) - 0.5, torch.rand(outs)]
    return [tensor.to(dtype).requires_grad_() for tensor in tensors]


def is_fast(out: Tensor) -> bool:
    return type(out.grad_fn).__name__ == "_LinearBackward"


@pytest.mark.parametrize("shape", [LARGE, (1000, 479, 33), (4096, 1024, 1)])
def test_large_layers_have_the_values_and_gradients_of_torch(shape: tuple[int, int, int]) -> None:
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this build of torch lacks oneDNN")
    tensors, exact = inputs(shape), inputs(shape, torch.float64)
    out, expected = linear(*tensors), torch.nn.functional.linear(*exact)
    assert is_fast(out)
    torch.testing.assert_close(out, expected.float(), atol=1e-4, rtol=1e-5)
    gradient = torch.rand_like(out) - 0.5
    got = torch.autograd.grad(out, tensors, gradient)
    wanted = torch.autograd.grad(expected, exact, gradient.double())
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other.float(), atol=1e-3, rtol=1e-4)


def test_second_derivatives_equal_torchs() -> None:
    results: list[tuple[Tensor, ...]] = []
    for layer in (linear, torch.nn.functional.linear):
        tensors = inputs(LARGE)
        out = layer(*tensors).square().mean()
        first = torch.autograd.grad(out, tensors, create_graph=True)
        results.append(torch.autograd.grad(sum(part.square().sum() for part in first), tensors))  # pyright: ignore[reportCallIssue]
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_inputs_without_requires_grad_get_no_gradient() -> None:
    x, weight, bias = inputs(LARGE)
    linear(x.detach(), weight, bias).sum().backward()
    assert x.grad is None
    assert weight.grad is not None
    assert bias.grad is not None


def test_unsupported_inputs_use_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_fast(linear(*inputs(SMALL)))
    assert not is_fast(linear(*inputs(LARGE, torch.float64)))
    x, weight, bias = inputs(LARGE)
    assert not is_fast(linear(x.view(2, 256, 128), weight, bias))
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight, bias).dtype == torch.bfloat16
    monkeypatch.setattr(module, "onednn_is_faster", lambda: False)
    assert not is_fast(linear(x, weight, bias))


@pytest.mark.parametrize(
    ("capability", "is_of_intel", "faster"),
    [("AVX2", False, False), ("AVX512", False, True), ("AVX512", True, False)],
)
def test_onednn_is_faster_with_avx512_that_mkl_does_not_use(
    capability: str, is_of_intel: bool, faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(module, "_is_of_intel", lambda: is_of_intel)
    assert onednn_is_faster.__wrapped__() is faster
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert onednn_is_faster.__wrapped__() is (capability == "AVX512")
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not onednn_is_faster.__wrapped__()


def test_exported_graphs_contain_torchs_own_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRODUCTS_MIN", 1)
    layers, x = mlp(5, [4, 3]), torch.rand(7, 5)
    exported = torch.export.export(layers, (x,))
    assert "aten.linear.default" in str(exported.graph)
    torch.testing.assert_close(exported.module()(x), layers(x))
    compiled = torch.compile(layers, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layers(x))
