"""How long does a training step of DLRM take, compared with the same model in plain torch?

Everything is in memory; both sides use SGD, the same initial values and the same batches. Ours: stored tables with the
fused interaction, in fp32, and in split-bf16 with layers in bfloat16. Plain torch: `nn.EmbeddingBag(sparse=True)` in
fp32, with the interaction of the published DLRM code or with a faster selection of pairs. The parts of a step
(embeddings, interaction, MLPs) are timed separately. The largest shape compares only our own variants.
"""

import gc
import os
import sys

# Set before torch allocates, so that the rows of both sides use huge pages.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import rowmill
from benchmarks import common
from benchmarks.dlrm_scaling.shapes import SHAPES as PUBLISHED
from rowmill.ctr.models import DLRM, dot_interaction
from rowmill.ops.interaction import interaction
from rowmill.train.dense import multiplies_bf16

if TYPE_CHECKING:
    from numpy.typing import NDArray

THREADS = 2
RATE = 0.1
ZIPF = 1.05
BATCHES = 4
"""Number of distinct batches, used in rotation."""
STEPS_COMPARED = 2
"""Number of first steps whose losses are compared; each further step amplifies earlier rounding differences."""
BF16_TOLERANCE = 2e-2
"""Largest relative difference of losses if layers run in bfloat16."""
TOLERANCE = 1e-2
"""Largest relative difference of losses, and of the change of rows; a single wrong table of 26 exceeds it."""


@dataclass(frozen=True)
class Shape:
    """A configuration of Kalamkar et al. 2020 (arXiv 2005.04680), Table I."""

    tables: int
    rows: int
    """Rows per table."""
    dim: int
    lookups: int
    """Ids per bag."""
    dense: int
    """Number of numeric features."""
    bottom: tuple[int, ...]
    """Hidden widths of the bottom MLP; a layer of width `dim` follows."""
    top: tuple[int, ...]
    """Hidden widths of the top MLP; a layer of width 1 follows."""
    row_rate: float
    """Learning rate of rows. It is large where few ids share a row: gradients of a mean over a batch are then small."""
    batch: int = 2048
    peer: bool = True
    """Whether plain torch is measured too."""

    @property
    def pairs(self) -> int:
        """Number of pairs of vectors."""
        return (self.tables + 1) * self.tables // 2


def _cut(name: str, *, rows: int, row_rate: float, batch: int = 2048, peer: bool = True) -> Shape:
    """The published shape with `rows` rows in every table."""
    shape = PUBLISHED[name]
    return Shape(
        tables=len(shape.rows),
        rows=rows,
        dim=shape.dim,
        lookups=shape.lookups[0],
        dense=shape.dense,
        bottom=shape.bottom,
        top=shape.top,
        row_rate=row_rate,
        batch=batch,
        peer=peer,
    )


SHAPES = {
    "small": _cut("small", rows=1_000_000, row_rate=1.0),
    # Tables are capped so that both sides fit into memory.
    "mlperf": _cut("mlperf", rows=100_000, row_rate=100.0),
    # The layers dominate: tables are small, and the batch is that of one rank.
    "large": _cut("large", rows=5_000, row_rate=1.0, batch=512, peer=False),
}


@dataclass(frozen=True)
class Batch:
    """The input of one step."""

    dense: Tensor
    ids: tuple[Tensor, ...]
    """Per table, int64 [batch * lookups]."""
    offsets: tuple[Tensor, ...]
    """Per table, the offset of each bag, int64 [batch]."""
    labels: Tensor


def batches(shape: Shape, skew: str, seed: int) -> list[Batch]:
    """Random batches. Frequent ids are scattered over the whole range, differently in every table."""
    random = np.random.default_rng(seed)
    count = shape.batch * shape.lookups
    weights = np.arange(1, shape.rows + 1, dtype=np.float64) ** -ZIPF
    shares: NDArray[np.float64] = np.cumsum(weights) / weights.sum()
    orders = [random.permutation(shape.rows) for _ in range(shape.tables)]
    offsets = torch.arange(0, count, shape.lookups)
    made: list[Batch] = []
    for _ in range(BATCHES):
        ids: list[Tensor] = []
        for order in orders:
            if skew == "uniform":
                drawn = random.integers(0, shape.rows, count)
            else:
                ranks: NDArray[np.intp] = np.searchsorted(shares, random.random(count))
                drawn = order[np.minimum(ranks, shape.rows - 1)]
            ids.append(torch.from_numpy(drawn))
        dense = torch.from_numpy(random.random((shape.batch, shape.dense), np.float32))
        labels = torch.from_numpy(random.integers(0, 2, shape.batch).astype(np.float32))
        made.append(Batch(dense, tuple(ids), (offsets,) * shape.tables, labels))
    return made


