"""Operators, one folder each: `reference.py` defines an operator in plain torch; the other files implement it."""
