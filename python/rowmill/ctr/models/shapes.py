"""Eight published models by name, with the table sizes of RecSSD (Wilkening et al. 2021, section 5).

`SHAPES["rm1"].build(embeddings)` builds the model; the shape describes the embeddings that it needs. Numbers of tables,
rows, dims and ids per bag are those of the paper, where it states them. It does not state the rows of DIN's and DIEN's
tables, the number of behaviour tables among DIEN's 43, the tasks of MT-WnD, and the widths of the dense layers. The
widths follow DeepRecSys for the same models (Gupta et al. 2020, arXiv 2001.02772, table 1); the rest is our choice.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from rowmill.ctr.models.dien import DIEN
from rowmill.ctr.models.din import DIN
from rowmill.ctr.models.dlrm import DLRM
from rowmill.ctr.models.history import Histories
from rowmill.ctr.models.ncf import NCF
from rowmill.ctr.models.wide_deep import MultiTaskWideDeep, WideDeep


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The inputs that a model needs, and a function that builds it.

    Attributes:
        tables: number of tables, one per feature; with `histories` one per id column.
        rows: ids per table.
        dim: weights per row.
        lookups: ids per bag.
        dense_features: number of numeric features.
        build: builds the model over embeddings that return ``[B, tables, dim]``.
        histories: layout of the histories, if the model has any.
    """

    tables: int
    rows: int
    dim: int
    lookups: int
    dense_features: int
    build: Callable[[nn.Module], nn.Module]
    histories: Histories | None = None


_DIN = Histories(features=4, targets=(1,), places=250)
_DIEN = Histories(features=3, targets=(1,), places=40)


def _dlrm(
    tables: int, dim: int, lookups: int, bottom: tuple[int, ...], top: tuple[int, ...]
) -> ModelShape:
    def build(embeddings: nn.Module) -> nn.Module:
        return DLRM(embeddings, features=tables, dim=dim, bottom=bottom, top=top)

    return ModelShape(
        tables=tables, rows=1_000_000, dim=dim, lookups=lookups, dense_features=13, build=build
    )


SHAPES = {
    "rm1": _dlrm(8, 32, 80, (256, 128), (256, 64)),
    "rm2": _dlrm(32, 64, 120, (256, 128), (512, 128)),
    "rm3": _dlrm(10, 32, 20, (2560, 512), (512, 128)),
    "wnd": ModelShape(
        tables=27,
        rows=100_000,
        dim=32,
        lookups=1,
        dense_features=13,
        build=lambda bags: WideDeep(bags, features=27, dim=32, hidden=(1024, 512, 256)),
    ),
    "mt_wnd": ModelShape(
        tables=43,
        rows=610_000,
        dim=32,
        lookups=1,
        dense_features=13,
        build=lambda bags: MultiTaskWideDeep(
            bags, features=43, dim=32, tasks=3, shared=(1024,), tower=(512, 256)
        ),
    ),
    "din": ModelShape(
        tables=_DIN.columns,
        rows=100_000,
        dim=32,
        lookups=3,
        dense_features=0,
        build=lambda bags: DIN(bags, histories=_DIN, dim=32),
        histories=_DIN,
    ),
    "dien": ModelShape(
        tables=_DIEN.columns,
        rows=100_000,
        dim=32,
        lookups=3,
        dense_features=0,
        build=lambda bags: DIEN(bags, histories=_DIEN, dim=32),
        histories=_DIEN,
    ),
    "ncf": ModelShape(
        tables=4,
        rows=100_000,
        dim=32,
        lookups=1,
        dense_features=0,
        build=lambda bags: NCF(bags, dim=32, hidden=(256, 256, 128)),
    ),
}
"""The models by their names in the paper, in lower case."""
