"""The models compared with definitions that are computed element by element.

A wrong triangle, a transposed weight or a cross with the wrong input would still train, only worse; these tests find them.
"""

import pytest
import torch
from torch import Tensor, nn

from rowmill.ctr.models import (
    DLRM,
    FFNN,
    NCF,
    SHAPES,
    CrossLayer,
    DCNv2,
    FeatureBags,
    MultiTaskWideDeep,
    TwoTower,
    WideDeep,
    dot_interaction,
)

B, F, D, N = 7, 3, 4, 5


@pytest.fixture
def bags() -> FeatureBags:
    torch.manual_seed(1)
    return FeatureBags(nn.EmbeddingBag(10, D, mode="sum") for _ in range(F))


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(2)
    return torch.randn(B, N), torch.randint(0, 10, (B, F))


def test_dot_interaction_takes_each_pair_once_row_by_row() -> None:
    torch.manual_seed(3)
    vectors = torch.randn(B, F + 1, D)
    expected = [
        [sum(float(v[i, k] * v[j, k]) for k in range(D)) for i in range(F + 1) for j in range(i)]
        for v in vectors
    ]
    torch.testing.assert_close(dot_interaction(vectors), torch.tensor(expected))


def test_dlrm_equals_bottom_mlp_pairs_and_top_mlp(bags: FeatureBags) -> None:
    model = DLRM(bags, features=F, dim=D, dense_features=N, bottom=[6], top=[8])
    dense, ids = batch()
    logits = model(dense, ids)
    for b in range(B):
        first, second = model.bottom[0], model.bottom[2]
        x = torch.relu(
            second.weight @ torch.relu(first.weight @ dense[b] + first.bias) + second.bias
        )
        vectors = [x] + [bags.bags[f].weight[ids[b, f]] for f in range(F)]
        pairs = torch.stack([vectors[i] @ vectors[j] for i in range(F + 1) for j in range(i)])
        hidden, last = model.top[0], model.top[2]
        z = torch.relu(hidden.weight @ torch.cat([x, pairs]) + hidden.bias)
        torch.testing.assert_close(logits[b], (last.weight @ z + last.bias)[0])


@pytest.mark.parametrize("rank", [None, 2])
def test_a_cross_layer_equals_the_papers_formula(rank: int | None) -> None:
    torch.manual_seed(4)
    layer = CrossLayer(6, rank=rank)
    nn.init.normal_(layer.outward.bias)
    x0, x = torch.randn(B, 6), torch.randn(B, 6)
    matrix = (
        layer.outward.weight if layer.inward is None else layer.outward.weight @ layer.inward.weight
    )
    expected = torch.stack([x0[b] * (matrix @ x[b] + layer.outward.bias) + x[b] for b in range(B)])
    torch.testing.assert_close(layer(x0, x), expected)


def test_dcn_v2_crosses_with_its_first_input_and_joins_both_towers(bags: FeatureBags) -> None:
    model = DCNv2(bags, features=F, dim=D, dense_features=N, cross_layers=2, rank=3, deep=[8])
    dense, ids = batch()
    x0 = torch.cat([dense, *(bags.bags[f].weight[ids[:, f]] for f in range(F))], dim=1)
    first, second = model.crosses
    once = x0 * second_input(first, x0) + x0
    twice = x0 * second_input(second, once) + once
    both = torch.cat([twice, model.deep(x0)], dim=1)
    torch.testing.assert_close(model(dense, ids), model.join(both)[:, 0])


def second_input(layer: nn.Module, x: Tensor) -> Tensor:
    return x @ layer.inward.weight.T @ layer.outward.weight.T + layer.outward.bias


def test_ffnn_is_one_mlp_over_everything(bags: FeatureBags) -> None:
    model = FFNN(bags, features=F, dim=D, dense_features=N, hidden=[8])
    dense, ids = batch()
    x = torch.cat([dense, *(bags.bags[f].weight[ids[:, f]] for f in range(F))], dim=1)
    hidden, last = model.layers[0], model.layers[2]
    z = torch.relu(x @ hidden.weight.T + hidden.bias)
    torch.testing.assert_close(model(dense, ids), (z @ last.weight.T + last.bias)[:, 0])


