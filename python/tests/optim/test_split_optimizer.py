"""Split optimizers of dense weights are bit-identical to torch's on float32 weights.

What could break: bits lost in a state dict, state that torch casts to bfloat16, tensors larger than a chunk of an update, and
more memory than float32 needs.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from rowmill.errors import InvalidInput
from rowmill.optim import SplitAdagrad, SplitSGD
from rowmill.optim import split as split_optimizer

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS: list[tuple[Any, Callable[[list[nn.Parameter]], torch.optim.Optimizer]]] = [
    (SplitSGD, lambda weights: torch.optim.SGD(weights, lr=0.05)),
    (SplitAdagrad, lambda weights: torch.optim.Adagrad(weights, lr=0.05)),
]
SHAPES = [(7,), (33, 17), (1,), (64, 64, 3)]


def weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def learn(optimizers: list[torch.optim.Optimizer], first: int, last: int) -> None:
    """Make steps with the same bfloat16 gradients for all optimizers."""
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        gradients = [torch.randn(shape, generator=generator).bfloat16() / 64 for shape in SHAPES]
        for optimizer in optimizers:
            for weight, gradient in zip(
                optimizer.param_groups[0]["params"], gradients, strict=True
            ):
                weight.grad = gradient.to(weight.dtype)
            optimizer.step()


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().view(torch.int32)


@pytest.mark.parametrize("chunk", [split_optimizer.CHUNK, 100])
@pytest.mark.parametrize(("kind", "of_torch"), KINDS)
def test_updates_are_bit_identical_to_float32(
    kind: Any,
    of_torch: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    chunk: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(split_optimizer, "CHUNK", chunk)
    exact, mine = weights(), weights()
    optimizers = [of_torch(exact), kind(mine, lr=0.05)]
    learn(optimizers, 0, 50)
    for whole, weight in zip(exact, mine, strict=True):
        assert weight.dtype == torch.bfloat16
        assert torch.equal(bits(optimizers[1].whole(weight)), bits(whole))
        assert torch.equal(weight.float(), (bits(whole) & -65536).view(torch.float32)), (
            "truncated float32"
        )
        state = optimizers[1].state[weight]
        assert state["lower"].dtype == torch.int16
        if "sum" in state:
            assert torch.equal(state["sum"], optimizers[0].state[whole]["sum"])


@pytest.mark.parametrize(("kind", "of_torch"), KINDS)
def test_a_restored_state_continues_with_the_same_bits(
    kind: Any, of_torch: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
) -> None:
    straight = weights()
    whole = kind(straight, lr=0.05)
    learn([whole], 0, 20)
    before = weights()
    first = kind(before, lr=0.05)
    learn([first], 0, 8)
    buffer = io.BytesIO()
    torch.save({"weights": before, "optimizer": first.state_dict()}, buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    after = [nn.Parameter(torch.zeros_like(weight, dtype=torch.float32)) for weight in before]
    second = kind(after, lr=0.9)
    with torch.no_grad():
        for weight, value in zip(after, saved["weights"], strict=True):
            weight.copy_(value)
    second.load_state_dict(saved["optimizer"])
    assert second.param_groups[0]["lr"] == 0.05
    learn([second, first], 8, 20)
    for expected, found in zip(straight, after, strict=True):
        assert torch.equal(bits(whole.whole(expected)), bits(second.whole(found)))
    assert not torch.equal(second.state[after[0]]["lower"], saved["optimizer"]["state"][0]["lower"])


def test_weights_and_state_take_the_bytes_of_float32() -> None:
    for kind, more in ((SplitSGD, 0), (SplitAdagrad, 4)):
        weight = nn.Parameter(torch.randn(1000))
        state = kind([weight], lr=0.1).state[weight]
        bytes_each = weight.element_size() + sum(value.element_size() for value in state.values())
        assert bytes_each == 4 + more
        assert all(value.numel() == weight.numel() for value in state.values())


def test_bfloat16_weights_start_with_zero_lower_halves() -> None:
    weight = nn.Parameter(torch.randn(9).bfloat16())
    before = weight.detach().clone()
    optimizer = SplitSGD([weight], lr=0.1)
    assert torch.equal(optimizer.whole(weight), before.float())
    # Small steps add up; bfloat16 alone would round them away.
    for _ in range(100):
        weight.grad = torch.full_like(weight, 1e-3)
        optimizer.step()
    small = 100 * 0.1 * torch.tensor(1e-3).bfloat16().float()
    torch.testing.assert_close(optimizer.whole(weight), before.float() - small, rtol=0, atol=1e-5)


def test_a_closure_runs_with_gradients_enabled_and_weights_without_gradient_stay() -> None:
    used, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = SplitSGD([{"params": [used]}, {"params": [unused], "lr": 0.5}], lr=0.25)

    def closure() -> float:
        optimizer.zero_grad()
        loss = used.float().sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 3.0
    assert used.tolist() == [0.75] * 3
    assert unused.tolist() == [1.0] * 3


def test_unsupported_parameters_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"float32 or bfloat16 weights, got torch\.float64"):
        SplitSGD([nn.Parameter(torch.zeros(3, dtype=torch.float64))], lr=0.1)
    with pytest.raises(InvalidInput, match=r"contiguous .* weights, got .* with strides \(1, 4\)"):
        SplitSGD([nn.Parameter(torch.zeros(3, 4).t())], lr=0.1)
    with pytest.raises(InvalidInput, match=r"lr must be >= 0, got -1"):
        SplitAdagrad([nn.Parameter(torch.zeros(3))], lr=-1)
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = SplitSGD(table.parameters(), lr=0.1)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(InvalidInput, match="dense gradients, got a sparse gradient"):
        optimizer.step()
