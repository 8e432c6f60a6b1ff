"""From an exception to one line on stderr and an exit code."""

import errno
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import typer
from typer.exceptions import TyperException

from tunery._errors import TuneryError, UsageError
from tunery._extras import missing_part, to_install
from tunery.reports.format import printable

FAILED, BAD_USAGE, INTERRUPTED = 1, 2, 130
_SHOWN = 120
_FULL = "make room there, or write to another disk"
_REFUSALS = {
    errno.EMFILE: "let a process open more files (ulimit -n 1024)",
    errno.ENFILE: "end other programs",
    errno.EAGAIN: "end other programs, or let a user have more processes (ulimit -u)",
    errno.ENOMEM: "end other programs, or use a machine with more memory",
    errno.ENOSPC: _FULL, errno.EDQUOT: _FULL, errno.EFBIG: _FULL,
    errno.EROFS: "write to another disk",
    errno.ENAMETOOLONG: "give it a shorter name",
}  # fmt: skip
"""What the machine may refuse anywhere, whatever we do, and what helps."""


class UserStopError(Exception):
    """A Ctrl-C, or with its `exit_code` another signal, that no command has handled."""

    def __init__(self, message: str = "", exit_code: int = INTERRUPTED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def check_text(words: Sequence[str]) -> None:
    """Refuse a command line that is not text: names go into the store and into JSON."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{word!r} is not UTF-8; give the file another name, or set PYTHONUTF8=1") from None


def guarded(work: Callable[[], object], words: Sequence[str]) -> int:
    """Run `work` and return the exit code; `words` are the command line, for the wishes `--json` and `-v`."""
    as_json, verbose = "--json" in words, bool({"-v", "--verbose"} & set(words))
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed (`>&-`)
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for the process
    try:
        result = work()
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
        return FAILED
    except (UserStopError, KeyboardInterrupt, typer.Abort) as error:
        code = error.exit_code if isinstance(error, UserStopError) else INTERRUPTED
        return _fail(str(error) or "stopped; what was measured is kept, the same command goes on", code, as_json)
    except Exception as error:  # noqa: BLE001 - the last net: no user sees a traceback that was not asked for
        if verbose:
            with suppress(MemoryError):
                sys.stderr.write(printable(traceback.format_exc()))
        return _fail(_message(error, verbose), exit_code(error), as_json)
    return result if isinstance(result, int) else 0


def exit_code(error: Exception) -> int:
    """Return what a command ends with that has failed."""
    if isinstance(error, TyperException):
        return error.exit_code
    return BAD_USAGE if isinstance(error, UsageError) or missing_part(error) else FAILED


def _message(error: Exception, verbose: bool) -> str:
    if isinstance(error, TyperException):
        path = getattr(getattr(error, "ctx", None), "command_path", "tunery")
        said = error.format_message().rstrip(".").replace("Value error, ", "", 1)  # pydantic's, which Typer passes on
        return f"{said}; see `{path} --help`"
    if isinstance(error, TuneryError):
        return str(error)
    if missing_part(error):
        command = to_install(missing_part(error))
        url = ""
        with suppress(ImportError):
            from tunery.web.client import logged_in

            url = logged_in()
        said = f"a service needs --server {url or 'URL'}"
        return f"this needs the compiler's parts, which are not installed: {command}; {said}"
    return _of_the_machine(error) or _unforeseen(error, verbose)


def _of_the_machine(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in _REFUSALS:
        what = f"{str(error.filename)[:_SHOWN]!r}: " if error.filename else ""
        return f"{what}{(error.strerror or '').lower()}; {_REFUSALS[error.errno]}"
    if isinstance(error, FileNotFoundError) and not error.filename and not _has_directory():
        return "the working directory is gone; change to another one"
    if isinstance(error, FileNotFoundError) and not _has_temporary_files():
        return "no directory for temporary files can be written; set TMPDIR to one of your own"
    no_thread = isinstance(error, RuntimeError) and "start new thread" in str(error)
    if isinstance(error, MemoryError | SystemError) or no_thread:  # what the interpreter says where it has none left
        return "there is not enough memory; end other programs, or use a machine with more"
    return ""


def _unforeseen(error: Exception, verbose: bool) -> str:
    advice = "please report it" if verbose else "run again with -v for the traceback, and please report it"
    return f"internal error: {type(error).__name__}: {error}; {advice}"


def _has_temporary_files() -> bool:
    try:
        return bool(tempfile.gettempdir())
    except FileNotFoundError:
        return False


def _has_directory() -> bool:
    try:
        return bool(Path.cwd())
    except FileNotFoundError:
        return False


def _fail(message: str, code: int, as_json: bool) -> int:
    line = " ".join(message.split())
    try:
        if as_json:
            print(json.dumps({"error": line}))  # noqa: T201 - the command line's own output
        sys.stdout.flush()
    except OSError:  # what takes our output takes no more
        _drop_stdout()
        as_json = False
    if not as_json:
        with suppress(OSError):  # there is nobody left to tell
            print(f"error: {printable(line)}", file=sys.stderr, flush=True)  # noqa: T201
    return code


def _drop_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
