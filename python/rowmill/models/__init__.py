"""Click-through models as plain ``nn.Module`` s. None of them knows where its embedding rows are stored."""

from rowmill.models.bst import BST
from rowmill.models.dcn_v2 import CrossLayer, DCNv2
from rowmill.models.dien import DIEN, AttentionalGRU
from rowmill.models.din import DIN, ActivationUnit, Dice
from rowmill.models.dlrm import DLRM
from rowmill.models.embeddings import FeatureBags, Ids
from rowmill.models.ffnn import FFNN
from rowmill.models.history import Histories
from rowmill.models.layers import mlp
from rowmill.models.ncf import NCF
from rowmill.models.shapes import SHAPES, ModelShape
from rowmill.models.two_tower import TwoTower
from rowmill.models.wide_deep import MultiTaskWideDeep, WideDeep
from rowmill.ops.interaction import dot_interaction

__all__ = [
    "BST",
    "DIEN",
    "DIN",
    "DLRM",
    "FFNN",
    "NCF",
    "SHAPES",
    "ActivationUnit",
    "AttentionalGRU",
    "CrossLayer",
    "DCNv2",
    "Dice",
    "FeatureBags",
    "Histories",
    "Ids",
    "ModelShape",
    "MultiTaskWideDeep",
    "TwoTower",
    "WideDeep",
    "dot_interaction",
    "mlp",
]
