"""`report.html` of a bundle: both halves, the tensors that are sent between them, and the time of each operator."""

from __future__ import annotations

import time
from html import escape
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from rowmill.partition.capture import is_size, source_line
from rowmill.partition.colouring import colour
from rowmill.partition.operators import name_of
from rowmill.partition.placement import place
from rowmill.partition.subgraph import Constants

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rowmill.partition.capture import Captured, Example
    from rowmill.partition.split import Split

_STYLE = """body{font:14px system-ui;margin:2em auto;max-width:70em;color:#222}table{border-collapse:collapse;margin:1em 0}
td,th{padding:.2em .8em;border-bottom:1px solid #ddd;text-align:left}td.n{text-align:right;font-variant-numeric:tabular-nums}"""
_REPEATS = 3


def report(split: Split, example: Example) -> str:
    """The page as HTML that loads nothing."""
    captured, placement = split.captured, split.placement
    graph = captured.graph
    ways = {
        "colouring alone, no rule": graph.crossing(colour(graph, placement.parts)),
        "prism": place(graph, "prism").crossing,
        "bytes": place(graph, "bytes").crossing,
    }
    values = sorted({value for way in ways.values() for value in way})
    crossing = [
        (value, *(f"{way[value]:,}" if value in way else "" for way in ways.values()))
        for value in values
    ]
    crossing.append(("all", *(f"{sum(way.values()):,}" for way in ways.values())))
    reply = [(value, f"{size:,}") for value, size in placement.reply.items()]
    seconds = operator_seconds(captured, example)
    nodes = {node.name: node for node in captured.program.graph.nodes}
    operators = [
        (
            name,
            name_of(nodes[name].target),
            _half(split, name),
            f"{1e6 * spent:,.0f}",
            source_line(nodes[name]),
        )
        for name, spent in seconds.items()
    ]
    shares: dict[str, float] = {}
    for name, spent in seconds.items():
        shares[_half(split, name)] = shares.get(_half(split, name), 0.0) + spent
    halves = [(half, f"{1e6 * spent:,.0f}") for half, spent in shares.items()]
    body = [
        "<h1>Both halves of a model</h1>",
        f"<p>Rule: {escape(placement.rule)}. Bytes and times are those of one nominal request, on one CPU.</p>",
        *(f"<p>{escape(warning)}</p>" for warning in split.warnings),
        "<h2>What crosses to the dense half</h2>",
        _table(("value", *(f"bytes, {way}" for way in ways)), crossing, numbers=range(1, 4)),
        "<h2>What comes back</h2>",
        _table(("value", "bytes"), reply, numbers=[1]),
        "<h2>Time of each half</h2>",
        _table(("half", "us"), halves, numbers=[1]),
        "<h2>Operators</h2>",
        _table(("name", "operator", "half", "us", "line"), operators, numbers=[3]),
    ]
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Bundle</title><style>{_STYLE}</style>"
        + "\n".join(body)
        + "</html>\n"
    )


def operator_seconds(captured: Captured, example: Example) -> dict[str, float]:
    """For each operator that takes an input, the shortest of a few times at the nominal request."""
    timer = _Timer(captured)
    for _ in range(_REPEATS):
        timer.time(example)
    return timer.seconds


class _Timer(fx.Interpreter):
    def __init__(self, captured: Captured) -> None:
        super().__init__(captured.program.graph_module)
        self.seconds: dict[str, float] = {}
        self._captured = captured
        self._constants = Constants(captured.program)

    def time(self, example: Example) -> None:
        captured = self._captured
        tensors = dict(zip(captured.inputs, captured.flat(example), strict=True))
        nodes = captured.program.graph.nodes
        placeholders = [node for node in nodes if node.op == "placeholder"]
        arguments = [
            tensors[node.name] if node.name in tensors else self._constants.value(node)
            for node in placeholders
        ]
        with torch.no_grad():
            self.run(*arguments)

    def run_node(self, n: fx.Node) -> Any:
        begun = time.perf_counter()
        result = super().run_node(n)
        spent = time.perf_counter() - begun
        timed = n.op == "call_function" and n.meta.get("val") is not None and not is_size(n)
        if timed and n.name not in self._captured.constant:
            self.seconds[n.name] = min(spent, self.seconds.get(n.name, spent))
        return result


def _half(split: Split, name: str) -> str:
    graph, placement = split.captured.graph, split.placement
    makers = {value: item.name for item in graph.operators for value in item.results}
    name = makers.get(name, name)
    if name in placement.parts.post:
        return "CPU, after the reply"
    if name not in placement.dense:
        return "CPU"
    return "both" if name in placement.parts.needed else "dense"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]], *, numbers: Iterable[int]) -> str:
    right = set(numbers)
    lines = ["<table><tr>", *(f"<th>{escape(title)}</th>" for title in head), "</tr>"]
    for row in rows:
        cells = (
            f"<td{' class=n' if at in right else ''}>{escape(cell)}</td>"
            for at, cell in enumerate(row)
        )
        lines += ["<tr>", *cells, "</tr>"]
    return "".join([*lines, "</table>"])
