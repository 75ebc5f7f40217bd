"""Click-through models as plain ``nn.Module`` s. None of them knows where its embedding rows are stored."""

from rowmill.models.dcn_v2 import CrossLayer, DCNv2
from rowmill.models.dlrm import DLRM
from rowmill.models.embeddings import FeatureBags, Ids
from rowmill.models.ffnn import FFNN
from rowmill.models.layers import mlp
from rowmill.ops.interaction import dot_interaction

__all__ = ["DLRM", "FFNN", "CrossLayer", "DCNv2", "FeatureBags", "Ids", "dot_interaction", "mlp"]
