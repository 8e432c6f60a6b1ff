"""The commands put together, and the one place where errors become messages and exit codes."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from tunery.cli import (  # noqa: F401 - each brings its commands
    bench,
    compile,  # noqa: A004 - the command's name
    costmodel,
    dialects,
    doctor,
    extract,
    files,
    query,
    records,
    report,
    service,
    tune,
)
from tunery.cli.console.commands import COMMANDS
from tunery.cli.console.failure import UserStopError, check_text, guarded


class Program(TyperGroup):
    """The root command; whatever its commands raise ends as one line and an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,  # noqa: ARG002 - messages shall not depend on how we are started
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: ARG002 - Typer's own handling of errors is what is replaced here
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run a command line and exit."""
        words = list(sys.argv[1:] if args is None else args)

        def run() -> object:
            check_text(words)
            return super(Program, self).main(words, "tunery", complete_var, False, windows_expand_args, **extra)

        sys.exit(guarded(run, words))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Typer would end without a word at a Ctrl-C."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise UserStopError(*error.args) from None


app = typer.Typer(
    cls=Program,
    help="A model in, tuned and verified kernels out.",
    epilog="Start with: tunery tune zoo:mobilenet_v2 --budget 4min --against untuned,onnxruntime",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="As the command `version`.")] = False,
) -> None:
    if version:
        COMMANDS["version"][0](json=False, verbose=False)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


GROUPS = {
    "accounts": "Create and list the accounts of a service; make, list and end tokens.",
    "jobs": "List and show jobs; submit, pause, resume and cancel them.",
    "records": "Count, export, import and prune records.",
    "costmodel": "Collect, train and judge the model that predicts candidates' speed.",
    "zoo": "Networks that come with tunery.",
    "devices": "What can run kernels here.",
    "hosts": "Other machines that work for this one.",
    "dialects": "Compilers, and the environments that some of them need.",
    "keys": "Make keys to sign compiled networks with.",
}
_ORDER = (
    "tune", "extract", "compile", "inspect", "bundle", "combine", "bench", "query", "serve", "spend", "report", "login",
    "version", "doctor", "agent",
)  # fmt: skip


def _assembled() -> None:
    groups = {name: typer.Typer(help=text, no_args_is_help=False) for name, text in GROUPS.items()}
    for words in sorted(COMMANDS, key=lambda words: _ORDER.index(words) if words in _ORDER else len(_ORDER)):
        function, example = COMMANDS[words]
        group, _, name = words.rpartition(" ")
        (groups[group] if group else app).command(name, epilog=example)(function)
    for name, commands in groups.items():
        app.add_typer(commands, name=name)


_assembled()
