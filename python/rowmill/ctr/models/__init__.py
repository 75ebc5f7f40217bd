"""Click models as plain ``nn.Module`` s. They do not depend on where their embedding rows are stored."""

from rowmill.ctr.models.bst import BST
from rowmill.ctr.models.dcn_v2 import CrossLayer, DCNv2
from rowmill.ctr.models.dien import DIEN, AttentionalGRU
from rowmill.ctr.models.din import DIN, ActivationUnit, Dice
from rowmill.ctr.models.dlrm import DLRM
from rowmill.ctr.models.embeddings import FeatureBags, Ids
from rowmill.ctr.models.ffnn import FFNN
from rowmill.ctr.models.history import Histories
from rowmill.ctr.models.layers import mlp
from rowmill.ctr.models.ncf import NCF
from rowmill.ctr.models.shapes import SHAPES, ModelShape
from rowmill.ctr.models.two_tower import TwoTower
from rowmill.ctr.models.wide_deep import MultiTaskWideDeep, WideDeep
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
