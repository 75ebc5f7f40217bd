"""DLRM in plain torch, for other servers: requests and replies are binary tensors.

All tables are one matrix, so that a lookup is one operator. Nothing of rowmill is imported.
"""

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

NUMBERS, FEATURES, CANDIDATES = 13, 26, 64
_NUMBER_BYTES, _ID_BYTES = CANDIDATES * NUMBERS * 4, CANDIDATES * FEATURES * 8
FOLDER = "ROWMILL_PEER_FOLDER"
"""The environment variable that names the folder of the model."""
LIBRARY = "ROWMILL_PEER_LIBRARY"
"""The environment variable that names the library of linear layers: "mkl", which torch uses by itself, or "onednn"."""
_ONEDNN_PRODUCTS_MIN = 1 << 22
"""Smaller layers are faster by MKL."""


class OneDnnLinear(nn.Linear):
    """A linear layer by the operator that torch itself uses in compiled graphs."""

    def forward(self, input: Tensor) -> Tensor:
        """`x W^T + b`, float32 [B, O]."""
        if len(input) * self.weight.numel() < _ONEDNN_PRODUCTS_MIN:
            return super().forward(input)
        return torch.ops.mkldnn._linear_pointwise.default(
            input, self.weight, self.bias, "none", [], ""
        )


class Model:
    """The model of a folder that `peers.py` writes: `rows.npy`, float32 [F * rows, D], and `layers.pt`."""

    def __init__(self) -> None:
        folder = Path(os.environ[FOLDER])
        # Private pages of a file: processes of one server share them, as long as they only read.
        matrix = np.load(folder / "rows.npy", mmap_mode="c")
        self._rows = torch.from_numpy(matrix)
        self._first_rows = torch.arange(FEATURES) * (len(matrix) // FEATURES)
        self._bottom, self._top = torch.load(folder / "layers.pt", weights_only=False)
        if os.environ.get(LIBRARY) == "onednn":
            for layer in (*self._bottom.modules(), *self._top.modules()):
                if type(layer) is nn.Linear:
                    layer.__class__ = OneDnnLinear
        row, column = torch.tril_indices(FEATURES + 1, FEATURES + 1, -1)
        self._pairs = row * (FEATURES + 1) + column

    def answer(self, body: bytes) -> bytes:
        """Scores, float32 [64] as bytes, of a request whose tensors `dense` and `ids` are the end of its body."""
        at = len(body) - _NUMBER_BYTES - _ID_BYTES
        numbers = np.frombuffer(body, np.float32, CANDIDATES * NUMBERS, at)
        # The text before the tensors has any length, so they may lie across the borders of words.
        ids = np.frombuffer(body, np.int64, CANDIDATES * FEATURES, at + _NUMBER_BYTES)
        with torch.inference_mode():
            dense = torch.tensor(numbers).view(CANDIDATES, NUMBERS)
            scores = self._scores(dense, torch.tensor(ids).view(CANDIDATES, FEATURES))
        return scores.numpy().tobytes()

    def _scores(self, dense: Tensor, ids: Tensor) -> Tensor:
        rows = functional.embedding(ids + self._first_rows, self._rows)
        bottom = self._bottom(dense)
        vectors = torch.cat([bottom.unsqueeze(1), rows], dim=1)
        dots = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self._pairs)
        return self._top(torch.cat([bottom, dots], dim=1)).squeeze(1).sigmoid()
