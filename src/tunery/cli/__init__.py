"""The command line: one file per command.

Exit codes: 0 it worked, 1 the work failed, 2 bad usage, 130 stopped by Ctrl-C, 143 by SIGTERM.
"""

import sys


def main() -> None:
    """Run the command line and exit; the entry point of `tunery`."""
    try:
        from tunery.cli.app import app

        app(args=sys.argv[1:], prog_name="tunery")
    except KeyboardInterrupt:  # before a command has begun, or after its end
        print("error: stopped", file=sys.stderr)  # noqa: T201
        sys.exit(130)
    except ModuleNotFoundError as error:
        from tunery._extras import missing_part, to_install

        if not (name := missing_part(error)):
            raise
        print(f"error: the commands need {name}, which is not installed: {to_install(name)}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
