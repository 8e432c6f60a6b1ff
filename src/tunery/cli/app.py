"""The commands put together, and the one place where errors become messages and exit codes."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from tunery.cli import (
    bench,
    compile,  # noqa: A004 - the command's name
    costmodel,
    dialects,
    doctor,
    extract,
    query,
    records,
    report,
    spend,
    tune,
    zoo,
)
from tunery.cli.console.failure import UserStopError, check_text, guarded
from tunery.cli.files import bundle, combine, inspect, keys
from tunery.cli.service import accounts, agent, devices, hosts, jobs, serve


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
        doctor.version()
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for module in (
    tune,
    extract,
    compile,
    inspect,
    bundle,
    combine,
    bench,
    query,
    serve,
    spend,
    report,
    accounts,
    doctor,
    agent,
):
    module.register(app)
GROUPS = {
    "accounts": accounts,
    "jobs": jobs, "records": records, "costmodel": costmodel, "zoo": zoo, "devices": devices, "hosts": hosts,
    "dialects": dialects, "keys": keys,
}  # fmt: skip
for name, group in GROUPS.items():
    app.add_typer(group.app, name=name)
