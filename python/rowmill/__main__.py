"""`python -m rowmill` runs the command `rowmill`; `torchrun -m rowmill` needs it."""

import sys

from rowmill.cli import main

if __name__ == "__main__":
    sys.exit(main())
