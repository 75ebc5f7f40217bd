"""TorchRec collections over stored rows: the modules, and how `rowmill.convert` finds and replaces collections."""

from rowmill.integrations.torchrec.keyed import KeyedBags, KeyedRows

__all__ = ["KeyedBags", "KeyedRows"]
