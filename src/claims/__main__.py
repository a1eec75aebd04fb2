"""`python -m claims`."""

from __future__ import annotations

import sys

from claims.cli import main

if __name__ == "__main__":
    sys.exit(main())
