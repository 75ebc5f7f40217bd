"""`python -m rowmill`: the command `rowmill`, for who starts it by a module, as `torchrun -m rowmill` does."""

import sys

from rowmill.cli import main

if __name__ == "__main__":
    sys.exit(main())
