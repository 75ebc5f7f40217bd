"""What is wrong with the data, where, and what to do about it."""

from rowmill.errors import InvalidInput


class DataError(InvalidInput):
    """Bad input data. The message names file, row, column, value and the fix, as far as they exist."""
