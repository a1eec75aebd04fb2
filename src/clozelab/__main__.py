"""The console script, also as `python -m clozelab VERB ...`.

Ctrl-C ends it without a word from its first line on; `cli.main` then has a handler of its own.
"""

import os
import signal
import sys

INTERRUPTED = 128 + signal.SIGINT


def main() -> int:
    # A shell has a command in the background ignore it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    from clozelab import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
