"""A model over TorchRec's EmbeddingBagCollection, sharded over the ranks that torchrun starts.

Needs `torchrec` and `fbgemm-gpu-cpu`:

    torchrun --standalone --nproc-per-node 2 examples/torchrec_ranks.py

Run it again to continue from its checkpoint, also with another number of ranks.
"""

from contextlib import closing

import torch
import torch.distributed as dist
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

import rowmill
from rowmill.distributed import Checkpoint, Ranks


class Model(torch.nn.Module):
    """One table per feature, and a linear layer over the pooled vectors."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        tables = [
            EmbeddingBagConfig(
                name=f"t_{name}", embedding_dim=8, num_embeddings=1000, feature_names=[name]
            )
            for name in names
        ]
        self.ebc = EmbeddingBagCollection(tables=tables)
        self.over = torch.nn.Linear(16, 1)

    def forward(self, batch: KeyedJaggedTensor) -> torch.Tensor:
        """A score per sample."""
        return self.over(self.ebc(batch).values()).view(-1)


dist.init_process_group("gloo")
ranks = Ranks(timeout_s=60)
checkpoint = Checkpoint("torchrec-ranks", ranks=ranks)
names = ["user", "clicks"]
model = Model(names)
# On the first start: "user" row-wise, "clicks" table-wise on rank 0. Later starts keep the placements of the checkpoint.
placement = {"ebc.embedding_bags.t_clicks": "whole:0"}
with closing(checkpoint.open(memory="64MiB", seed=1)) as store:
    # The three lines that shard the model.
    adagrad = rowmill.optim.RowwiseAdagrad(lr=0.05)
    new = not store.table_names()
    rowmill.convert(
        model,
        store=store,
        ranks=ranks,
        optimizer=adagrad,
        placement=placement if new else None,
        reuse=True,
    )
    parallel = ranks.data_parallel(model)  # sums dense gradients over ranks
    dense = torch.optim.Adam(parallel.parameters(), lr=0.01)
    begin = checkpoint.restore(parallel, dense) or 0
    draw = torch.Generator().manual_seed(100 * begin + ranks.rank)
    for _ in range(20):
        lengths = torch.randint(1, 4, (len(names) * 32,), generator=draw)
        ids = torch.randint(0, 1000, (int(lengths.sum()),), generator=draw)
        batch = KeyedJaggedTensor.from_lengths_sync(names, ids, lengths)
        dense.zero_grad()
        loss = ranks.mean((parallel(batch) - 1).square())
        loss.backward()  # updates the rows on the ranks that keep them
        dense.step()
    checkpoint.save(parallel, dense, position=begin + 20)
    total = ranks.total(loss)
    if ranks.rank == 0:
        print(f"step {begin + 20} loss {total:.4f}")
dist.destroy_process_group()
