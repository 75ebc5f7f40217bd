"""Random fx graphs of torch operators: traced, placed by both rules, split, and run beside the whole program."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, fx, nn

from rowmill.partition.capture import capture
from rowmill.partition.colouring import colour
from rowmill.partition.placement import Parts, Rule, place
from rowmill.partition.split import split

if TYPE_CHECKING:
    from collections.abc import Callable

IDS, KEYS, FLOATS, D = 10, 3, 4, 5
"""Rows of a table, ids and floats of a sample, and weights of a row."""
UNARY: tuple[Callable[[Tensor], Tensor], ...] = (torch.relu, torch.sigmoid, torch.neg, torch.square)


class RandomGraph:
    """Adds random operators to an fx graph, whose inputs are ids [B, KEYS] and floats [B, FLOATS].

    Args:
        seed: Of the operators and of the weights.
    """

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self._rng = random.Random(seed)
        self._modules = nn.Module()
        self._graph = fx.Graph()
        self._keys = [self._graph.placeholder("ids")]
        self._vectors = [(self._graph.placeholder("floats"), FLOATS)]

    def module(self) -> fx.GraphModule:
        """A module of a few operators with one or two results."""
        kinds = [
            self._lookup,
            self._layer,
            self._unary,
            self._join,
            self._mean,
            self._mask,
            self._hash,
        ]
        self._lookup()
        for _ in range(self._rng.randint(3, 10)):
            self._rng.choices(kinds, [3, 3, 2, 2, 2, 2, 1])[0]()
        made = [node for node, _ in self._vectors[1:]]
        self._graph.output(tuple(self._rng.sample(made, min(len(made), self._rng.randint(1, 2)))))
        return fx.GraphModule(self._modules, self._graph)

    def _call(self, module: nn.Module, node: fx.Node) -> fx.Node:
        name = f"m{len(list(self._modules.children()))}"
        self._modules.add_module(name, module)
        return self._graph.call_module(name, (node,))

    def _add(self, function: Callable[..., Tensor], *arguments: object) -> fx.Node:
        return self._graph.call_function(function, arguments)  # pyright: ignore[reportArgumentType]

    def _lookup(self) -> None:
        rows = self._call(nn.Embedding(IDS, D), self._rng.choice(self._keys))
        if self._rng.random() < 0.5:
            self._vectors.append((self._add(torch.sum, rows, 1), D))
        else:
            self._vectors.append((self._add(torch.flatten, rows, 1), KEYS * D))

    def _layer(self) -> None:
        node, width = self._rng.choice(self._vectors)
        out = self._rng.choice([1, 2, 16])
        self._vectors.append((self._call(nn.Linear(width, out), node), out))

    def _unary(self) -> None:
        node, width = self._rng.choice(self._vectors)
        self._vectors.append((self._add(self._rng.choice(UNARY), node), width))

    def _join(self) -> None:
        parts = [self._rng.choice(self._vectors) for _ in range(self._rng.randint(2, 3))]
        joined = self._add(torch.cat, [node for node, _ in parts], 1)
        self._vectors.append((joined, sum(width for _, width in parts)))

    def _mean(self) -> None:
        node, _ = self._rng.choice(self._vectors)
        self._vectors.append((self._add(torch.mean, node, 1, True), 1))

    def _mask(self) -> None:
        positive = self._add(torch.gt, self._rng.choice(self._keys), self._rng.randrange(IDS))
        self._vectors.append((self._add(torch.mul, positive, 0.5), KEYS))

    def _hash(self) -> None:
        moved = self._add(torch.add, self._rng.choice(self._keys), self._rng.randrange(IDS))
        self._keys.append(self._add(torch.remainder, moved, IDS))


def call(rows: int) -> tuple[Tensor, Tensor]:
    return torch.randint(0, IDS, (rows, KEYS)), torch.rand(rows, FLOATS)


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 200), marks=pytest.mark.long)])
def test_both_rules_keep_every_bit_and_send_at_most_what_colouring_does(seeds: range) -> None:
    smaller = 0
    for seed in seeds:
        module, example = RandomGraph(seed).module(), call(6)
        captured = capture(module, [example])
        graph = captured.graph
        sent = {"colouring": graph.request_bytes(colour(graph, Parts.of(graph)))}
        whole = captured.program.module(check_guards=False)
        rules: tuple[Rule, ...] = ("prism", "bytes")
        for rule in rules:
            placement = place(graph, rule)
            sent[rule] = sum(placement.crossing.values())
            parts = split(captured, placement, example)
            for rows in (1, 2, 9):
                inputs = call(rows)
                with torch.no_grad():
                    pairs = zip(whole(*inputs), parts.run(*inputs), strict=True)
                assert all(torch.equal(one, other) for one, other in pairs), (seed, rule, rows)
        assert sent["bytes"] <= sent["prism"] <= sent["colouring"], (seed, sent, module.code)
        smaller += sent["bytes"] < sent["colouring"]
    assert smaller >= len(seeds) // 10, "the rules differ"
