import os
import re
import sqlite3
import subprocess
import sys
from collections import namedtuple
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest
from sqlalchemy.engine import URL
from store_samples import record, task

from postgres_server import temporary_database
from tunery._errors import StoreError
from tunery.store import Store, open_store, place_of
from tunery.store.database import file

CONV = task()


def test_paths_and_urls_name_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a" / "b c%41.db"
    with open_store(str(path)) as store:
        store.add_record(CONV, record(CONV))
        assert store.url == str(path)
    monkeypatch.chdir(tmp_path)
    for name in ("a/b c%41.db", f"sqlite:///{quote(str(path))}", "sqlite:///a/b c%2541.db"):
        with open_store(name) as store:
            assert len(store.records()) == 1


def test_nothing_means_the_environments_store_or_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.delenv("TUNERY_STORE", raising=False)
    with open_store() as store:
        assert store.path == tmp_path / ".local/share/tunery/tunery.db"
    monkeypatch.setenv("TUNERY_STORE", "~/mine.db")
    with open_store("") as store:
        assert store.path == tmp_path / "mine.db"
    with open_store(str(tmp_path / "given.db")) as store:
        assert store.path == tmp_path / "given.db"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "names no file; write for example"),
        ("sqlite:///:memory:", "names no file; write for example"),
        ("mysql://host/db", "unknown kind; write a file path or postgresql"),
        ("://", "no URL; write a file path"),
        ("~nosuchuser/x.db", "unknown home directory; write the whole path"),
    ],
)
def test_what_names_no_store_is_refused(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        open_store(url)


def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "find_spec", lambda name: None)
    with pytest.raises(StoreError, match=re.escape("pip install 'psycopg[binary]'")):
        open_store("postgresql://localhost/tunery")


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/full", "/dev/null", "link", "pipe"])
def test_what_is_no_file_is_refused_unread_and_unwritten(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for keep in (True, False):
        with pytest.raises(StoreError, match=r"is a (device|pipe), .*; name a file"):
            open_store(str(tmp_path / name), keep=keep)
    open_store(str(tmp_path / "a.db")).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.db", "link", "pipe"]


def test_a_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a directory; name a file"):
        open_store(str(tmp_path))


def test_a_place_is_named_without_its_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place_of(f"sqlite:///{tmp_path / 'a.db'}") == str(tmp_path / "a.db")
    assert not (tmp_path / "a.db").exists()
    monkeypatch.setattr(file, "find_spec", lambda name: object())
    assert "secret" not in place_of("postgresql://me:secret@host/name")


def test_a_place_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot be created \(.+\); name another store"):
        open_store(str(tmp_path / "file" / "store.db"))


@pytest.mark.parametrize("existing", [True, False])
def test_an_unwritable_place_is_named(tmp_path: Path, existing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.db"
    if existing:
        open_store(str(path)).close()
    monkeypatch.setattr(os, "access", lambda *_: False)  # permissions do not bind the superuser that may run this
    with pytest.raises(StoreError, match="cannot be written; change its permissions"):
        open_store(str(path))


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = namedtuple("part", "mountpoint fstype")
    mounts = [part("/", "ext4"), part(str(tmp_path.resolve()), "nfs4")]
    monkeypatch.setattr(file.psutil, "disk_partitions", lambda all: mounts)  # noqa: A006
    with pytest.raises(StoreError, match=r"network file system \(nfs4\).*local disk.*postgresql://"):
        open_store(str(tmp_path / "deep" / "store.db"))


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "photos.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE photos (id INTEGER)")
    connection.close()
    with pytest.raises(StoreError, match=r"another program.*'photos'"):
        open_store(str(path))
    with closing(sqlite3.connect(path)) as connection, connection:
        assert [row[0] for row in connection.execute("SELECT name FROM sqlite_master")] == ["photos"]
    connection.close()


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.touch()
    with open_store(str(path)) as store:
        assert store.stats().records == 0


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store: Store = open_store(str(tmp_path / "store.db"))
    store.close()
    store.close()
    with pytest.raises(StoreError, match="was closed; open it again"):
        store.records()


def test_nothing_is_left_open_beside_the_file(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db")) as store:
        store.add_record(CONV, record(CONV))
    assert [path.name for path in tmp_path.iterdir()] == ["store.db"]


def test_a_database_without_an_encoding_keeps_any_text(postgres_url: URL) -> None:
    plain = "TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
    with temporary_database(postgres_url, plain) as url, open_store(url) as store:
        job = store.create_job({"name": "Łódź", "model": "é.onnx"})
        store.explain_job(job.job_id, "ö")
        assert (store.job(job.job_id).message, store.job(job.job_id).request) == ("ö", job.request)


OPENER = """
import sys
from tunery.store import open_store
print("ready", flush=True)
sys.stdin.readline()
with open_store(sys.argv[1]) as store:
    print(store.create_job({}).job_id)
"""


def test_coordinators_that_open_an_empty_database_at_once_all_get_a_store(postgres_url: URL) -> None:
    with temporary_database(postgres_url) as url:
        openers = [
            subprocess.Popen(
                [sys.executable, "-c", OPENER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(2)
        ]
        for one in openers:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        for one in openers:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
        jobs = {one.communicate(timeout=60)[0].strip() for one in openers}
        assert [one.returncode for one in openers] == [0, 0]
        with open_store(url) as store:
            assert {status.job_id for status in store.jobs()} == jobs
    assert len(jobs) == 2
