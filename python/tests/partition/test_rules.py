"""Both placement rules on random graphs and on graphs of a few operators.

A wrong placement still gives correct results; only the bytes of a request show it. So the minimum cut is compared with all
possible placements, and the rule `prism` with the colouring that it improves.
"""

from __future__ import annotations

import random
from itertools import chain, combinations

from rowmill.partition.colouring import colour
from rowmill.partition.graph import Graph, Operator
from rowmill.partition.operators import Kind
from rowmill.partition.placement import Parts, Placement, place


def random_graph(seed: int, operators_max: int) -> Graph:
    rng = random.Random(seed)
    operators: list[Operator] = []
    values: list[str] = []
    for number in range(rng.randint(3, operators_max)):
        kind, sources = Kind.INPUT, ()
        if number >= 2 and rng.random() > 0.1:
            kinds = [Kind.LOOKUP, Kind.SEED, Kind.CPU_ONLY, Kind.PLAIN]
            kind = rng.choices(kinds, [2, 2, 0.5, 6])[0]
            sources = tuple(rng.sample(values, min(len(values), rng.randint(1, 3))))
        count = 2 if rng.random() < 0.1 else 1
        results = {
            f"v{number}_{k}": rng.choice([0, 1, 64, rng.randint(1, 5000)]) for k in range(count)
        }
        operators.append(Operator(f"o{number}", kind, sources, results))
        values += results
    return Graph(tuple(operators), frozenset(rng.sample(values, min(3, len(values)))))


def chain_of(*steps: tuple[str, Kind, tuple[str, ...], int], outputs: str) -> Graph:
    """A graph of operators with one result each, which has the name of the operator."""
    made = [Operator(name, kind, sources, {name: size}) for name, kind, sources, size in steps]
    return Graph(tuple(made), frozenset(outputs.split()))


def sent(placement: Placement) -> int:
    return sum(placement.crossing.values())


def test_rule_bytes_sends_at_most_prism_which_sends_at_most_colouring() -> None:
    closer, smaller = 0, 0
    for seed in range(200):
        graph = random_graph(seed, 30)
        coloured = graph.request_bytes(colour(graph, Parts.of(graph)))
        prism, least = sent(place(graph, "prism")), sent(place(graph, "bytes"))
        assert least <= prism <= coloured, f"random_graph({seed}, 30): {least}, {prism}, {coloured}"
        closer += least < prism
        smaller += prism < coloured
    # The rules must differ on enough graphs.
    assert closer > 20
    assert smaller > 20


def test_rule_bytes_is_the_minimum_over_all_placements() -> None:
    compared = 0
    for seed in range(200):
        graph = random_graph(seed, 12)
        parts = Parts.of(graph)
        free = graph.upstream(parts.behind) - parts.behind - parts.fixed
        subsets = chain.from_iterable(combinations(sorted(free), k) for k in range(len(free) + 1))
        costs = [graph.request_bytes(set(parts.behind) | set(subset)) for subset in subsets]
        assert sent(place(graph, "bytes")) == min(costs), f"random_graph({seed}, 12)"
        compared += len(set(costs)) > 1
    assert compared > 50


def test_every_placement_visits_the_dense_half_once() -> None:
    for seed in range(200):
        graph = random_graph(seed, 30)
        parts = Parts.of(graph)
        seeds = graph.of_kind(Kind.SEED) - parts.cpu_seeds
        assert not graph.downstream(parts.post) & (seeds | graph.of_kind(Kind.LOOKUP))
        assert not parts.behind & parts.needed
        for rule in ("prism", "bytes"):
            dense = place(graph, rule).dense
            assert seeds <= dense
            assert not dense & (graph.of_kind(Kind.LOOKUP, Kind.INPUT) | parts.post)


