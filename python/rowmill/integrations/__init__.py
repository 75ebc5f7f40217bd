"""Other frameworks over stored rows: TorchRec, and where they are installed `pykeen` and `pyg`, imported by their names."""