def test_wide_and_deep_uses_the_first_weight_of_a_row_for_the_wide_part(bags: FeatureBags) -> None:
    model = WideDeep(bags, features=F, dim=D, dense_features=N, hidden=[8])
    nn.init.normal_(model.wide.weight)
    nn.init.normal_(model.wide.bias)
    dense, ids = batch()
    rows = torch.stack([bags.bags[f].weight[ids[:, f]] for f in range(F)], dim=1)
    wide = dense @ model.wide.weight[0] + model.wide.bias[0] + rows[:, :, 0].sum(1)
    hidden, last = model.deep[0], model.deep[2]
    x = torch.cat([dense, *(rows[:, f, 1:] for f in range(F))], dim=1)
    deep = torch.relu(x @ hidden.weight.T + hidden.bias) @ last.weight[0] + last.bias[0]
    torch.testing.assert_close(model(dense, ids), wide + deep)


def test_multi_task_wide_and_deep_has_a_tower_per_task(bags: FeatureBags) -> None:
    model = MultiTaskWideDeep(
        bags, features=F, dim=D, tasks=3, dense_features=N, shared=[8], tower=[4]
    )
    nn.init.normal_(model.wide.weight)
    nn.init.normal_(model.wide.bias)
    dense, ids = batch()
    rows = torch.stack([bags.bags[f].weight[ids[:, f]] for f in range(F)], dim=1)
    x = torch.cat([dense, *(rows[:, f, 1:] for f in range(F))], dim=1)
    shared = torch.relu(x @ model.shared[0].weight.T + model.shared[0].bias)
    logits = model(dense, ids)
    assert logits.shape == (B, 3)
    for task, (hidden, _, last) in enumerate(model.towers):
        deep = torch.relu(shared @ hidden.weight.T + hidden.bias) @ last.weight[0] + last.bias[0]
        wide = dense @ model.wide.weight[task] + model.wide.bias[task] + rows[:, :, 0].sum(1)
        torch.testing.assert_close(logits[:, task], wide + deep)


def test_ncf_joins_a_product_and_an_mlp() -> None:
    torch.manual_seed(5)
    four = FeatureBags(nn.EmbeddingBag(10, D, mode="sum") for _ in range(4))
    model = NCF(four, dim=D, dense_features=N, hidden=[8])
    dense, _ = batch()
    ids = torch.randint(0, 10, (B, 2)).repeat_interleave(2, dim=1)
    user, user_mlp, item, item_mlp = (four.bags[f].weight[ids[:, f]] for f in range(4))
    hidden = model.layers[0]
    x = torch.cat([user_mlp, item_mlp, dense], dim=1)
    both = torch.cat([user * item, torch.relu(x @ hidden.weight.T + hidden.bias)], dim=1)
    expected = both @ model.join[0].weight[0] + model.join[0].bias[0]
    torch.testing.assert_close(model(dense, ids), expected)
    # The same with one row per user and one per item.
    pairs = torch.stack([torch.cat([user, user_mlp], 1), torch.cat([item, item_mlp], 1)], 1)
    torch.testing.assert_close(model.logits(dense, pairs), expected)


def test_two_towers_are_joined_by_a_dot_product_only(bags: FeatureBags) -> None:
    model = TwoTower(bags, features=F, items=[0, 2], dim=D, dense_features=N, tower=[6], width=5)
    dense, ids = batch()
    rows = [bags.bags[f].weight[ids[:, f]] for f in range(F)]
    user = model.user(torch.cat([dense, rows[1]], dim=1))
    item = model.item(torch.cat([rows[0], rows[2]], dim=1))
    torch.testing.assert_close(model(dense, ids), torch.einsum("bw,bw->b", user, item))
    pooled = bags(ids)
    torch.testing.assert_close(model.user_vectors(dense, pooled), user)
    torch.testing.assert_close(model.item_vectors(pooled), item)


