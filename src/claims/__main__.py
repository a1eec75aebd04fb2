"""`python -m claims judge ...`, where the console script is not on the path."""

import sys

from claims.cli import main

if __name__ == "__main__":
    sys.exit(main())
