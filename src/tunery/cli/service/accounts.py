"""`tunery login`, and `tunery accounts`: who may use a service."""

import sys
from typing import Annotated

import typer

from tunery._errors import UsageError
from tunery.cli.console.commands import Result, command, width
from tunery.cli.console.remote import Server, server_of

AccountName = Annotated[str, typer.Argument(metavar="NAME", help="Small letters, digits, dots and dashes.")]
RoleName = Annotated[str, typer.Option("--role", help="reader, user, developer or admin.")]


@command("login", "login http://127.0.0.1:7433")
def login(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Where the service is; those of several coordinators by commas.")
    ],
) -> Result:
    """Keep a service's URL and token for later commands; the token is asked for, or read from standard input."""
    from tunery.web.client import login as keep
    from tunery.web.client import urls_in

    urls_in(url)
    asked = sys.stdin.isatty()
    token = typer.prompt("token", hide_input=True, err=True) if asked else sys.stdin.readline()
    if not token.strip():
        raise UsageError(
            "no token was given; `tunery serve` prints the first, `tunery accounts token NAME` makes others"
        )
    account, silent = keep(url, token.strip())
    said = [f"logged in at {url} as {account['name']}, {account['role']}; use it with --server {url.partition(',')[0]}"]
    said += [f"{one} does not answer now; it is asked where the others do not answer" for one in silent]
    return Result({"url": url, "account": account, "silent": silent}, said)


@command("accounts list", "accounts list")
def list_(
    server: Server = "",
) -> Result:
    """List the accounts."""
    from tunery.reports.format import as_text, new_table
    from tunery.web.client import connect

    with connect(server) as service:
        found = service.accounts()
    table = new_table("account", "role", "#weight", "#priority", "#month", "state")
    for one in found:
        limit = one["month_money"]
        table.add_row(one["name"], one["role"], f"{one['weight']:g}", str(one["priority"]),
                      "no limit" if limit is None else f"{limit:g}", one["state"])  # fmt: skip
    return Result({"accounts": found}, [as_text(table, width())])


@command("accounts create", "accounts create ann --role user")
def create(
    name: AccountName,
    *,
    role: RoleName = "user",
    weight: Annotated[float, typer.Option("--weight", help="Its share of the machines beside others'.")] = 1.0,
    priority: Annotated[int, typer.Option("--priority", help="The highest its jobs may ask for, 0 to 10.")] = 0,
    server: Server = "",
) -> Result:
    """Create an account with a token, which is shown this once."""
    from tunery.web.client import connect

    with connect(server) as service:
        service.create_account({"name": name, "role": role, "weight": weight, "priority": priority})
        made = service.create_token(name, {"role": role})
    return _token(name, made)


@command("accounts limit", "accounts limit ann --month 20 --uploads 2GiB")
def limit(
    name: AccountName,
    *,
    month: Annotated[str, typer.Option("--month", help="What its jobs may cost in a month, or none.")] = "",
    uploads: Annotated[str, typer.Option("--uploads", help="What it may keep uploaded, such as 2GiB, or none.")] = "",
    weight: Annotated[float | None, typer.Option("--weight", help="Its share of the machines beside others'.")] = None,
    priority: Annotated[int | None, typer.Option("--priority", help="The highest its jobs may ask for.")] = None,
    server: Server = "",
) -> Result:
    """Change what an account may use; what is not named stays, and `none` lifts a limit."""
    named = {"weight": weight, "priority": priority}
    values: dict[str, object] = {key: value for key, value in named.items() if value is not None}
    if month:
        values["month_money"] = None if month == "none" else _number(month, "--month 20")
    if uploads:
        values["upload_bytes"] = None if uploads == "none" else _bytes_in(uploads)
    if not values:
        raise UsageError("nothing is to change; give for example --month 20")
    return _changed(name, values, f"{name} has new limits", server)


@command("accounts disable", "accounts disable ann")
def disable(name: AccountName, server: Server = "") -> Result:
    """Pause an account's jobs, and let none of its tokens in until `enable`."""
    return _changed(name, {"state": "disabled"}, f"{name} is disabled", server)


