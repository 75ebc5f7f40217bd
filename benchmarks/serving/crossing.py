"""Bytes that cross between the halves of each model: by each rule, and by colouring alone."""

from benchmarks import common
from benchmarks.serving.part import Part
from benchmarks.serving.requests import requests
from rowmill.partition.capture import capture
from rowmill.partition.colouring import colour
from rowmill.partition.placement import place


def crossing(benchmark: common.Benchmark, part: Part) -> None:
    """Put the bytes of a nominal request into the summary."""
    for shape in part.settings.models:
        examples = requests(shape, part.settings.rows, count=1, seed=part.bundles.seed)
        with part.bundles.module(shape) as module:
            graph = capture(module, examples).graph
            placement = place(graph, "prism")
            sent = {
                "prism": placement.crossing,
                "bytes": place(graph, "bytes").crossing,
                "colouring": graph.crossing(colour(graph, placement.parts)),
                "reply": placement.reply,
            }
        for name, values in sent.items():
            benchmark.summary[f"{shape.name}_{name}_bytes"] = float(sum(values.values()))
