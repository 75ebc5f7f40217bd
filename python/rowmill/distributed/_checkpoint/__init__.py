"""Checkpoints of all ranks."""
