"""Click logs: readers, features, batches, and a generator of logs with a known best possible AUC."""

from rowmill.ctr.data.click_batch import ClickBatch, batches
from rowmill.ctr.data.features import FullIds, HashedIds, IdWay, Vocabulary, fit_vocabulary, id_way
from rowmill.ctr.data.row_block import MISSING_ID, RowBlock
from rowmill.ctr.data.schema import CRITEO, Schema, load_schema
from rowmill.ctr.data.source import Source, open_source

__all__ = [
    "CRITEO",
    "MISSING_ID",
    "ClickBatch",
    "FullIds",
    "HashedIds",
    "IdWay",
    "RowBlock",
    "Schema",
    "Source",
    "Vocabulary",
    "batches",
    "fit_vocabulary",
    "id_way",
    "load_schema",
    "open_source",
]
