"""The fused dot interaction compared with its definition in plain torch.

What could break: a pair at the wrong position, a gradient missing for one vector of a pair, widths that are not a multiple of
a register, a batch split over threads, non-contiguous inputs, graphs that must record the operator. Sums have another order
than torch's, so values agree up to rounding. Results do not depend on the number of threads.
"""

from collections.abc import Generator

import pytest
import torch
from torch import Tensor, nn

from rowmill.ctr.models import DLRM, FeatureBags
from rowmill.errors import InvalidInput
from rowmill.ops.interaction import interaction, reference

SHAPES = [(1, 1, 1), (3, 2, 5), (2, 3, 16), (5, 8, 64), (301, 26, 128), (7, 31, 33), (4, 0, 6)]
EMPTY = [(0, 3, 4), (3, 2, 0), (0, 0, 0)]


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Generator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def inputs(
    shape: tuple[int, int, int], dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    batch, features, dim = shape
    torch.manual_seed(sum(shape))
    dense = torch.rand(batch, dim, dtype=dtype) - 0.5
    pooled = torch.rand(batch, features, dim, dtype=dtype) - 0.5
    return dense.requires_grad_(), pooled.requires_grad_()


@pytest.mark.parametrize("shape", SHAPES + EMPTY)
def test_values_and_gradients_equal_the_definition(
    shape: tuple[int, int, int], threads: int
) -> None:
    both = inputs(shape)
    exact = tuple(tensor.detach().double().requires_grad_() for tensor in both)
    out, expected = interaction(*both), reference.interaction(*exact)
    torch.testing.assert_close(out, expected.float(), atol=1e-5, rtol=1e-5)
    gradient = torch.rand_like(out) - 0.5
    got = torch.autograd.grad(out, both, gradient)
    wanted = torch.autograd.grad(expected, exact, gradient.double())
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other.float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", SHAPES + EMPTY)
def test_bfloat16_rounds_only_outputs(shape: tuple[int, int, int], threads: int) -> None:
    halves = tuple(t.detach().bfloat16().requires_grad_() for t in inputs(shape))
    wide = tuple(t.detach().float().requires_grad_() for t in halves)
    out, expected = interaction(*halves), interaction(*wide)
    assert torch.equal(out, expected.bfloat16())
    gradient = (torch.rand(out.shape) - 0.5).bfloat16()
    got = torch.autograd.grad(out, halves, gradient)
    wanted = torch.autograd.grad(expected, wide, gradient.float())
    for one, other in zip(got, wanted, strict=True):
        assert torch.equal(one, other.bfloat16())


def test_the_number_of_threads_changes_no_bit() -> None:
    both, before = inputs((700, 26, 128)), torch.get_num_threads()
    results: list[list[Tensor]] = []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        out = interaction(*both)
        results.append([out, *torch.autograd.grad(out, both, torch.ones_like(out))])
    torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_inputs_and_gradients_need_not_be_contiguous() -> None:
    dense, pooled = inputs((6, 4, 10))
    views = dense.detach().t().contiguous().t(), pooled.detach().transpose(0, 1).contiguous()
    views = views[0].requires_grad_(), views[1].transpose(0, 1).requires_grad_()
    assert not any(view.is_contiguous() for view in views)
    out, strange = interaction(dense, pooled), interaction(*views)
    assert torch.equal(out, strange)
    gradient = torch.rand(out.shape[::-1]).t()
    assert not gradient.is_contiguous()
    wanted = torch.autograd.grad(out, (dense, pooled), gradient.contiguous())
    for one, other in zip(torch.autograd.grad(strange, views, gradient), wanted, strict=True):
        assert torch.equal(one, other)


def test_double_precision_and_second_derivatives() -> None:
    both = inputs((2, 3, 4), torch.float64)
    assert torch.autograd.gradcheck(interaction, both)
    assert torch.autograd.gradgradcheck(interaction, both)


@pytest.mark.filterwarnings("ignore:Input #. requires gradient and is not a double:UserWarning")
def test_the_kernels_gradient_equals_finite_differences() -> None:
    # The output is linear in each number of the input, so wide finite differences are exact up to rounding.
    both = inputs((2, 3, 4))
    assert torch.autograd.gradcheck(interaction, both, eps=2**-4, atol=1e-4, rtol=1e-3)


def test_second_derivatives_through_the_kernel() -> None:
    single, double = inputs((3, 4, 5)), inputs((3, 4, 5))
    double = tuple(tensor.detach().double().requires_grad_() for tensor in double)
    results: list[tuple[Tensor, ...]] = []
    for both in (single, double):
        first = torch.autograd.grad(interaction(*both).square().sum(), both, create_graph=True)
        results.append(torch.autograd.grad(sum(part.sum() for part in first), both))  # pyright: ignore[reportCallIssue]
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other.float())


