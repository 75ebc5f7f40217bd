"""Other frameworks over stored rows: `torchrec`, and `pykeen` and `pyg`, which need these packages installed."""
