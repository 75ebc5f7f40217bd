"""Failure detection: lost ranks, and ranks in different calls."""
