"""Knowledge graphs: models over stored rows, losses, batches of queries, and filtered ranking."""

from rowmill.kge.batches import GraphBatch, GraphBatches
from rowmill.kge.dense_softmax import dense_softmax
from rowmill.kge.losses import logistic, penalty, self_adversarial, softmax
from rowmill.kge.models import MODELS, ComplEx, DistMult, RotatE, TransE, TripleModel
from rowmill.kge.order import beta_order, swaps
from rowmill.kge.ranking import KnownTriples, rank

__all__ = [
    "MODELS",
    "ComplEx",
    "DistMult",
    "GraphBatch",
    "GraphBatches",
    "KnownTriples",
    "RotatE",
    "TransE",
    "TripleModel",
    "beta_order",
    "dense_softmax",
    "logistic",
    "penalty",
    "rank",
    "self_adversarial",
    "softmax",
    "swaps",
]
