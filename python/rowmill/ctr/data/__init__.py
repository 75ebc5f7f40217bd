"""Click logs: reading, features, batches, and a generator of logs whose best possible AUC is known."""

from rowmill.ctr.data.batches import Batch, batches
from rowmill.ctr.data.block import MISSING_ID, Block
from rowmill.ctr.data.features import FullIds, HashedIds, IdWay, Vocabulary, fit_vocabulary, id_way
from rowmill.ctr.data.schema import CRITEO, Schema, load_schema
from rowmill.ctr.data.source import Source, open_source

__all__ = [
    "CRITEO",
    "MISSING_ID",
    "Batch",
    "Block",
    "FullIds",
    "HashedIds",
    "IdWay",
    "Schema",
    "Source",
    "Vocabulary",
    "batches",
    "fit_vocabulary",
    "id_way",
    "load_schema",
    "open_source",
]