# Tables, rows, weights per row, ids per bag.
PUBLISHED = {
    "rm1": (8, 1_000_000, 32, 80),
    "rm2": (32, 1_000_000, 64, 120),
    "rm3": (10, 1_000_000, 32, 20),
    "wnd": (27, 100_000, 32, 1),
    "mt_wnd": (43, 610_000, 32, 1),
    "din": (4 + 250, 100_000, 32, 3),
    "dien": (43, 100_000, 32, 3),
    "ncf": (4, 100_000, 32, 1),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_named_shapes_equal_the_published_ones_and_run(name: str) -> None:
    shape = SHAPES[name]
    assert (shape.tables, shape.rows, shape.dim, shape.lookups) == PUBLISHED[name]
    few = FeatureBags(nn.EmbeddingBag(5, shape.dim, mode="sum") for _ in range(shape.tables))
    model = shape.build(few).eval()
    dense = torch.rand(2, shape.dense_features)
    ids = [torch.randint(0, 5, (2 * shape.lookups,)) for _ in range(shape.tables)]
    pooled = few(ids, [torch.arange(2) * shape.lookups] * shape.tables)
    extra = () if shape.histories is None else (torch.tensor([0, shape.histories.places]),)
    logits = model.logits(dense, pooled, *extra)  # pyright: ignore[reportCallIssue]
    assert len(logits) == 2
    assert bool(logits.isfinite().all())


def test_all_named_shapes_are_published() -> None:
    assert SHAPES.keys() == PUBLISHED.keys()


def test_features_may_share_a_bag() -> None:
    torch.manual_seed(6)
    shared = FeatureBags([nn.EmbeddingBag(10, D), nn.EmbeddingBag(10, D)], bag_of=[1, 0, 1])
    first, second = (bag.weight for bag in shared.bags)
    ids = torch.randint(0, 10, (B, 3))
    expected = torch.stack([second[ids[:, 0]], first[ids[:, 1]], second[ids[:, 2]]], dim=1)
    torch.testing.assert_close(shared(ids), expected)
    flat = shared(list(ids.T), [torch.arange(B)] * 3)
    torch.testing.assert_close(flat, expected)


def test_many_ids_per_bag_are_summed(bags: FeatureBags) -> None:
    flat = [torch.tensor([1, 2, 3]), torch.tensor([4]), torch.tensor([5, 6])]
    offsets = [torch.tensor([0, 3]), torch.tensor([0, 0]), torch.tensor([0, 1])]
    pooled = bags(flat, offsets)
    assert pooled.shape == (2, F, D)
    torch.testing.assert_close(pooled[0, 0], bags.bags[0].weight[[1, 2, 3]].sum(0))
    torch.testing.assert_close(pooled[0, 1], torch.zeros(D))
    torch.testing.assert_close(pooled[1, 2], bags.bags[2].weight[6])


def test_one_id_per_bag_equals_bags_of_one(bags: FeatureBags) -> None:
    dense, ids = batch()
    model = DLRM(bags, features=F, dim=D, dense_features=N)
    flat, offsets = list(ids.T), [torch.arange(B)] * F
    torch.testing.assert_close(model(dense, ids), model(dense, flat, offsets))


def test_errors_of_shapes_say_what_was_expected(bags: FeatureBags) -> None:
    with pytest.raises(ValueError, match=r"ids must be \[B, 3\], got \[7, 2\]"):
        bags(torch.zeros(B, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="offsets need flat ids"):
        bags(torch.zeros(B, F, dtype=torch.int64), [torch.arange(B)] * F)
    with pytest.raises(ValueError, match="flat ids need 3 id tensors"):
        bags([torch.zeros(B, dtype=torch.int64)] * F)
