"""Published configurations of DLRM: Kalamkar et al. 2020 (arXiv 2005.04680, Table I), and MLPerf's DLRM-DCNv2.

Shapes: T tables.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rowmill.errors import InvalidInput

CRITEO_ROWS = (
    39884406,
    39043,
    17289,
    7420,
    20263,
    3,
    7120,
    1543,
    63,
    38532951,
    2953546,
    403346,
    10,
    2208,
    11938,
    155,
    4,
    976,
    14,
    39979771,
    25641295,
    39664984,
    585935,
    12972,
    108,
    36,
)
"""Rows of MLPerf's 26 tables for the Criteo Terabyte log, capped at 40 million."""

CRITEO_LOOKUPS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
"""Ids per bag of these tables in DLRM-DCNv2."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Tables, layers and batch sizes of a model.

    Attributes:
        rows: Rows of each of the T tables.
        lookups: Ids per bag of each table.
        dim: Weights per row.
        dense: Number of numeric features.
        bottom: Hidden widths of the bottom MLP; a layer of width `dim` follows.
        top: Hidden widths of the top MLP; a layer of width 1 follows.
        cross_layers: Number of low-rank cross layers; 0: dot interaction.
        cross_rank: Rank of the cross layers.
        optimizer: Optimizer of rows and layers.
        lr: Learning rate.
        global_batch: Samples per step over all ranks, constant in strong scaling.
        local_batch: Samples per step of one rank, constant in weak scaling.
    """

    rows: tuple[int, ...]
    lookups: tuple[int, ...]
    dim: int
    dense: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    cross_layers: int = 0
    cross_rank: int = 0
    optimizer: str = "sgd"
    lr: float = 0.1
    global_batch: int
    local_batch: int

    def scaled(self, factor: float) -> Shape:
        """The same layers with this fraction of the rows and of the batch, at least one of each."""
        if not 0 < factor <= 1:
            raise InvalidInput(f"--scale must be above 0 and at most 1, got {factor:g}")

        def part(count: int) -> int:
            return max(1, round(count * factor))

        return replace(
            self,
            rows=tuple(map(part, self.rows)),
            global_batch=part(self.global_batch),
            local_batch=part(self.local_batch),
        )


SHAPES = {
    "small": Shape(
        rows=(1_000_000,) * 8,
        lookups=(50,) * 8,
        dim=64,
        dense=512,
        bottom=(512,),
        top=(1024,) * 3,
        global_batch=8192,
        local_batch=1024,
    ),
    "large": Shape(
        rows=(6_000_000,) * 64,
        lookups=(100,) * 64,
        dim=256,
        dense=2048,
        bottom=(2048,) * 8,
        top=(4096,) * 16,
        global_batch=16384,
        local_batch=512,
    ),
    "mlperf": Shape(
        rows=CRITEO_ROWS,
        lookups=(1,) * 26,
        dim=128,
        dense=13,
        bottom=(512, 256),
        top=(1024, 1024, 512, 256),
        global_batch=16384,
        local_batch=2048,
    ),
    "dcnv2": Shape(
        rows=CRITEO_ROWS,
        lookups=CRITEO_LOOKUPS,
        dim=128,
        dense=13,
        bottom=(512, 256),
        top=(1024, 1024, 512, 256),
        cross_layers=3,
        cross_rank=512,
        optimizer="adagrad",
        lr=0.005,
        global_batch=65536,
        local_batch=8192,
    ),
}
