"""The parts of a split, run in sequence, are bit-identical to the whole program.

Tests use batches of 1, other batch sizes than the example's and empty bags, which find sizes that tracing made constant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from python.tests.partition.models import (
    CLICK_MODELS,
    IDS,
    D,
    Model,
    bags,
    click_model,
    stacked,
    transformer,
)
from rowmill.partition.capture import capture
from rowmill.partition.placement import Rule, place
from rowmill.partition.split import Split, split

if TYPE_CHECKING:
    import rowmill

EXAMPLE_ROWS = 5


def checked(model: Model, rule: Rule = "bytes") -> Split:
    """Split a model, and check that it gives the results of the whole program and of the module."""
    example = model.call(EXAMPLE_ROWS)
    captured = capture(model.module, [example])
    parts = split(captured, place(captured.graph, rule), example)
    model.module.eval()
    unsplit = captured.program.module(check_guards=False)
    for rows in (1, 2, 7, 300):
        call = model.call(rows)
        with torch.no_grad():
            whole, answer, eager = unsplit(*call), parts.run(*call), model.module(*call)
        for left, right, own in zip(*map(listed, (whole, answer, eager)), strict=True):
            assert torch.equal(left, right), f"{rows} rows"
            torch.testing.assert_close(right, own, rtol=1e-5, atol=1e-5)
    return parts


def listed(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def targets(program: torch.export.ExportedProgram) -> set[str]:
    return {str(node.target) for node in program.graph.nodes if node.op == "call_function"}


@pytest.mark.parametrize("name", CLICK_MODELS)
def test_click_models_over_a_store(name: str, store: rowmill.Store) -> None:
    parts = checked(click_model(name, lambda columns: stacked(store, columns)))
    assert parts.cpu is not None
    assert parts.dense is not None
    assert "rowmill.lookup.default" in targets(parts.cpu.program)
    assert "aten.linear.default" in targets(parts.dense.program)
    assert not any(name.startswith("rowmill.lookup") for name in targets(parts.dense.program))


@pytest.mark.parametrize("name", ["dlrm", "din"])
def test_click_models_over_torch_embeddings_by_the_rule_prism(name: str) -> None:
    parts = checked(click_model(name, bags), "prism")
    assert parts.dense is not None
    assert not any("embedding" in name for name in targets(parts.dense.program))
    assert not any("embeddings" in name for name in parts.dense.program.state_dict)


def test_a_transformer_over_torch_embeddings() -> None:
    parts = checked(transformer())
    assert parts.dense is not None
    # A lookup of constants is a constant, which the dense half computes once.
    assert "aten.embedding.default" not in targets(parts.dense.program)
    assert any(name.startswith("folded.") for name, _ in parts.dense.program.named_buffers())


class Centred(nn.Module):
    """A constant that the dense half computes from weights alone: what it repeats, it computes once."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(IDS, D)
        self.layer = nn.Linear(D, 2)
        self.register_buffer("centres", torch.rand(6, D))

    def forward(self, ids: Tensor) -> Tensor:
        centre = (self.centres * 3).mean(0)
        return self.layer(self.rows(ids) - centre)


@pytest.mark.parametrize("rule", ["bytes", "prism"])
def test_constants_are_folded_once_in_the_dense_half(rule: Rule) -> None:
    parts = checked(Model(Centred(), lambda rows: (torch.randint(0, IDS, (rows,)),)), rule)
    assert parts.cpu is not None
    assert parts.dense is not None
    (folded,) = [name for name in parts.dense.program.state_dict if name.startswith("folded.")]
    assert parts.dense.program.state_dict[folded].shape == (D,)
    assert "centres" not in parts.dense.program.state_dict
    assert not targets(parts.dense.program) & {"aten.mul.Tensor", "aten.mean.dim"}
    assert not any(name.startswith(("folded", "centres")) for name in parts.cpu.program.state_dict)


def test_bfloat16_weights_and_rows() -> None:
    torch.manual_seed(1)
    model = click_model("dlrm", bags)
    single = click_model("dlrm", bags)
    single.module.load_state_dict(model.module.state_dict())
    low = model.module.to(torch.bfloat16)

    def call(rows: int) -> tuple[Tensor, ...]:
        dense, ids = model.call(rows)
        return dense.to(torch.bfloat16), ids

    example = call(EXAMPLE_ROWS)
    captured = capture(low, [example])
    parts = split(captured, place(captured.graph), example)
    unsplit = captured.program.module(check_guards=False)
    single.module.eval()
    for rows in (1, 2, 7, 300):
        dense, ids = call(rows)
        with torch.no_grad():
            answer = parts.run(dense, ids)
            assert torch.equal(answer, unsplit(dense, ids)), f"{rows} rows"
            expected = single.module(dense.float(), ids)
        torch.testing.assert_close(answer.float(), expected, rtol=2**-7, atol=2**-7)


