"""A PostgreSQL server for tests: on loopback, in a directory of its own, never as root; it ends with its starter."""

import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import sqlalchemy as sa
from sqlalchemy.engine import URL

from tunery._locks import hold_directory, is_held

_START_S = 60.0
_PLACE, _PREFIX = Path("/tmp"), "tunery-postgres-"
_OLD_S = 60.0  # no directory is that old before it is held


def binaries() -> Path | None:
    """Return the directory that holds `initdb` and `postgres`: of the newest version of Debian's, else the path's."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    on_path = shutil.which("initdb")
    found = debian[-1] if debian else Path(on_path).resolve() if on_path else None
    return found.parent if found is not None and (found.parent / "postgres").exists() else None


class PostgresServer:
    """One server process. `stop` and `start` take it away from its clients and bring it back, with all its data."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._user = _unprivileged()
        self._process: subprocess.Popen[bytes] | None = None
        sweep()
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_PLACE))
        self._held = hold_directory(self._folder)
        password = secrets.token_hex(16)
        secret = self._folder / "password"
        secret.write_text(password, encoding="ascii")
        if self._user:
            shutil.chown(self._folder, self._user)
            shutil.chown(secret, self._user)
        self.data = self._folder / "data"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = URL.create("postgresql+psycopg", "tunery", password, "127.0.0.1", self.port, "postgres")
        options = ["--username=tunery", f"--pwfile={secret}", "--auth=scram-sha-256", "--encoding=UTF8", "--no-sync"]
        subprocess.run(
            self._as_user("initdb", f"--pgdata={self.data}", *options), check=True, stdout=subprocess.DEVNULL
        )

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": "", "fsync": "off"}
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        log = (self._folder / "log").open("ab")
        command = self._as_user("postgres", "-D", str(self.data), *words)
        self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
        log.close()
        deadline = time.monotonic() + _START_S
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"PostgreSQL did not start: {(self._folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

    def stop(self, *, crash: bool = False) -> None:
        """End the server: at once and in order, or by a `crash` after which it has to recover."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT if crash else signal.SIGINT)
            self._process.wait(_START_S)
            self._process = None

    def close(self) -> None:
        """End the server and delete its data."""
        self.stop(crash=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._held)

    @contextmanager
    def database(self) -> Iterator[str]:
        """Yield the URL of an empty database that goes with the block."""
        with temporary_database(self.url) as url:
            yield url

    def _answers(self) -> bool:
        engine = sa.create_engine(self.url)
        try:
            with engine.connect():
                return True
        except sa.exc.OperationalError:
            return False
        finally:
            engine.dispose()

    def _as_user(self, program: str, *arguments: str) -> list[str]:
        # The server ends with the thread that started it, also when the tests are killed.
        change = [f"--reuid={self._user}", f"--regid={self._user}", "--init-groups"] if self._user else []
        return ["setpriv", "--pdeathsig=QUIT", *change, "--", str(self._programs / program), *arguments]


def sweep() -> None:
    """Delete the directories of servers of this user whose tests were killed: nobody holds them, and no server runs."""
    owner = pwd.getpwnam(user).pw_uid if (user := _unprivileged()) else os.geteuid()
    for folder in _PLACE.glob(f"{_PREFIX}*"):
        with suppress(OSError, ValueError, IndexError):
            found = folder.lstat()
            ours = stat.S_ISDIR(found.st_mode) and found.st_uid == owner
            if ours and time.time() - found.st_mtime > _OLD_S and not is_held(folder) and not _runs(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _runs(folder: Path) -> bool:
    """Return whether a server runs on a directory: its file names its process."""
    file = folder / "data" / "postmaster.pid"
    return file.exists() and psutil.pid_exists(int(file.read_text(encoding="utf-8").split()[0]))


@contextmanager
def temporary_database(server: URL, options: str = "") -> Iterator[str]:
    """Yield the URL of a database of the server, made with these options, that goes with the block."""
    name = f"tunery_{uuid.uuid4().hex}"
    engine = sa.create_engine(server, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name} {options}")
    yield server.set(database=name).render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


def _unprivileged() -> str:
    """Return the user as whom the server runs; "" for the caller's own, which PostgreSQL refuses only if it is root."""
    if os.geteuid() != 0:
        return ""
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in known)
