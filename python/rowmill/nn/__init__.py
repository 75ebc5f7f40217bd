"""Modules whose weights live in a store: replacements of torch's embeddings, and collections of many features."""

from rowmill.nn.collection import EmbeddingCollection, Feature, StackedBags
from rowmill.nn.embedding import Embedding
from rowmill.nn.embedding_bag import EmbeddingBag
from rowmill.nn.ragged import RaggedBatch
from rowmill.nn.stored import (
    StoredModule,
    dense_state_dict,
    load_dense_state_dict,
    stored_modules,
    tables_of,
)

__all__ = [
    "Embedding",
    "EmbeddingBag",
    "EmbeddingCollection",
    "Feature",
    "RaggedBatch",
    "StackedBags",
    "StoredModule",
    "dense_state_dict",
    "load_dense_state_dict",
    "stored_modules",
    "tables_of",
]