def torch_mlp(inputs: int, widths: Sequence[int], *, relu_last: bool) -> nn.Sequential:
    """An MLP in plain torch with the layout of `rowmill.ctr.models.mlp`."""
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*(layers if relu_last else layers[:-1]))


class TorchDLRM(nn.Module):
    """The model in plain torch.

    Args:
        shape: Shape of tables and MLPs.
        weights: The initial rows of each table.
        pick: How to select pairs from the matrix of products: "index" as in the published DLRM code, or "select", whose
            backward pass is faster.
    """

    def __init__(self, shape: Shape, weights: Iterable[Tensor], pick: str) -> None:
        super().__init__()
        self.shape = shape
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(shape.rows, shape.dim, mode="sum", sparse=True, _weight=rows)
            for rows in weights
        )
        self.bottom = torch_mlp(shape.dense, [*shape.bottom, shape.dim], relu_last=True)
        self.top = torch_mlp(shape.dim + shape.pairs, [*shape.top, 1], relu_last=False)
        self.pick = pick
        self.row, self.column = torch.tril_indices(shape.tables + 1, shape.tables + 1, offset=-1)

    def pool(self, ids: Sequence[Tensor], offsets: Sequence[Tensor]) -> list[Tensor]:
        """One vector per table."""
        return [bag(*of) for bag, *of in zip(self.bags, ids, offsets, strict=True)]

    def interact(self, dense_BD: Tensor, pooled: list[Tensor]) -> Tensor:
        """The dense vector followed by the dot products of all pairs."""
        batch, dim = dense_BD.shape
        vectors_BVD = torch.cat([dense_BD, *pooled], dim=1).view(batch, -1, dim)
        if self.pick == "select":
            pairs = dot_interaction(vectors_BVD)
        else:
            products_BVV = torch.bmm(vectors_BVD, vectors_BVD.transpose(1, 2))
            pairs = products_BVV[:, self.row, self.column]
        return torch.cat([dense_BD, pairs], dim=1)

    def forward(self, dense: Tensor, ids: Sequence[Tensor], offsets: Sequence[Tensor]) -> Tensor:
        """Logits."""
        dense_BD = self.bottom(dense)
        return self.top(self.interact(dense_BD, self.pool(ids, offsets))).squeeze(1)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, *, narrow: bool = False
) -> Tensor:
    """Run forward, backward and update, optionally with layers in bfloat16; returns the loss."""
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
        logits = model(batch.dense, batch.ids, batch.offsets)
    loss = binary_cross_entropy_with_logits(logits.float(), batch.labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


class Plain:
    """Plain torch: the model with one optimizer for rows and MLPs."""

    def __init__(self, model: TorchDLRM) -> None:
        self.model = model
        rows = list(model.bags.parameters())
        dense = [*model.bottom.parameters(), *model.top.parameters()]
        self.optimizer = torch.optim.SGD(
            [{"params": rows, "lr": model.shape.row_rate}, {"params": dense, "lr": RATE}]
        )
        self.rows_optimizer = torch.optim.SGD(rows, lr=model.shape.row_rate)

    def step(self, batch: Batch) -> Tensor:
        """Run one training step; returns the loss."""
        return train_step(self.model, self.optimizer, batch)

    def embed(self, batch: Batch, gradient_BFD: Tensor) -> None:
        """Run only the embeddings of a step: pool, apply a gradient, update."""
        self.rows_optimizer.zero_grad()
        pooled = self.model.pool(batch.ids, batch.offsets)
        torch.autograd.backward(pooled, list(gradient_BFD.unbind(1)))
        self.rows_optimizer.step()


class Stored:
    """Ours: stored tables updated by the backward pass, the fused interaction, an optimizer for the MLPs.

    Args:
        shape: Shape of tables and MLPs.
        weights: The initial rows of each table.
        state: Initial weights of the MLPs, a state dict; None: random.
        folder: Folder of the store.
        split: Whether rows and MLPs are split-bf16.
    """

    def __init__(
        self,
        shape: Shape,
        weights: Iterable[Tensor],
        state: Mapping[str, Tensor] | None,
        folder: Path,
        *,
        split: bool,
    ) -> None:
        memory = shape.tables * shape.rows * (4 * shape.dim + 64) * 3 // 2 + (256 << 20)
        self.store = rowmill.open(folder, memory=memory, threads=THREADS)
        self.tables = [
            self.store.table(
                f"t{number}",
                dim=shape.dim,
                optimizer=rowmill.optim.SGD(lr=shape.row_rate),
                num_rows=shape.rows,
                dtype="split-bf16" if split else "fp32",
            )
            for number in range(shape.tables)
        ]
        self.dtype = torch.bfloat16 if split else torch.float32
        self.bags = rowmill.nn.StackedBags(
            (rowmill.nn.Feature(t.name, t) for t in self.tables), output_dtype=self.dtype
        )
        self.model = DLRM(
            self.bags,
            features=shape.tables,
            dim=shape.dim,
            dense_features=shape.dense,
            bottom=shape.bottom,
            top=shape.top,
        )
        for table, rows in zip(self.tables, weights, strict=True):
            for first in range(0, shape.rows, 1 << 16):
                ids = torch.arange(first, min(first + (1 << 16), shape.rows))
                table.put(ids, rows[ids])
        if state is not None:
            rowmill.nn.load_dense_state_dict(self.model, state)
        self.split = split
        self.optimizer = (rowmill.optim.SplitSGD if split else torch.optim.SGD)(
            self.model.parameters(), lr=RATE
        )

    def step(self, batch: Batch) -> Tensor:
        """Run one training step; returns the loss."""
        return train_step(self.model, self.optimizer, batch, narrow=self.split)

    def announce(self, batch: Batch) -> None:
        """Announce the next batch, as `rowmill train` does."""
        self.store.lookahead(dict(zip(self.tables, batch.ids, strict=True)))

    def embed(self, batch: Batch, gradient_BFD: Tensor) -> None:
        """Run only the embeddings of a step: pool, apply a gradient, update."""
        self.bags(batch.ids, batch.offsets).backward(gradient_BFD)


SKEWS = ("uniform", "zipf")


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument(
        "shapes", nargs="*", help=f"shapes to run, of {', '.join(SHAPES)} (default: all)"
    )
    parser.add_argument("--ids", choices=SKEWS, help="distribution of ids (default: both)")
    arguments = parser.parse_args()
    unknown = set(arguments.shapes) - set(SHAPES)
    if unknown:
        parser.error(f"unknown shapes {sorted(unknown)}; use {', '.join(SHAPES)}")
    benchmark = common.Benchmark(common.settings(arguments))
    torch.set_num_threads(THREADS)
    for name in arguments.shapes or SHAPES:
        for skew in SKEWS if arguments.ids is None else (arguments.ids,):
            shape, cell = SHAPES[name], f"{name}_{skew}"
            if shape.peer:
                compare(benchmark, cell, shape, skew)
            else:
                compare_ours(benchmark, cell, shape, skew)
            gc.collect()  # Free the tables of this cell before the next cell allocates.
    benchmark.write()


def precisions() -> dict[str, bool]:
    """Our variants by name, with whether they are split-bf16; only fp32 on a processor without bfloat16 instructions."""
    return {"stored": False, "stored_split": True} if multiplies_bf16() else {"stored": False}


def compare(benchmark: common.Benchmark, cell: str, shape: Shape, skew: str) -> None:
    """Compare steps of all sides, then parts of a step."""
    quick, seed = benchmark.settings.quick, benchmark.settings.seed
    made = batches(shape, skew, seed)
    torch.manual_seed(seed)
    # Wide enough that products of rows affect the logits, not only the dense vectors.
    weights = [torch.empty(shape.rows, shape.dim).uniform_(-0.1, 0.1) for _ in range(shape.tables)]
    # Both ways to select pairs share tables and optimizer, so that only the interaction differs.
    torch_model = TorchDLRM(shape, weights, "index")
    state = {name: value for name, value in torch_model.state_dict().items() if "bags" not in name}
    with tempfile.TemporaryDirectory(prefix="rowmill-") as folder:
        ours = {
            name: Stored(shape, weights, state, Path(folder) / name, split=split)
            for name, split in precisions().items()
        }
        plain = Plain(torch_model)
        check_same(benchmark, cell, ours, plain, made)
        rounds, steps = (5, 3) if quick else (9, 8)
        stored = ours["stored"]
        samples = benchmark.compare(
            {
                **{f"{cell}_{name}": run(side.step, made, steps) for name, side in ours.items()},
                f"{cell}_stored_announced": run(stored.step, made, steps, stored.announce),
                f"{cell}_torch": run(picking(plain, "index"), made, steps),
                f"{cell}_torch_select": run(picking(plain, "select"), made, steps),
            },
            rounds=rounds,
        )
        for name, taken in samples.items():
            summarize_times(benchmark, name, taken)
        for name in (*ours, "stored_announced"):
            for peer in ("torch", "torch_select"):
                summarize_share(benchmark, samples, cell, name, peer)
        parts = benchmark.compare(
            {f"{cell}_{name}": work for name, work in part_runs(shape, ours, plain, made, steps)},
            rounds=rounds,
        )
        for name, taken in parts.items():
            summarize_times(benchmark, name, taken)
        for side in ours.values():
            side.store.close()


def compare_ours(benchmark: common.Benchmark, cell: str, shape: Shape, skew: str) -> None:
    """Compare our steps in fp32 and split-bf16, for a model too large to hold plain torch in memory too."""
    quick, seed = benchmark.settings.quick, benchmark.settings.seed
    if len(precisions()) < 2:
        print(f"{cell}: skipped, this processor has no bfloat16 instructions", file=sys.stderr)
        return
    made = batches(shape, skew, seed)
    torch.manual_seed(seed)
    weights = [torch.empty(shape.rows, shape.dim).uniform_(-0.1, 0.1) for _ in range(shape.tables)]
    with tempfile.TemporaryDirectory(prefix="rowmill-") as folder:
        first = Stored(shape, weights, None, Path(folder) / "stored", split=False)
        state = rowmill.nn.dense_state_dict(first.model)
        second = Stored(shape, weights, state, Path(folder) / "split", split=True)
        losses = [[side.step(made[0]).item() for side in (first, second)] for _ in range(2)]
        check_losses(benchmark, f"{cell}_stored_split", losses, BF16_TOLERANCE)
        samples = benchmark.compare(
            {
                f"{cell}_stored": run(first.step, made, 1),
                f"{cell}_stored_split": run(second.step, made, 1),
            },
            rounds=3 if quick else 9,
            warm_up=0,
        )
        for name, taken in samples.items():
            summarize_times(benchmark, name, taken)
        summarize_share(benchmark, samples, cell, "stored_split", "stored")
        updates = benchmark.compare(
            {
                f"{cell}_update_{name}": run(updating(side), made, 1)
                for name, side in (("stored", first), ("stored_split", second))
            },
            rounds=3,
            warm_up=0,
        )
        for name, taken in updates.items():
            summarize_times(benchmark, name, taken)
        for side in (first, second):
            side.store.close()


def updating(side: Stored) -> Callable[[Batch], None]:
    """Only the update of the MLPs, with the gradients of the step before."""

    def work(_: Batch) -> None:
        side.optimizer.step()

    return work


def summarize_share(
    benchmark: common.Benchmark,
    samples: Mapping[str, Sequence[common.Sample]],
    cell: str,
    ours: str,
    peer: str,
) -> None:
    """Add the ratio of the times of two variants, computed per round."""
    pair = zip(samples[f"{cell}_{ours}"], samples[f"{cell}_{peer}"], strict=True)
    benchmark.summarize(
        f"{cell}_{ours}_time_over_{peer}",
        common.Median.of(one.wall_s / other.wall_s for one, other in pair),
    )


def picking(plain: Plain, pick: str) -> Callable[[Batch], Tensor]:
    """A step of the plain model that selects pairs in this way."""

    def step(batch: Batch) -> Tensor:
        plain.model.pick = pick
        return plain.step(batch)

    return step


def check_same(
    benchmark: common.Benchmark,
    cell: str,
    ours: Mapping[str, Stored],
    plain: Plain,
    made: list[Batch],
) -> None:
    """Run the first steps with all models; raise if losses or rows show that they are not the same model.

    For rows, the sum of differences is compared with the sum of changes by training. The largest difference would not do:
    where an activation is near 0, rounding decides whether ReLU passes a sample's gradient (with a smooth function instead,
    the sums differ by 1e-5, not 1e-3). For split-bf16, whose layers round in every product, only losses are compared.
    """
    stored = ours["stored"]
    pairs = list(zip(stored.tables, plain.model.bags, made[0].ids, strict=True))
    before = [bag.get_parameter("weight").detach()[ids] for _, bag, ids in pairs]
    losses: dict[str, list[list[float]]] = {name: [] for name in ours}
    for _, batch in zip(range(STEPS_COMPARED), cycle(made), strict=False):
        theirs = plain.step(batch).item()
        for name, side in ours.items():
            losses[name].append([theirs, side.step(batch).item()])
    for name, side in ours.items():
        tolerance = BF16_TOLERANCE if side.split else TOLERANCE
        check_losses(benchmark, f"{cell}_{name}", losses[name], tolerance)
    apart = moved = 0.0
    for (table, bag, ids), start in zip(pairs, before, strict=True):
        rows = bag.get_parameter("weight").detach()[ids]
        moved += (rows - start).abs().sum().item()
        apart += (rows - table.get(ids)).abs().sum().item()
    benchmark.summary[f"{cell}_row_difference"] = apart / moved
    if not apart / moved <= TOLERANCE:
        raise SystemExit(f"{cell}: rows differ by {apart / moved:.2g}: not the same model")


def check_losses(
    benchmark: common.Benchmark, name: str, losses: list[list[float]], tolerance: float
) -> None:
    """Raise if two losses differ by more than `tolerance`, relative to the first."""
    difference = max(abs(ours - theirs) / abs(theirs) for theirs, ours in losses)
    benchmark.summary[f"{name}_loss_difference"] = difference
    if not difference <= tolerance:
        raise SystemExit(f"{name}: a loss differs by {difference:.2g}: not the same model")


def run(
    step: Callable[[Batch], object],
    made: list[Batch],
    steps: int,
    announce: Callable[[Batch], None] | None = None,
) -> Callable[[], int]:
    """The work of one round: several steps."""

    def steps_of_work() -> int:
        for number in range(steps):
            if announce is not None:
                announce(made[(number + 1) % len(made)])
            step(made[number % len(made)])
        return steps

    return steps_of_work


def part_runs(
    shape: Shape, ours: Mapping[str, Stored], plain: Plain, made: list[Batch], steps: int
) -> Iterable[tuple[str, Callable[[], int]]]:
    """Measure embeddings, interaction and MLPs of every side: forward, backward and updates."""
    gradient_BFD = torch.full((shape.batch, shape.tables, shape.dim), 1e-9)
    vectors = torch.rand(shape.batch, shape.tables + 1, shape.dim) - 0.5
    interacted = torch.rand(shape.batch, shape.dim + shape.pairs) - 0.5

    def fused(dtype: torch.dtype) -> Callable[[Batch], object]:
        # Dense and pooled vectors as the bottom MLP and the lookup produce them.
        both = [t.detach().to(dtype).requires_grad_() for t in (dense_BD, pooled_BFD)]
        gradient = interacted.to(dtype)
        return lambda _: torch.autograd.grad(interaction(*both), both, gradient)

    def plain_interaction(pick: str) -> Callable[[Batch], None]:
        def work(_: Batch) -> None:
            plain.model.pick = pick
            out = plain.model.interact(dense_BD, pooled)
            torch.autograd.grad(out, (dense_BD, *pooled), interacted)

        return work

    def mlps(side: Stored | Plain) -> Callable[[Batch], None]:
        bottom, top = side.model.bottom, side.model.top
        split = isinstance(side, Stored) and side.split
        # A learning rate of 0: the models are only timed here.
        for group in side.optimizer.param_groups:
            group["lr"] = 1e-9

        def work(batch: Batch) -> None:
            side.optimizer.zero_grad()
            top_input.grad = None
            with torch.autocast("cpu", torch.bfloat16, enabled=split):
                out, logits = bottom(batch.dense), top(top_input)
            out.backward(interacted[:, : shape.dim].to(out.dtype))
            logits.sum().backward()
            side.optimizer.step()

        return work

    dense_BD = vectors[:, 0].contiguous().requires_grad_()
    pooled_BFD = vectors[:, 1:].contiguous().requires_grad_()
    pooled = [vector.contiguous().requires_grad_() for vector in vectors[:, 1:].unbind(1)]
    top_input = (interacted * 1e-3).requires_grad_()
    works: dict[str, Callable[[Batch], object]] = {
        **{
            f"embeddings_{name}": partial(side.embed, gradient_BFD=gradient_BFD.to(side.dtype))
            for name, side in ours.items()
        },
        "embeddings_torch": lambda batch: plain.embed(batch, gradient_BFD),
        **{f"interaction_{name}": fused(side.dtype) for name, side in ours.items()},
        "interaction_torch": plain_interaction("index"),
        "interaction_torch_select": plain_interaction("select"),
        **{f"mlps_{name}": mlps(side) for name, side in ours.items()},
        "mlps_torch": mlps(plain),
    }
    for name, work in works.items():
        yield name, run(work, made, steps)


def summarize_times(
    benchmark: common.Benchmark, name: str, samples: Sequence[common.Sample]
) -> None:
    """Add wall and CPU milliseconds per step."""
    wall = common.Median.of(sample.wall_s * 1e3 / sample.units for sample in samples)
    cpu = common.Median.of(sample.cpu_s * 1e3 / sample.units for sample in samples)
    benchmark.summarize(f"{name}_ms", wall)
    benchmark.summarize(f"{name}_cpu_ms", cpu)


if __name__ == "__main__":
    main()
