"""Ids to the ranks that own their rows, rows back, and gradients the same way."""
