"""The command line: one file per command.

Exit codes: 0 it worked, 1 the work failed, 2 bad usage, 130 stopped by Ctrl-C.
"""

import sys


def main() -> None:
    """Run the command line and exit; the entry point of `tunery`."""
    from tunery.cli.app import app

    app(args=sys.argv[1:], prog_name="tunery")
