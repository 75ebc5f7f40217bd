"""Which column of a log each entry of a click model's dense weights belongs to.

`input_names` lists the weights whose shape depends on the columns. With the names of two models, `renamed` of
`rowmill.saved.resizing` gives the weights of one to the other: entries of a column that both have keep their values, and entries
of a new column are 0. Where these entries are inputs of a layer, the new column changes no output until training changes them.
Names of vectors have the number of the weight, so they fit a model of another dim, too.

The names follow the order in which the models concatenate their inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from rowmill.config.sections import ModelConfig
    from rowmill.ctr.data import Schema
    from rowmill.saved.resizing import Names


def input_names(config: ModelConfig, schema: Schema) -> dict[str, tuple[Names, ...]]:
    """For each dense weight whose shape depends on the columns, the names of its entries along every dimension.

    Args:
        config: The model, one of those of `rowmill.ctr.click_model`.
        schema: The columns that `schema_for` returned.
    """
    dim = config.dim
    dense: list[Hashable] = [("numeric", name) for name in schema.dense]
    histories = dict(schema.histories)
    others = _vectors((name for name in schema.ids if name not in histories), dim)
    everything: list[Hashable] = [*dense, *_vectors(schema.ids, dim)]
    match config.kind:
        case "dlrm":
            pairs = [
                frozenset((one, other))
                for number, one in enumerate(schema.ids)
                for other in (None, *schema.ids[:number])
            ]
            top = [*_fixed("bottom", dim), *pairs]
            return {"bottom.0.weight": (None, dense), "top.0.weight": (None, top)}
        case "dcn_v2":
            crossed = {
                f"crosses.{number}.{name}": names
                for number in range(config.cross_layers)
                for name, names in {
                    "inward.weight": (None, everything),
                    "outward.weight": (everything, None),
                    "outward.bias": (everything,),
                }.items()
            }
            deep: list[Hashable] = [("deep", name) for name in everything]
            if config.deep:
                crossed["deep.0.weight"] = (None, everything)
                deep = _fixed("deep", config.deep[-1])
            return {**crossed, "join.0.weight": (None, [*everything, *deep])}
        case "ffnn":
            return {"layers.0.weight": (None, everything)}
        case "wide_deep" | "mt_wide_deep":
            inputs = (None, [*dense, *_vectors(schema.ids, dim, first=1)])
            found: dict[str, tuple[Names, ...]] = {"wide.weight": (None, dense)}
            if schema.gated:
                found["wide.gates"] = (schema.gated,)
            if config.kind == "wide_deep":
                return {**found, "deep.0.weight": inputs}
            if config.deep:
                return {**found, "shared.0.weight": inputs}
            return found | {f"towers.{n}.0.weight": inputs for n in range(len(schema.labels))}
        case "ncf":
            inputs = [*_vectors(("user", "item"), dim // 2), *dense]
            if config.deep:
                return {"layers.0.weight": (None, inputs)}
            return {"join.0.weight": (None, [*_fixed("product", dim // 2), *inputs])}
        case "two_tower":
            users = _vectors((name for name in schema.ids if name not in schema.item_ids), dim)
            items = _vectors(schema.item_ids, dim)
            means = _of_histories(histories, "mean", dim)
            return {
                "user.0.weight": (None, [*dense, *users, *means]),
                "item.0.weight": (None, items),
            }
        case "din" | "dien":
            target, interest = (
                _of_histories(histories, what, dim) for what in ("target", "interest")
            )
            inputs = [*dense, *others, *target, *interest]
            return {"layers.0.0.weight": (None, inputs)}
        case "bst":
            width = (schema.places + 1) * len(histories) * dim
            return {"layers.0.weight": (None, [*dense, *others, *_fixed("items", width)])}
        case _:
            raise AssertionError(f"{config.kind} is not a click model")


def _vectors(ids: Iterable[str], dim: int, first: int = 0) -> list[Hashable]:
    return [("vector", name, weight) for name in ids for weight in range(first, dim)]


def _of_histories(histories: Iterable[str], what: str, dim: int) -> list[Hashable]:
    return [(what, name, weight) for name in histories for weight in range(dim)]


def _fixed(what: str, count: int) -> list[Hashable]:
    return [("fixed", what, number) for number in range(count)]