def test_the_explicit_backward_equals_autograd() -> None:
    both = inputs((3, 4, 5), torch.float64)
    out = reference.interaction(*both)
    gradient = torch.rand_like(out)
    wanted = torch.autograd.grad(out, both, gradient)
    for one, other in zip(reference.interaction_backward(gradient, *both), wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("dense", "pooled"),
    [((2, 3), (2, 4, 5)), ((2, 3), (4, 1, 3)), ((2, 3), (2, 3)), ((2, 1, 3), (2, 1, 3))],
)
def test_invalid_shapes_are_named(dense: tuple[int, ...], pooled: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match=r"must be \[B, D\] and \[B, F, D\], got \[2, "):
        interaction(torch.zeros(dense), torch.zeros(pooled))


def test_other_dtypes_and_devices_use_the_definition() -> None:
    both = inputs((3, 2, 4))
    half = interaction(*(tensor.half() for tensor in both))
    assert half.dtype == torch.float16
    assert interaction(*(tensor.to("meta") for tensor in both)).shape == (3, 7)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = interaction(both[0].bfloat16(), both[1])
    torch.testing.assert_close(mixed.float(), interaction(*both), atol=0.05, rtol=0.05)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_values_of_the_cpu() -> None:
    both = inputs((5, 8, 64))
    there = interaction(*(tensor.cuda() for tensor in both))
    torch.testing.assert_close(there.cpu(), interaction(*both), atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # raised by torch itself
def test_the_operators_pass_torchs_own_checks() -> None:
    both = inputs((3, 2, 5))
    torch.library.opcheck(torch.ops.rowmill.interaction.default, both)
    halves = tuple(t.detach().bfloat16() for t in both)
    torch.library.opcheck(torch.ops.rowmill.interaction.default, halves)
    gradient = torch.rand(3, 8)
    arguments = (gradient, *(tensor.detach() for tensor in both))
    torch.library.opcheck(torch.ops.rowmill.interaction_backward.default, arguments)


def model() -> tuple[DLRM, tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    bags = FeatureBags(nn.EmbeddingBag(10, 4, mode="sum") for _ in range(3))
    dlrm = DLRM(bags, features=3, dim=4, dense_features=2, bottom=[8], top=[8])
    return dlrm, (torch.rand(5, 2), torch.randint(10, (5, 3)))


def test_an_exported_model_contains_the_operator() -> None:
    dlrm, arguments = model()
    exported = torch.export.export(dlrm.eval(), arguments)
    assert "rowmill.interaction.default" in str(exported.graph)
    assert torch.equal(exported.module()(*arguments), dlrm(*arguments))


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # raised by torch itself
def test_a_compiled_model_trains_like_an_eager_one() -> None:
    gradients: list[list[Tensor | None]] = []
    for compiled in (False, True):
        dlrm, arguments = model()
        run = torch.compile(dlrm, backend="aot_eager", fullgraph=True) if compiled else dlrm
        run(*arguments).sum().backward()
        gradients.append([parameter.grad for parameter in dlrm.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert one is not None
        torch.testing.assert_close(one, other)
