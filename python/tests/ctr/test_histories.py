"""Models over histories compared with short definitions, one row of a batch at a time.

A definition uses a list of the valid places, so errors of masks show. Every batch has an empty history, a full one, and
garbage in places beyond the lengths.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, layer_norm, leaky_relu, relu

from rowmill.ctr.models import (
    BST,
    DIEN,
    DIN,
    ActivationUnit,
    AttentionalGRU,
    Dice,
    FeatureBags,
    Histories,
    TwoTower,
)

B, D, N, P = 6, 4, 2, 3
LAYOUT = Histories(features=3, targets=(1, 2), places=P)
E = len(LAYOUT.targets) * D


@pytest.fixture
def bags() -> FeatureBags:
    torch.manual_seed(1)
    tables = (nn.EmbeddingBag(10, D, mode="sum") for _ in range(3))
    return FeatureBags(tables, bag_of=[0, 1, 2, *[1] * P, *[2] * P])


def batch() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(2)
    lengths = torch.tensor([0, P, 1, 2, P, 1])
    return torch.randn(B, N), torch.randint(0, 10, (B, LAYOUT.columns)), lengths


def vectors(bags: FeatureBags, ids: Tensor, length: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """For one row: the vector of the other feature, of the target, and of its history, oldest first."""
    user, item, kind = (bag.weight for bag in bags.bags)
    history = [torch.cat([item[ids[3 + p]], kind[ids[3 + P + p]]]) for p in range(length)]
    return user[ids[0]], torch.cat([item[ids[1]], kind[ids[2]]]), history


def sigmoid_mlp(unit: ActivationUnit, x: Tensor) -> Tensor:
    first, second, last = unit.layers[0], unit.layers[2], unit.layers[4]
    hidden = torch.sigmoid(second.weight @ torch.sigmoid(first(x)) + second.bias)
    return last.weight @ hidden + last.bias


def test_a_layout_finds_targets_and_places() -> None:
    pooled = torch.arange(LAYOUT.columns).float().reshape(1, -1, 1).expand(2, -1, D)
    others, target, places = LAYOUT.split(pooled)
    assert others[0].tolist() == [0.0] * D
    assert target[1].tolist() == [1.0] * D + [2.0] * D
    assert places[0, :, 0].tolist() == [3.0, 4.0, 5.0]
    assert places[0, :, D].tolist() == [6.0, 7.0, 8.0]
    assert LAYOUT.taken(torch.tensor([0, 2])).tolist() == [[False] * 3, [True, True, False]]


def test_din_sums_places_with_attention_weights(bags: FeatureBags) -> None:
    model = DIN(bags, histories=LAYOUT, dim=D, dense_features=N, attention=[5, 3], hidden=[8])
    model.eval()
    dense, ids, lengths = batch()
    logits = model(dense, ids, lengths)
    for b in range(B):
        other, target, history = vectors(bags, ids[b], int(lengths[b]))
        interest = torch.zeros(E)
        for place in history:
            pair = torch.cat([place, target, place - target, place * target])
            interest = interest + sigmoid_mlp(model.attention, pair) * place
        x = torch.cat([dense[b], other, target, interest])
        (hidden,), dice, (last,) = model.layers
        z = hidden.weight @ x + hidden.bias
        p = torch.sigmoid(z / math.sqrt(1 + 1e-8))
        z = p * z + (1 - p) * dice.alpha * z
        torch.testing.assert_close(logits[b], (last.weight @ z + last.bias)[0])


def test_dice_uses_the_mean_of_the_batch_and_keeps_running_statistics() -> None:
    torch.manual_seed(3)
    dice, x = Dice(5), torch.randn(64, 5) * 3 + 1
    nn.init.normal_(dice.alpha)
    p = torch.sigmoid((x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-8).sqrt())
    torch.testing.assert_close(dice(x), p * x + (1 - p) * dice.alpha * x)
    torch.testing.assert_close(dice.running_mean, 0.1 * x.mean(0))
    mean, var = dice.running_mean.clone(), dice.running_var.clone()
    p = torch.sigmoid(batch_norm(x[:1], mean, var, eps=1e-8))
    alone = dice(x[:1])  # One row has no variance, so it behaves as in evaluation.
    torch.testing.assert_close(alone, p * x[:1] + (1 - p) * dice.alpha * x[:1])
    assert torch.equal(dice.running_mean, mean)


def test_an_attentional_gru_equals_the_papers_equations() -> None:
    torch.manual_seed(4)
    cell = AttentionalGRU(4, 4)
    for linear in (cell.inward, cell.recurrent):
        nn.init.normal_(linear.bias)
    states, weights = torch.randn(B, P, 4), torch.rand(B, P)
    weights[0] = 0
    wr, wu, wh = cell.inward.weight.chunk(3)
    ur, uu, uh = cell.recurrent.weight.chunk(3)
    br, bu, bh = cell.inward.bias.chunk(3)
    cr, cu, ch = cell.recurrent.bias.chunk(3)
    expected = []
    for b in range(B):
        h = torch.zeros(4)
        for p in range(P):
            x = states[b, p]
            r = torch.sigmoid(wr @ x + br + ur @ h + cr)
            u = weights[b, p] * torch.sigmoid(wu @ x + bu + uu @ h + cu)
            h = (1 - u) * h + u * torch.tanh(wh @ x + bh + r * (uh @ h + ch))
        expected.append(h)
    torch.testing.assert_close(cell(states, weights), torch.stack(expected))


def test_dien_evolves_interests_towards_the_target(bags: FeatureBags) -> None:
    model = DIEN(bags, histories=LAYOUT, dim=D, dense_features=N, hidden=[8])
    dense, ids, lengths = batch()
    model.eval()
    logits = model(dense, ids, lengths)
    assert model.auxiliary_loss is None
    states, histories = [], []
    for b in range(B):
        other, target, history = vectors(bags, ids[b], int(lengths[b]))
        seen = torch.zeros(0, E)
        if history:
            seen = model.extract(torch.stack(history).unsqueeze(0))[0][0]
        states.append(seen)
        histories.append(history)
        weights = torch.softmax(seen @ model.match.weight.T @ target, 0)
        interest = model.evolve(seen.unsqueeze(0), weights.unsqueeze(0))[0]
        x = torch.cat([dense[b], other, target, interest]).unsqueeze(0)
        torch.testing.assert_close(logits[b], model.layers(x)[0, 0])
    losses = [
        -torch.log(torch.sigmoid(states[b][p] @ histories[b][p + 1]))
        - torch.log(1 - torch.sigmoid(states[b][p] @ histories[b - 1][p + 1]))
        for b in range(B)
        for p in range(P - 1)
        if len(histories[b]) > p + 1 and len(histories[b - 1]) > p + 1
    ]
    model.train()
    model(dense, ids, lengths)
    assert len(losses) == 1, "only rows 3 and 4 have a place with an auxiliary loss"
    torch.testing.assert_close(model.auxiliary_loss, torch.stack(losses).mean() / 2)


def test_bst_attends_among_target_and_places(bags: FeatureBags) -> None:
    model = BST(bags, histories=LAYOUT, dim=D, dense_features=N, heads=2, blocks=2, hidden=[8])
    nn.init.normal_(model.ago)
    dense, ids, lengths = batch()
    logits = model(dense, ids, lengths)
    for b in range(B):
        other, target, history = vectors(bags, ids[b], int(lengths[b]))
        ago = range(len(history), 0, -1)
        items = torch.stack([target, *history]) + model.ago[[0, *ago]]
        for block in model.blocks:
            attention, w = block.self_attn, block.self_attn.in_proj_weight
            q, k, v = (items @ w.T + attention.in_proj_bias).chunk(3, dim=1)
            heads = []
            for h in range(2):
                mine = slice(h * E // 2, (h + 1) * E // 2)
                share = torch.softmax(q[:, mine] @ k[:, mine].T / math.sqrt(E / 2), 1)
                heads.append(share @ v[:, mine])
            items = items + attention.out_proj(torch.cat(heads, 1))  # pyright: ignore[reportCallIssue]
            items = layer_norm(items, [E], block.norm1.weight, block.norm1.bias)
            items = items + block.linear2(leaky_relu(block.linear1(items)))  # pyright: ignore[reportCallIssue]
            items = layer_norm(items, [E], block.norm2.weight, block.norm2.bias)
        flat = torch.cat([items.flatten(), torch.zeros((P + 1 - len(items)) * E)])
        x = torch.cat([dense[b], other, flat])
        hidden, last = model.layers[0], model.layers[2]
        z = relu(hidden.weight @ x + hidden.bias)
        torch.testing.assert_close(logits[b], (last.weight @ z + last.bias)[0])


def test_two_tower_is_the_dot_product_of_two_mlps(bags: FeatureBags) -> None:
    model = TwoTower(
        bags, features=3, items=[1, 2], dim=D, dense_features=N, histories=LAYOUT, tower=[6]
    )
    dense, ids, lengths = batch()
    logits = model(dense, ids, lengths)
    for b in range(B):
        other, target, history = vectors(bags, ids[b], int(lengths[b]))
        before = torch.stack(history).mean(0) if history else torch.zeros(E)
        user = two_layers(model.user, torch.cat([dense[b], other, before]))
        torch.testing.assert_close(logits[b], user @ two_layers(model.item, target))


def two_layers(tower: nn.Sequential, x: Tensor) -> Tensor:
    first, last = tower[0], tower[2]
    return last.weight @ relu(first.weight @ x + first.bias) + last.bias


@pytest.mark.parametrize("kind", [DIN, DIEN, BST, TwoTower])
def test_places_beyond_the_length_get_no_gradient(kind: type, bags: FeatureBags) -> None:
    two = {"features": 3, "items": [1, 2]} if kind is TwoTower else {}
    model = kind(bags, histories=LAYOUT, dim=D, dense_features=N, **two)
    dense, ids, lengths = batch()
    pooled = bags(ids).detach().requires_grad_()
    model.logits(dense, pooled, lengths).sum().backward()
    taken = LAYOUT.taken(lengths).repeat(1, 2)
    touched = pooled.grad[:, 3:].abs().sum(2) > 0
    assert torch.equal(touched, taken)


def test_errors_of_layouts_say_what_was_expected(bags: FeatureBags) -> None:
    with pytest.raises(
        ValueError, match=r"targets must name at least one of the 2 features, got \[2\]"
    ):
        Histories(features=2, targets=(2,), places=1)
    with pytest.raises(ValueError, match="places must be at least 1, got 0"):
        Histories(features=2, targets=(1,), places=0)
    with pytest.raises(ValueError, match=r"ids must be \[B, 9\], got \[6, 3\]"):
        LAYOUT.split(torch.zeros(6, 3, D))
    with pytest.raises(
        ValueError, match=r"heads must divide the width of an item vector \(8\), got 3"
    ):
        BST(bags, histories=LAYOUT, dim=D, heads=3)
    with pytest.raises(ValueError, match=r"items must name some of the 3 features"):
        TwoTower(bags, features=3, items=[0, 1, 2], dim=D)
    with pytest.raises(ValueError, match="lengths_B is None"):
        TwoTower(bags, features=3, items=[1], dim=D, histories=LAYOUT)(*batch()[:2])
    with pytest.raises(ValueError, match=r"bag_of must name each of the 2 bags, got \[0, 2\]"):
        FeatureBags([nn.EmbeddingBag(2, 1), nn.EmbeddingBag(2, 1)], bag_of=[0, 2])
