"""Benchmarks that the command `rowmill bench` runs: a training step taken apart, on one rank or many."""
