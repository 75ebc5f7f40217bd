"""Other frameworks over stored rows: `torchrec`, and the modules `pykeen` and `pyg`, which need these packages."""