class Ragged(nn.Module):
    """Weighted bags of any length, and features per row of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(IDS, D, mode="sum")
        self.layer = nn.Linear(D + 2, 3)

    def forward(self, x: Tensor, ids: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
        return self.layer(torch.cat([x, self.bag(ids, offsets, weights)], dim=1))


def test_bags_of_any_length_and_empty_ones() -> None:
    def call(rows: int) -> tuple[Tensor, ...]:
        sizes = torch.tensor([0, 3, 1]).repeat(rows)[:rows]
        count = int(sizes.sum()) + 2
        offsets = sizes.cumsum(0) - sizes
        return torch.rand(rows, 2), torch.randint(0, IDS, (count,)), offsets, torch.rand(count)

    checked(Model(Ragged(), call))


class Tokens(nn.Module):
    """A model in which no crossing tensor has the batch as one of its sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(IDS, D)
        self.layer = nn.Linear(3 * D, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.layer(self.rows(ids.flatten()).view(ids.shape[0], 3 * D))


def test_a_batch_size_without_a_tensor_crosses_without_bytes() -> None:
    parts = checked(Model(Tokens(), lambda rows: (torch.randint(0, IDS, (rows, 3)),)))
    assert parts.cpu is not None
    assert parts.dense is not None
    (carrier,) = set(parts.dense.inputs) - parts.placement.crossing.keys()
    values = parts.values([torch.randint(0, IDS, (4, 3))])
    assert values[carrier].shape == (4, 0)


class TwoOutputs(nn.Module):
    """The score of every row, and the vector from which it was computed."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(IDS, D, mode="mean")
        self.layer = nn.Linear(D, 1)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        vectors = self.bag(ids)
        return self.layer(vectors).squeeze(1), vectors * 2


def test_an_output_that_is_not_dense_does_not_cross() -> None:
    parts = checked(Model(TwoOutputs(), lambda rows: (torch.randint(0, IDS, (rows, 3)),)))
    assert len(parts.placement.crossing) == 1
    assert len(parts.placement.reply) == 1


def test_two_outputs_of_the_dense_half_come_back_together() -> None:
    class Tasks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(IDS, D, mode="sum")
            self.click, self.buy = nn.Linear(D, 1), nn.Linear(D, 3)

        def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
            vectors = self.bag(ids)
            return self.click(vectors).squeeze(1), self.buy(vectors).softmax(1)

    parts = checked(Model(Tasks(), lambda rows: (torch.randint(0, IDS, (rows, 3)),)))
    assert len(parts.placement.crossing) == 1
    assert list(parts.placement.reply.values()) == [4 * EXAMPLE_ROWS, 12 * EXAMPLE_ROWS]
    assert parts.post is None


class Ranking(nn.Module):
    """One user, candidates, and the three best of them."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(IDS, D)
        self.items = nn.Embedding(IDS, D)
        self.layer = nn.Linear(2 * D, 1)

    def forward(self, user: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        vectors = self.users(user).expand(items.shape[0], -1)
        scores = self.layer(torch.cat([vectors, self.items(items)], dim=1)).squeeze(1).sigmoid()
        best = scores.topk(1)
        return best.values, items[best.indices]


def test_ranking_repeats_the_user_after_the_crossing_and_sorts_after_the_reply() -> None:
    def call(rows: int) -> tuple[Tensor, Tensor]:
        return torch.tensor(3), torch.randint(0, IDS, (rows,))

    parts = checked(Model(Ranking(), call))
    assert sorted(parts.placement.crossing.values()) == [4 * D, 4 * D * EXAMPLE_ROWS]
    assert parts.post is not None
    assert "aten.topk.default" in targets(parts.post.program)


def test_a_model_without_embeddings_is_dense() -> None:
    layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    parts = checked(Model(layers, lambda rows: (torch.rand(rows, 4),)))
    assert parts.cpu is None
    assert parts.dense is not None


def test_a_model_of_embeddings_alone_has_no_dense_half() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Embedding(IDS, D)

        def forward(self, ids: Tensor) -> Tensor:
            return self.rows(ids).mean(1)

    parts = checked(Model(Mean(), lambda rows: (torch.randint(0, IDS, (rows, 3)),)))
    assert parts.dense is None
    assert not parts.placement.crossing


def test_a_portable_dense_half_has_no_rowmill_operators(store: rowmill.Store) -> None:
    model = click_model("dlrm", lambda columns: stacked(store, columns))
    parts = checked(model)
    assert parts.dense is not None
    portable = parts.portable_dense(model.call(EXAMPLE_ROWS))
    assert "rowmill.interaction.default" in targets(parts.dense.program)
    assert not any(name.startswith("rowmill") for name in targets(portable.program))
    call = model.call(9)
    values = parts.values(call)
    for name, value in portable.run(values).items():
        torch.testing.assert_close(value, values[name], rtol=1e-5, atol=1e-5)


def test_a_seed_above_a_lookup_is_a_warning_with_its_line() -> None:
    class Router(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.route = nn.Linear(4, IDS)
            self.rows = nn.Embedding(IDS, D)
            self.out = nn.Linear(D, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.rows(self.route(x).argmax(1)))

    parts = checked(Model(Router(), lambda rows: (torch.rand(rows, 4),)))
    (warning,) = parts.warnings
    assert warning.startswith("aten::linear at ")
    assert "test_split.py:" in warning
