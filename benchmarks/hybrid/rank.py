"""One rank: trains a cell with every variant in turn, waiting for each message, and with messages beside work.

Started by `run.py` with a JSON object as argument. Rank 0 prints one JSON object per line. All variants have the same
batches, initial rows and dense model, and a store of their own, because a placement belongs to a store.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.dlrm_scaling.random_batch import make_batch
from benchmarks.dlrm_scaling.rank import described, make_features, memory_bytes
from benchmarks.dlrm_scaling.step import Comm, Trainer, dense_optimizer
from benchmarks.dlrm_scaling.timeline import Timeline, Times
from benchmarks.exchange.rank import joined, say
from benchmarks.hybrid.cells import Cell
from rowmill.distributed import Checkpoint, Ranks, ShardedCollection, mean_loads, table_loads
from rowmill.distributed.cost import bytes_of_step
from rowmill.distributed.probe import probe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.hybrid.cells import Variant
    from rowmill.distributed import PlacementKind
    from rowmill.store import Store

COMMS: tuple[Comm, ...] = get_args(Comm)
LOSS_TOLERANCE = 1e-5
"""Largest relative difference of losses of variants, which round sums differently."""


class Comparison:
    """The variants of a cell on this rank."""

    def __init__(self, ranks: Ranks, cell: Cell, folder: Path, seed: int) -> None:
        self.ranks, self.cell, self.seed = ranks, cell, seed
        self.shape = cell.shape
        samples = cell.samples * ranks.count
        begin = cell.samples * ranks.rank
        self.batches = [
            make_batch(
                self.shape,
                cell.skew,
                samples=samples,
                part=slice(begin, begin + cell.samples),
                seed=seed * cell.steps + number,
            )
            for number in range(cell.steps)
        ]
        self.speeds = probe(ranks)
        self.stores: list[Store] = []
        self.rows = {of.name: self._sharded(of, folder / of.name) for of in cell.variants()}
        self.timeline = Timeline()
        torch.manual_seed(seed)
        self.trainers = {
            comm: Trainer(
                self.shape,
                next(iter(self.rows.values())),
                comm=comm,
                precision="fp32",
                samples=samples,
                device=torch.device("cpu"),
                timeline=self.timeline,
            )
            for comm in COMMS
        }
        self._initial = deepcopy(self.trainers["blocking"].model.state_dict())
        """Dense weights at the start of every round."""

    def _sharded(self, variant: Variant, folder: Path) -> ShardedCollection:
        seen = self.cell.steps * self.cell.samples * self.ranks.count
        store = Checkpoint(folder, ranks=self.ranks).open(
            seed=self.seed,
            placement=variant.placement,
            memory=memory_bytes(self.shape, seen=seen, ranks=self.ranks.count),
            threads=1,
        )
        self.stores.append(store)
        rows = ShardedCollection(
            make_features(self.shape, store, "fp32"),
            ranks=self.ranks,
            strategy=variant.strategy,
            speeds=self.speeds,
        )
        rows.place([batch.ids for batch in self.batches])
        return rows

    def described(self) -> dict[str, Any]:
        """Per variant the number of tables by placement, and the bytes that a rank sends in a step by the formula."""
        features = next(iter(self.rows.values())).features
        loads = mean_loads(
            self.ranks.gather(table_loads(features, [batch.ids for batch in self.batches]))
        )
        return {
            name: {
                "placements": Counter(rows.placements.values()),
                "formula_bytes": sum(
                    bytes_of_step(load, _kind(rows.placements[load.name]), self.ranks.count)
                    for load in loads
                ),
            }
            for name, rows in self.rows.items()
        }

    def measure(self, variant: str) -> list[dict[str, Any]]:
        """Run one round of a variant, a collective; returns by rank what each way of communication has shown."""
        return self.ranks.gather({comm: self._steps(comm, self.rows[variant]) for comm in COMMS})

    def _steps(self, comm: Comm, rows: ShardedCollection) -> dict[str, Any]:
        """Train on every batch once, after a step that is not measured."""
        trainer = self.trainers[comm]
        trainer.model.load_state_dict(self._initial)
        trainer.optimizer = dense_optimizer(self.shape, "fp32", trainer.model)
        trainer.use(rows)
        first, *others = self.batches
        trainer.step(self.batches[-1], first)
        dist.barrier()
        self.timeline.times = Times()
        rows.traffic.reset()
        steps = zip(self.batches, [*others, first], strict=True)
        losses = [trainer.step(batch, following).item() for batch, following in steps]
        count = len(self.batches)
        seen = {
            **described(self.timeline.times, count),
            "bytes": {leg: sent / count for leg, sent in rows.traffic.bytes_sent.items()},
            "losses": losses,
        }
        if comm == "overlap":
            # The last measured step has requested the rows of this one.
            trainer.step(first, None)
        return seen

    def close(self) -> None:
        """Close all stores."""
        for store in self.stores:
            store.close()


def check_losses(baseline: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> None:
    """Raise unless the measurements of a round of two variants show the same losses."""
    for comm in COMMS:
        expected, found = (
            [sum(shares) for shares in zip(*(seen[comm]["losses"] for seen in of), strict=True)]
            for of in (baseline, other)
        )
        for a, b in zip(expected, found, strict=True):
            if not math.isclose(a, b, rel_tol=LOSS_TOLERANCE):
                raise RuntimeError(f"losses of variants differ: {expected} and {found}")


def _kind(placement: str) -> PlacementKind:
    return cast("PlacementKind", placement.partition(":")[0])


def main() -> None:
    """Run all rounds of a cell, with a rotating first variant."""
    job = json.loads(sys.argv[1])
    rank, ranks = job["rank"], joined(job, threads=1)
    compared = Comparison(ranks, Cell(**job["cell"]), Path(job["folder"]), job["seed"])
    described = compared.described()
    if rank == 0:
        say(kind="variants", speeds=asdict(compared.speeds), described=described)
    names = list(compared.rows)
    # The first round creates the rows.
    for number in range(-1, job["rounds"]):
        first = number % len(names)
        found: dict[str, list[dict[str, Any]]] = {}
        for variant in names[first:] + names[:first]:
            found[variant] = compared.measure(variant)
            if rank == 0 and number >= 0:
                say(kind="round", variant=variant, round=number, seen=found[variant])
        for seen in found.values():
            check_losses(found[names[0]], seen)
    compared.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
