"""A model over TorchRec's EmbeddingBagCollection, whose tables `rowmill.convert` moves into a store.

Needs `torchrec` and `fbgemm-gpu-cpu`. Rows keep the optimizer that `apply_optimizer_in_backward` has set.
"""

import torch
from torch.distributed.optim import _apply_optimizer_in_backward
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

import rowmill

names = ["user", "clicks"]
tables = [
    EmbeddingBagConfig(name=f"t_{name}", embedding_dim=8, num_embeddings=1000, feature_names=[name])
    for name in names
]
model = torch.nn.ModuleDict(
    {"ebc": EmbeddingBagCollection(tables=tables), "over": torch.nn.Linear(16, 1)}
)
_apply_optimizer_in_backward(torch.optim.Adagrad, model["ebc"].parameters(), {"lr": 0.05})
print(rowmill.convert(model, store="torchrec-store", memory="64MiB"))

dense = torch.optim.Adam(model["over"].parameters(), lr=0.01)
for _ in range(20):
    lengths = torch.randint(1, 4, (len(names) * 32,))
    ids = torch.randint(0, 1000, (int(lengths.sum()),))
    batch = KeyedJaggedTensor.from_lengths_sync(names, ids, lengths)
    pooled = model["ebc"](batch)  # a KeyedTensor, as before
    loss = (model["over"](pooled.values()) - pooled["user"].sum(1, keepdim=True)).square().mean()
    loss.backward()  # updates the rows
    dense.step()
    dense.zero_grad()
print(f"loss {loss.item():.4f}")
