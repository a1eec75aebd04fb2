"""`python -m clozelab VERB ...`: the same as the console script."""

import sys

from clozelab.cli import main

if __name__ == "__main__":
    sys.exit(main())
