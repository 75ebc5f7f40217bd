"""TorchRec's collections over stored rows: modules in their place, and how `rowmill.convert` finds and swaps them."""

from rowmill.integrations.torchrec.keyed import KeyedBags, KeyedRows

__all__ = ["KeyedBags", "KeyedRows"]
