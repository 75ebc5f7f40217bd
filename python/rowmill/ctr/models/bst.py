"""Behaviour sequence transformer: attention among the items of a history and the target item (arXiv 1905.06874).

Shapes: B rows per batch, N numeric features, S id columns (see `rowmill.ctr.models.history`), P places, H histories,
D weights per row, E = H * D.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from rowmill.ctr.models.history import Histories
from rowmill.ctr.models.layers import mlp


class BST(nn.Module):
    """Transformer blocks over target and history, then an MLP over all their outputs (Chen et al. 2019).

    Positions count backwards: 0 is the target, 1 the last item before it. A learned position vector is added to the
    item vector (the paper appends a vector of the elapsed time).

    Args:
        embeddings: called as ``embeddings(ids)``, returns ``[B, S, D]``.
        histories: layout of features, targets and histories in the id columns.
        dim: D.
        dense_features: N.
        heads: number of attention heads; must divide E.
        blocks: number of transformer blocks (the paper's best model has one).
        hidden: hidden widths of the MLP; a last layer of width 1 follows.

    Example:
        >>> from rowmill.ctr.models import FeatureBags
        >>> bags = FeatureBags(
        ...     [nn.EmbeddingBag(10, 4), nn.EmbeddingBag(10, 4)], bag_of=[0, 1, 1, 1]
        ... )
        >>> layout = Histories(features=2, targets=(1,), places=2)
        >>> model = BST(bags, histories=layout, dim=4, heads=2)
        >>> ids, lengths = torch.zeros(5, 4, dtype=torch.int64), torch.tensor([2, 1, 0, 2, 2])
        >>> model(torch.rand(5, 0), ids, lengths).shape
        torch.Size([5])
    """

    def __init__(
        self,
        embeddings: nn.Module,
        *,
        histories: Histories,
        dim: int,
        dense_features: int = 0,
        heads: int = 8,
        blocks: int = 1,
        hidden: Sequence[int] = (256, 128),
    ) -> None:
        super().__init__()
        width = len(histories.targets) * dim
        if heads < 1 or width % heads:
            raise ValueError(
                f"heads must divide the width of an item vector ({width}), got {heads}"
            )
        self.embeddings = embeddings
        self.histories = histories
        self.ago = nn.Parameter(torch.randn(histories.places + 1, width) * 0.01)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width,
                heads,
                dim_feedforward=4 * width,
                dropout=0.0,
                activation=leaky_relu,
                batch_first=True,
            )
            for _ in range(blocks)
        )
        inputs = dense_features + len(histories.others) * dim + (histories.places + 1) * width
        self.layers = mlp(inputs, [*hidden, 1], relu_last=False)

    def forward(self, dense_BN: Tensor, ids_BS: Tensor, lengths_B: Tensor) -> Tensor:
        """Logits of a click, float32 ``[B]``."""
        return self.logits(dense_BN, self.embeddings(ids_BS), lengths_B)

    def logits(self, dense_BN: Tensor, pooled_BSD: Tensor, lengths_B: Tensor) -> Tensor:
        """Logits from pooled vectors ``[B, S, D]``, without the lookup."""
        others_BX, target_BE, history_BPE = self.histories.split(pooled_BSD)
        taken_BP = self.histories.taken(lengths_B)
        places = torch.arange(self.histories.places, device=lengths_B.device)
        ago_BP = (lengths_B.unsqueeze(1) - places).clamp(min=0)
        items = torch.cat([target_BE.unsqueeze(1), history_BPE], dim=1)
        items = items + self.ago[nn.functional.pad(ago_BP, (1, 0))]
        here = nn.functional.pad(taken_BP, (1, 0), value=True)
        for block in self.blocks:
            items = block(items, src_key_padding_mask=~here)
        items = items.where(here.unsqueeze(2), 0.0)
        return self.layers(torch.cat([dense_BN, others_BX, items.flatten(1)], dim=1)).squeeze(1)
