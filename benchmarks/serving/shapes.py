"""The models that are served: sizes, and modules over tables of a store.

Shapes: B rows of a request, F features, L ids per bag, D weights per row.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from rowmill.ctr.models import DLRM
from rowmill.nn import EmbeddingCollection, Feature, RaggedBatch, StackedBags
from rowmill.store.tables import Table

D = 64
NUMBERS = 13
"""Numeric inputs of DLRM."""
BOTTOM, TOP = (128, 64), (256, 128)
"""Hidden layers of DLRM: the defaults of `rowmill train`."""


@dataclass(frozen=True)
class Shape:
    """A model and its requests.

    Attributes:
        name: Its name in results.
        batch: B.
        features: F, a table for each.
        ids: L.
        layers: Hidden layers of the dense half.
        kind: "mlp" over all pooled vectors; "mean" over features before the layers; "dlrm"; "padded", whose dense half
            repeats one layer until it takes the time that the benchmark of overload needs.
        repeats: Layers of a "padded" model.
    """

    name: str
    batch: int
    features: int
    ids: int
    layers: tuple[int, ...]
    kind: str = "mlp"
    repeats: int = 0

    @property
    def pooled_bytes(self) -> int:
        """Bytes of the pooled vectors of a request."""
        return self.batch * self.features * D * 4


SPLIT = (
    Shape("XS", 64, 34, 2, (2048, 1024)),
    Shape("S", 256, 109, 5, (512, 256)),
    Shape("M", 256, 62, 10, (512, 256)),
    Shape("L", 256, 59, 10, (256,)),
    Shape("XL", 512, 72, 20, (64,), "mean"),
)
"""The models of the comparison of halves."""
CLICKS = Shape("dlrm", 64, 26, 1, TOP, "dlrm")
"""The model of the comparison with other servers: 64 candidates."""
PADDED = Shape("padded", 64, 8, 1, (1024,), "padded", 1)
"""The model of the overload; `repeats` is fitted to the machine."""


class Pooled(nn.Module):
    """Bags of a fixed number of ids, pooled, then dense layers."""

    def __init__(self, shape: Shape, tables: list[Table]) -> None:
        super().__init__()
        self.bags = EmbeddingCollection(Feature(table.name, table) for table in tables)
        self.layers = _layers(shape)
        self._names = tuple(table.name for table in tables)
        self._ids = shape.ids
        self._mean = shape.kind == "mean"

    def forward(self, ids: Tensor) -> Tensor:
        """Scores, float32 [B], for ids, int64 [B, F * L]."""
        batch, features = ids.shape[0], len(self._names)
        values = ids.view(batch, features, self._ids).permute(1, 0, 2).reshape(-1)
        offsets = torch.arange(features * batch + 1) * self._ids
        pooled = self.bags(RaggedBatch(self._names, values, offsets))
        if self._mean:
            pooled = pooled.view(batch, features, D).mean(1)
        return self.layers(pooled).squeeze(1).sigmoid()


class Clicks(nn.Module):
    """DLRM, whose answer is a probability."""

    def __init__(self, shape: Shape, tables: list[Table]) -> None:
        super().__init__()
        bags = StackedBags(Feature(table.name, table) for table in tables)
        self.model = DLRM(
            bags, features=shape.features, dim=D, dense_features=NUMBERS, bottom=BOTTOM, top=TOP
        )

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Probabilities, float32 [B], for numbers [B, 13] and ids, int64 [B, F]."""
        return self.model(dense, ids).sigmoid()


def module_of(shape: Shape, tables: list[Table], seed: int) -> nn.Module:
    """The module of a shape over the first F tables, with random weights."""
    torch.manual_seed(seed)
    tables = tables[: shape.features]
    return (Clicks if shape.kind == "dlrm" else Pooled)(shape, tables).eval()


def _layers(shape: Shape) -> nn.Sequential:
    width = D if shape.kind == "mean" else shape.features * D
    widths = [width, *shape.layers * max(shape.repeats, 1)]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 1))
