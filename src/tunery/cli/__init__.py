"""The command line: one file per command.

Exit codes: 0 it worked, 1 the work failed, 2 bad usage, 130 stopped by Ctrl-C.
"""

import gc
import sys

_OBJECTS = 50_000
"""How many may be new before garbage is looked for: with 700, a tenth of a command's start went there."""


def main() -> None:
    """Run the command line and exit; the entry point of `tunery`."""
    gc.set_threshold(_OBJECTS)
    from tunery.cli.app import app

    app(args=sys.argv[1:], prog_name="tunery")
