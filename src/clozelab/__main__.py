"""`python -m clozelab VERB ...`: the same as the console script."""

from __future__ import annotations

import sys

from clozelab.cli import main

if __name__ == "__main__":
    sys.exit(main())
