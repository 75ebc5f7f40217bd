"""Convert a torch model's embeddings to stored ones, in place, and back: `rowmill.convert`."""

from rowmill.conversion.conversion import Conversion, TablePlan, convert, unconvert

__all__ = ["Conversion", "TablePlan", "convert", "unconvert"]
