"""`python -m claims judge ...`, where the console script is not on the path."""

import sys

from claims.cli import main

sys.exit(main())