@command("accounts enable", "accounts enable ann")
def enable(name: AccountName, server: Server = "") -> Result:
    """Let a disabled account in again."""
    said = f"{name} is enabled; its paused jobs go on with `tunery jobs resume`"
    return _changed(name, {"state": "active"}, said, server)


@command("accounts delete", "accounts delete ann")
def delete(name: AccountName, server: Server = "") -> Result:
    """End an account, its jobs, tokens and uploads, for good; its records and costs stay."""
    from tunery.web.client import connect

    with connect(server) as service:
        service.delete_account(name)
    return Result({"account": name, "deleted": True}, [f"{name} is deleted; nobody gets this name again"])


@command("accounts log", "accounts log --limit 20")
def log(
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many, from the latest on.")] = 100,
    server: Server = "",
) -> Result:
    """Show what accounts have done, and from where: all calls but those that only look."""
    from tunery.reports.format import as_text, new_table
    from tunery.web.client import connect

    with connect(server) as service:
        found = service.audit(limit)
    table = new_table("when", "account", "from", "what", "#answer")
    for one in found:
        table.add_row(
            one["at"][:19].replace("T", " "), one["account"], one["source"], one["action"], str(one["status"])
        )
    return Result({"log": found}, [as_text(table, width())])


def _changed(name: str, values: dict[str, object], said: str, server: str) -> Result:
    from tunery.web.client import connect

    with connect(server) as service:
        return Result({"account": service.change_account(name, values)}, [said])


def _number(text: str, example: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text!r:.40} is no number; write for example {example}") from None


def _bytes_in(text: str) -> int:
    units = ("", "KiB", "MiB", "GiB", "TiB")
    unit = next((unit for unit in units[1:] if text.endswith(unit)), "")
    return int(_number(text.removesuffix(unit), "--uploads 2GiB") * 1024 ** units.index(unit))


@command("accounts token", "accounts token ann --role reader --days 30")
def token(
    name: AccountName,
    *,
    role: RoleName = "user",
    days: Annotated[float | None, typer.Option("--days", help="How long it holds; else for ever.")] = None,
    label: Annotated[str, typer.Option("--label", help="What it is for.")] = "",
    server: Server = "",
    store: Annotated[
        str, typer.Option("--store", help="On the service's machine, without a login: the store, a file or a URL.")
    ] = "",
) -> Result:
    """Make another token of an account, which is shown this once."""
    wanted = {"role": role, "days": days, "label": label}
    url = server_of(server, store)
    if store:
        from tunery.web.server import token_here

        made = token_here(store, name, wanted)
    else:
        from tunery.web.client import connect

        with connect(url) as service:
            made = service.create_token(name, wanted)
    return _token(name, made)


@command("accounts tokens", "accounts tokens ann")
def tokens(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="An account; one's own where none is named.")] = "",
    server: Server = "",
) -> Result:
    """List an account's tokens, without their texts."""
    from tunery.reports.format import as_text, new_table
    from tunery.web.client import connect

    with connect(server) as service:
        name = name or service.me()["name"]
        found = service.tokens(name)
    table = new_table("id", "role", "label", "made", "ends")
    for one in found:
        made, ends = (one[key] and one[key][:16].replace("T", " ") for key in ("created_at", "expires_at"))
        table.add_row(one["id"], one["role"], one["label"], made, ends or "never")
    return Result({"account": name, "tokens": found}, [as_text(table, width())])


@command("accounts end-token", "accounts end-token ann 1f2e3d4c5b6a")
def end_token(
    name: AccountName,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The token's, from `accounts tokens`.")],
    server: Server = "",
) -> Result:
    """End a token: nobody uses it from now on."""
    from tunery.web.client import connect

    with connect(server) as service:
        service.end_token(name, token_id)
    return Result({"account": name, "ended": token_id}, [f"the token {token_id} of {name} has ended"])


def _token(name: str, made: dict[str, object]) -> Result:
    until = f", until {str(made['expires_at'])[:16].replace('T', ' ')} UTC" if made["expires_at"] else ""
    said = f"{made['token']}\nis the token of {name}, of the role {made['role']}{until}; it is shown this once"
    return Result({"account": name, **made}, [said])