def test_a_small_source_crosses_instead_of_larger_tensors_derived_from_it() -> None:
    # Both masks also affect lookups, so colouring leaves them on the CPU.
    graph = chain_of(
        ("ids", Kind.INPUT, (), 80),
        ("one_hot", Kind.PLAIN, ("ids",), 400),
        ("mask", Kind.PLAIN, ("ids",), 40),
        ("rows", Kind.LOOKUP, ("one_hot", "mask"), 100),
        ("dense", Kind.SEED, ("rows", "one_hot", "mask"), 8),
        outputs="dense",
    )
    assert graph.crossing(colour(graph, Parts.of(graph))).keys() == {"one_hot", "mask", "rows"}
    for rule in ("prism", "bytes"):
        placement = place(graph, rule)
        assert placement.crossing == {"ids": 80, "rows": 100}
        assert {"one_hot", "mask"} <= placement.dense


def test_rule_bytes_pools_on_the_cpu_and_prism_does_not() -> None:
    graph = chain_of(
        ("ids", Kind.INPUT, (), 80),
        ("rows", Kind.LOOKUP, ("ids",), 1000),
        ("mean", Kind.PLAIN, ("rows",), 100),
        ("dense", Kind.SEED, ("mean",), 8),
        outputs="dense",
    )
    assert place(graph, "bytes").crossing == {"mean": 100}
    assert place(graph, "prism").crossing == {"rows": 1000}


def test_with_equal_bytes_the_operator_goes_to_the_dense_half() -> None:
    graph = chain_of(
        ("x", Kind.INPUT, (), 40),
        ("log", Kind.PLAIN, ("x",), 40),
        ("dense", Kind.SEED, ("log",), 8),
        outputs="dense",
    )
    assert place(graph, "bytes").crossing == {"x": 40}


def test_top_k_of_scores_is_post_processing_and_of_inputs_is_not() -> None:
    graph = chain_of(
        ("x", Kind.INPUT, (), 40),
        ("best", Kind.CPU_ONLY, ("x",), 8),
        ("dense", Kind.SEED, ("best",), 8),
        ("probability", Kind.PLAIN, ("dense",), 8),
        ("top", Kind.CPU_ONLY, ("probability",), 4),
        ("rounded", Kind.PLAIN, ("top",), 4),
        outputs="rounded",
    )
    placement = place(graph)
    assert placement.crossing == {"best": 8}
    assert placement.reply == {"probability": 8}
    assert placement.parts.post == {"top", "rounded"}


def test_a_seed_that_a_lookup_depends_on_stays_on_the_cpu() -> None:
    graph = chain_of(
        ("x", Kind.INPUT, (), 40),
        ("router", Kind.SEED, ("x",), 8),
        ("rows", Kind.LOOKUP, ("router",), 80),
        ("dense", Kind.SEED, ("rows",), 8),
        outputs="dense",
    )
    placement = place(graph)
    assert placement.parts.cpu_seeds == {"router"}
    assert placement.crossing == {"rows": 80}


def test_a_users_vector_that_is_repeated_over_candidates_crosses_once() -> None:
    graph = chain_of(
        ("user", Kind.INPUT, (), 8),
        ("item", Kind.INPUT, (), 512),
        ("user_row", Kind.LOOKUP, ("user",), 256),
        ("item_row", Kind.LOOKUP, ("item",), 64 * 256),
        ("repeated", Kind.PLAIN, ("user_row",), 64 * 256),
        ("dense", Kind.SEED, ("repeated", "item_row"), 256),
        outputs="dense",
    )
    for rule in ("prism", "bytes"):
        assert place(graph, rule).crossing == {"user_row": 256, "item_row": 64 * 256}


def test_a_graph_without_seeds_has_no_dense_half() -> None:
    graph = chain_of(
        ("ids", Kind.INPUT, (), 80), ("rows", Kind.LOOKUP, ("ids",), 400), outputs="rows"
    )
    placement = place(graph)
    assert not placement.dense
    assert not placement.crossing
    assert not placement.reply
