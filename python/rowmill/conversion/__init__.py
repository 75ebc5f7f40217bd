"""Move the embeddings of a torch model into a store, in place, and back: `rowmill.convert`."""

from rowmill.conversion.conversion import Conversion, TablePlan, convert, unconvert

__all__ = ["Conversion", "TablePlan", "convert", "unconvert"]
