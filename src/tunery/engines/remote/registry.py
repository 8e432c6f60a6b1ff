"""The hosts that a user has added, in a file of his settings directory: it holds commands, so it is his alone."""

import fcntl
import json
import os
import platform
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from tunery._errors import HostError, UsageError
from tunery._locks import open_lock, own_directory
from tunery._settings import hosts_file
from tunery.domain import HERE
from tunery.engines.remote._connection import agent_command

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class AddedHost:
    """A host by its name, and the command that reaches it. What one that is not `trusted` builds is run confined."""

    name: str
    connect: str
    trusted: bool = False


def added_hosts() -> tuple[AddedHost, ...]:
    path = hosts_file()
    try:
        found = path.stat()
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}; remove it and add the hosts again") from error
    if found.st_uid not in {os.geteuid(), 0} or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(
            f"others can write {path}, and it holds commands to run: chown it to yourself, and chmod 600 it"
        )
    try:
        hosts = TypeAdapter(tuple[AddedHost, ...]).validate_json(text)
    except ValidationError as error:
        raise UsageError(f"{path} is damaged; remove it and add the hosts again") from error
    return tuple(sorted(hosts, key=lambda host: host.name))


def add_host(name: str, connect: str, *, trusted: bool = False) -> AddedHost:
    ours = {HERE, platform.node()}  # by which spend and reports name this machine
    if not _NAME.fullmatch(name) or name in ours:
        known = " or ".join(map(repr, sorted(ours)))
        what = f"a host cannot be called {name!r}; take letters, digits, dots and dashes, and not {known}"
        raise UsageError(what)
    try:
        agent_command(connect)
    except HostError as error:
        raise UsageError(str(error)) from error
    added = AddedHost(name, connect, trusted)
    with _alone():
        _write([*(host for host in added_hosts() if host.name != name), added])
    return added


def remove_host(name: str) -> None:
    with _alone():
        hosts = added_hosts()
        host_named(name, hosts)
        _write([host for host in hosts if host.name != name])


def host_named(name: str, hosts: Sequence[AddedHost]) -> AddedHost:
    for host in hosts:
        if host.name == name:
            return host
    known = ", ".join(host.name for host in hosts) or "none yet"
    raise UsageError(f'there is no host {name!r}, known: {known}; `tunery hosts add {name} --connect "ssh …"` adds it')


@contextmanager
def _alone() -> Iterator[None]:
    """Change the file alone in the block: another process would read what is about to be replaced."""
    path = hosts_file()
    try:
        own_directory(path.parent)
        lock = open_lock(path.with_name(f"{path.name}.lock"))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _write(hosts: Sequence[AddedHost]) -> None:
    path = hosts_file()
    try:
        beside = Path(f"{path}.{os.getpid()}")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump([asdict(host) for host in hosts], file, indent=1)
        beside.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
