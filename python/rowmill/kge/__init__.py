"""Knowledge-graph embeddings: reading triples, models over stored rows, losses, batches and filtered ranking."""

from typing import TYPE_CHECKING

from rowmill._lazy import lazy

if TYPE_CHECKING:
    from rowmill.kge.chunked_softmax import dense_softmax
    from rowmill.kge.graph import Graph, read_graph
    from rowmill.kge.graph_batch import GraphBatch, GraphBatches
    from rowmill.kge.loaded_triples import Answer, LoadedTriples
    from rowmill.kge.losses import logistic, penalty, self_adversarial, softmax
    from rowmill.kge.models import MODELS, ComplEx, DistMult, RotatE, TransE, TripleModel
    from rowmill.kge.order import beta_order, swaps
    from rowmill.kge.ranking import KnownTriples, rank

__all__ = [
    "MODELS",
    "Answer",
    "ComplEx",
    "DistMult",
    "Graph",
    "GraphBatch",
    "GraphBatches",
    "KnownTriples",
    "LoadedTriples",
    "RotatE",
    "TransE",
    "TripleModel",
    "beta_order",
    "dense_softmax",
    "logistic",
    "penalty",
    "rank",
    "read_graph",
    "self_adversarial",
    "softmax",
    "swaps",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "graph_batch": (
            "GraphBatch",
            "GraphBatches",
        ),
        "chunked_softmax": ("dense_softmax",),
        "graph": (
            "Graph",
            "read_graph",
        ),
        "loaded_triples": (
            "Answer",
            "LoadedTriples",
        ),
        "losses": (
            "logistic",
            "penalty",
            "self_adversarial",
            "softmax",
        ),
        "models": (
            "MODELS",
            "ComplEx",
            "DistMult",
            "RotatE",
            "TransE",
            "TripleModel",
        ),
        "order": (
            "beta_order",
            "swaps",
        ),
        "ranking": (
            "KnownTriples",
            "rank",
        ),
    },
)
