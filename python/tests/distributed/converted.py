"""A user's model with nn.Embedding and nn.EmbeddingBag, in plain torch and converted for many ranks."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import rowmill
from rowmill.distributed import Checkpoint
from rowmill.errors import RowmillError

if TYPE_CHECKING:
    from pathlib import Path

    from rowmill.distributed import Ranks

SAMPLES = 11


class Ranker(nn.Module):
    """Sums with and without weights, means with padding, and a sequence of single ids."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words = nn.EmbeddingBag(30, 4, mode="sum")
        self.tags = nn.EmbeddingBag(20, 3, padding_idx=2)
        self.visits = nn.Embedding(10, 4, padding_idx=0)
        self.over = nn.Linear(4 + 3 + 8, 1)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        words = self.words(batch["words"], per_sample_weights=batch["weights"])
        tags = self.tags(batch["tags"], batch["offsets"])
        visits = self.visits(batch["visits"]).flatten(1)
        return self.over(torch.cat([words, tags, visits], dim=1)).view(-1)


def batch_of(step: int, rank: int = 0, count: int = 1) -> dict[str, Tensor]:
    """A rank's consecutive samples of a step's batch."""
    draw = torch.Generator().manual_seed(step)
    mine = torch.arange(SAMPLES).tensor_split(count)[rank]
    lengths = torch.randint(0, 4, (SAMPLES,), generator=draw)
    tags = torch.randint(0, 20, (int(lengths.sum()),), generator=draw)
    sizes: list[int] = lengths.numpy().tolist()
    bags = torch.split(tags, sizes)
    own = lengths[mine]
    return {
        "words": torch.randint(0, 30, (SAMPLES, 3), generator=draw)[mine],
        "weights": torch.rand(SAMPLES, 3, generator=draw)[mine],
        "visits": torch.randint(0, 10, (SAMPLES, 2), generator=draw)[mine],
        "labels": torch.rand(SAMPLES, generator=draw)[mine],
        "tags": torch.cat([tags[:0], *(bags[int(at)] for at in mine)]),
        "offsets": own.cumsum(0) - own,
    }


def plain(steps: int) -> tuple[list[float], Tensor]:
    """Losses of plain torch in one process, and its predictions afterwards."""
    model = Ranker(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[float] = []
    for step in range(steps):
        batch = batch_of(step)
        optimizer.zero_grad()
        loss = (model(batch) - batch["labels"]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        return losses, model(batch_of(1000))


def train_converted(
    ranks: Ranks, folder: Path, until: int, placement: str | None = None
) -> dict[str, Any]:
    """Train from the last checkpoint to a step, save, and predict. Ranks draw different initial weights."""
    checkpoint = Checkpoint(folder.parent / "shared", ranks=ranks)
    with closing(checkpoint.open(memory="16MiB", threads=1, seed=1)) as store:
        model = Ranker(ranks.rank)
        sgd = rowmill.optim.SGD(lr=0.1)
        rowmill.convert(
            model, store=store, ranks=ranks, optimizer=sgd, placement=placement, reuse=True
        )
        parallel = ranks.data_parallel(model, repeatable=True)
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
        begin = checkpoint.restore(parallel, optimizer) or 0
        losses: list[float] = []
        for step in range(begin, until):
            batch = batch_of(step, ranks.rank, ranks.count)
            optimizer.zero_grad()
            loss = ranks.mean((parallel(batch) - batch["labels"]).square())
            loss.backward()
            optimizer.step()
            losses.append(ranks.total(loss))
        checkpoint.save(parallel, optimizer, position=until)
        parallel.eval()
        with torch.no_grad():
            predicted = model(batch_of(1000, ranks.rank, ranks.count))
        rows = {name: len(store.open_table(name)) for name in store.table_names()}
    return {"begin": begin, "losses": losses, "predicted": predicted.tolist(), "rows": rows}


def wrong_conversion(ranks: Ranks, folder: Path, what: str) -> dict[str, Any]:
    """Something is wrong on the last rank; the error of every rank."""
    last = ranks.rank == ranks.count - 1
    with rowmill.open(folder / f"store-{ranks.rank}", memory="16MiB", threads=1, seed=1) as store:
        model = Ranker(0)
        settings: dict[str, Any] = {"store": store, "optimizer": rowmill.optim.SGD(lr=0.1)}
        if last and what == "path":
            settings["store"] = folder / "no-store"
        if last and what == "module":
            model.words = nn.EmbeddingBag(30, 4, mode="max")
        if last and what == "placement":
            settings["placement"] = "wrds=whole"
        if last and what == "size":
            model.words = nn.EmbeddingBag(31, 4, mode="sum")
        try:
            rowmill.convert(model, ranks=ranks, **settings)
            batch = batch_of(0)
            if last and what == "id":
                batch["words"][0, 0] = 30
            if last and what == "offsets":
                del batch["offsets"]
                batch["offsets"] = torch.zeros(2, 2, dtype=torch.int64)
            model(batch)
        except RowmillError as error:
            return {"error": str(error), "plain": type(model.tags) is nn.EmbeddingBag}
    return {"error": "", "plain": False}
