"""Unkind surroundings: locale, time zone, umask, links, homes, disks, limits, and a second user of the machine."""

import json
import os
import resource
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from attack_tools import FAKE, expect_done, expect_refused, mounted, run, tune
from second_user import OTHER, needs_root, shared_place

hostile = pytest.mark.hostile
"""On all but a few, which `make test` runs."""

LOCALES = ["C", "tr_TR.UTF-8", "zh_CN.GB18030", "nonsense"]


@hostile
@pytest.mark.parametrize("name", LOCALES)
def test_the_language_of_the_machine_changes_nothing(tmp_path: Path, name: str) -> None:
    env = {"LC_ALL": name, "LANG": name, "LANGUAGE": name}
    expect_done(tune(tmp_path, "--json", env=env))
    for setting in ("0", "1"):
        odd = env | {"PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": setting}
        done = run(tmp_path, "compile", "fake:x", *FAKE, "-o", "nét.tunery", env=odd)
        if setting == "0" and done.returncode:
            expect_refused(done)
            assert "PYTHONUTF8=1" in done.stderr
        else:
            expect_done(done)
    shown = run(tmp_path, "jobs", "list", "--json", env=env)
    expect_done(shown)
    assert json.loads(shown.stdout)["jobs"]
    expect_done(run(tmp_path, "records", "export", "rec.jsonl", env=env))
    expect_done(run(tmp_path, "records", "import", "rec.jsonl", "--store", "other.db", env=env))


@hostile
@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "XXX+24", ":/dev/zero"])
def test_the_time_zone_of_the_machine_changes_nothing(tmp_path: Path, zone: str) -> None:
    expect_done(run(tmp_path, "tune", "fake:x", *FAKE, "--budget", "3trials", env={"TZ": "UTC"}))
    again = tune(tmp_path, "--json", env={"TZ": zone})
    expect_done(again)
    assert json.loads(again.stdout)["spend"]["trials"] == 6
    expect_done(run(tmp_path, "spend", env={"TZ": zone}))
    expect_done(run(tmp_path, "jobs", "list", env={"TZ": zone}))


@pytest.mark.jobs
@pytest.mark.parametrize("mask", [0o777, *(pytest.param(one, marks=hostile) for one in (0o000, 0o077))])
def test_any_umask(tmp_path: Path, mask: int) -> None:
    done = tune(tmp_path, "-o", "net.tunery", change=lambda: os.umask(mask))
    if mask == 0o777 and os.geteuid() != 0:
        expect_refused(done)
        return
    expect_done(done)
    for cache in tmp_path.rglob("tunery"):
        if cache.parent.name == ".cache":
            assert not stat.S_IMODE(cache.stat().st_mode) & 0o022, "others could put object files there"


@pytest.mark.jobs
def test_links_in_the_place_of_every_directory_and_file(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (tmp_path / "real").mkdir()
    for name in (".cache", ".local", ".config"):
        (tmp_path / "real" / name).mkdir()
        home.mkdir(exist_ok=True)
        (home / name).symlink_to(tmp_path / "real" / name)
    (home / ".local" / "share").mkdir()
    (tmp_path / "real" / "data").mkdir()
    (home / ".local" / "share" / "tunery").symlink_to(tmp_path / "real" / "data")
    (tmp_path / "real" / "data" / "tunery.db").symlink_to(tmp_path / "real" / "the.db")
    expect_done(tune(tmp_path, "-o", "net.tunery"))
    assert (tmp_path / "real" / "the.db").stat().st_size
    assert (tmp_path / "real" / "data" / "tunery.db").is_symlink()
    expect_done(run(tmp_path, "records", "stats"))


LINKED = ["blobs", "blobs/objects", "blobs/lock", "measuring.lock", "run-1-x", "blobs/leases/1-x"]


@hostile
@pytest.mark.parametrize("name", LINKED)
def test_links_inside_of_the_cache_lead_nowhere(tmp_path: Path, name: str) -> None:
    """Nothing that a link points to is changed, be it a directory of the user's or a file."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").write_text("years of work")
    link = tmp_path / "cache" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    done = tune(tmp_path, env={"TUNERY_CACHE": str(tmp_path / "cache")})
    if done.returncode:
        expect_refused(done)
    assert (victim / "precious").read_text() == "years of work"


@hostile
@pytest.mark.parametrize("home", ["/nowhere/at/all", "/proc", "/dev/null"])
def test_a_home_that_cannot_be_written(tmp_path: Path, home: str) -> None:
    needs_root()
    tmp_path.chmod(0o755)
    expect_refused(tune(tmp_path, other=True, env={"HOME": home}))
    for words in (("records", "stats"), ("jobs", "list")):
        done = run(tmp_path, *words, other=True, env={"HOME": home})
        if done.returncode:
            expect_refused(done)
    with shared_place() as place:
        mine = {"HOME": home, "TUNERY_CACHE": str(place / "cache"), "TUNERY_STORE": str(place / "s.db")}
        expect_done(tune(tmp_path, other=True, env=mine | {"TMPDIR": str(place)}))


@hostile
def test_a_second_user_reads_and_writes_nothing_of_what_may_be_run(tmp_path: Path) -> None:
    """What a user makes in a directory that all may write is theirs: neither cache nor daemon takes another's."""
    needs_root()
    with shared_place() as place:
        theirs = {"TUNERY_CACHE": str(place / "cache"), "TUNERY_STORE": str(place / "s.db"), "TMPDIR": str(place)}
        expect_done(tune(tmp_path, env=theirs))
        assert not stat.S_IMODE((place / "cache").stat().st_mode) & 0o077
        mine = theirs | {"TUNERY_STORE": str(place / "mine.db")}
        expect_refused(tune(tmp_path, other=True, env=mine))
        shutil.rmtree(place / "cache")
        (place / "cache").mkdir()
        os.chown(place / "cache", OTHER, OTHER)
        (place / "cache").chmod(0o777)
        expect_refused(tune(tmp_path, env=theirs))
        assert not list((place / "cache").iterdir())
        private = [path for path in place.iterdir() if path.name.startswith(("tunery-", "tmp"))]
        assert all(not stat.S_IMODE(path.stat().st_mode) & 0o077 for path in private)


TROJAN = "import os; open(os.path.join({folder!r}, 'canary'), 'a').write(__name__)\n"


@hostile
def test_modules_in_the_working_directory_are_not_imported(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    names = [*sys.stdlib_module_names, "tunery", "numpy", "onnx", "psutil", "tvm", "rich", "typer", "sqlalchemy"]
    for name in names:
        (folder / f"{name}.py").write_text(TROJAN.format(folder=str(tmp_path)))
    (folder / "sitecustomize.py").write_text(TROJAN.format(folder=str(tmp_path)))
    expect_done(tune(tmp_path, "-o", "net.tunery", cwd=folder))
    expect_done(run(tmp_path, "records", "export", "x.jsonl", cwd=folder))
    expect_done(run(tmp_path, "records", "import", "x.jsonl", cwd=folder))
    run(tmp_path, "doctor", cwd=folder)
    assert not (tmp_path / "canary").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small", "size=2m") as folder:
        yield folder


@hostile
@pytest.mark.parametrize("full", ["TUNERY_CACHE", "TUNERY_STORE", "TMPDIR", "HOME"])
def test_a_disk_that_is_full(tmp_path: Path, small_disk: Path, full: str) -> None:
    place = {"TUNERY_CACHE": "cache", "TUNERY_STORE": "s.db"}.get(full, "")
    env = {full: str(small_disk / place)}
    ballast = small_disk / "ballast"
    with suppress(OSError):
        ballast.write_bytes(bytes(4 << 20))
    done = tune(tmp_path, "-o", "net.tunery", env=env)
    if done.returncode:
        expect_refused(done)
    for words in (("records", "stats"), ("jobs", "list"), ("records", "export", "x.jsonl")):
        tried = run(tmp_path, *words, env=env)
        if tried.returncode:
            expect_refused(tried)
    ballast.unlink()
    expect_done(tune(tmp_path, "-o", "net.tunery", env=env))


@hostile
def test_an_output_on_a_full_disk_leaves_the_old_one(tmp_path: Path, small_disk: Path) -> None:
    output = small_disk / "net.tunery"
    expect_done(tune(tmp_path, "-o", output))
    before = output.read_bytes()
    with suppress(OSError):
        (small_disk / "ballast").write_bytes(bytes(4 << 20))
    expect_refused(run(tmp_path, "compile", "fake:x", *FAKE, "-o", output))
    expect_refused(run(tmp_path, "records", "export", small_disk / "x.jsonl"))
    assert output.read_bytes() == before
    assert {path.name for path in small_disk.iterdir()} == {"net.tunery", "ballast"}


@hostile
@pytest.mark.parametrize("most", [16, 24, 64])
def test_a_hard_limit_on_open_files(tmp_path: Path, most: int) -> None:
    done = tune(tmp_path, change=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)))
    if done.returncode or most < 24:
        expect_refused(done)


@pytest.mark.jobs
@pytest.mark.parametrize(("kind", "most"), [(resource.RLIMIT_FSIZE, 0), *(pytest.param(*one, marks=hostile) for one in (
    (resource.RLIMIT_AS, 1 << 30), (resource.RLIMIT_AS, 200 << 20), (resource.RLIMIT_FSIZE, 1 << 16),
    (resource.RLIMIT_CPU, 1), (resource.RLIMIT_STACK, 1 << 16),
))], ids=str)  # fmt: skip
def test_other_hard_limits(tmp_path: Path, kind: int, most: int) -> None:
    done = tune(tmp_path, change=lambda: resource.setrlimit(kind, (most, most)))
    if done.returncode > 0:
        expect_refused(done)


@hostile
def test_too_little_memory_is_said_and_the_next_run_goes_on(tmp_path: Path) -> None:
    for limit in (48 << 20, 128 << 20):
        done = tune(tmp_path, memory=limit)
        if done.returncode > 0:
            expect_refused(done)
    expect_done(tune(tmp_path))


@hostile
@pytest.mark.parametrize("stream", ["/dev/full", "closed"])
def test_output_that_nobody_takes(tmp_path: Path, stream: str) -> None:
    if stream == "closed":
        done = tune(tmp_path, "--json", change=lambda: [os.close(number) for number in (0, 1, 2)])
    else:
        with Path(stream).open("w") as file:
            done = tune(tmp_path, "--json", stdout=file)
        expect_refused(done)
    assert done.returncode in {0, 1, 2}
    expect_done(run(tmp_path, "jobs", "list"))


@hostile
def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    for words in (("records", "stats"), ("jobs", "list"), ("tune", "fake:x", *FAKE, "--budget", "4trials")):
        gone.mkdir(exist_ok=True)
        done = run(tmp_path, *words, cwd=gone, change=gone.rmdir)
        if done.returncode:
            expect_refused(done)


VALUES = [
    {"COLUMNS": "-5", "LINES": "x", "TERM": "\x1b]0;x", "NO_COLOR": "1", "PYTHONIOENCODING": "ascii"},
    {"COLUMNS": "9" * 30, "PYTHONWARNINGS": "error", "MALLOC_ARENA_MAX": "1", "PATH": ""},
    {"TMPDIR": "/nowhere/at/all", "XDG_RUNTIME_DIR": "/dev/null"}, {"XDG_CACHE_HOME": "/dev/null"},
    {"XDG_DATA_HOME": "/dev/null/x"}, {"XDG_DATA_HOME": "x" * 5000}, {"XDG_CACHE_HOME": "x" * 5000},
    {"TUNERY_CACHE": "x" * 5000}, {"TUNERY_SOCKET": "x" * 5000}, {"TUNERY_MODELS": "x" * 5000},
    {"TUNERY_MODELS": "/dev/zero"}, {"TUNERY_PRICES": "/dev/zero"}, {"TUNERY_STORE": "~nobodyhere/x.db"},
    {"TUNERY_STORE": "x" * 5000}, {"TUNERY_STORE": "\n"}, {"TUNERY_CACHE": "\n"},
]  # fmt: skip


@hostile
@pytest.mark.parametrize("env", VALUES, ids="-".join)
def test_any_value_of_a_variable(tmp_path: Path, env: dict[str, str]) -> None:
    for words in (("tune", "fake:x", *FAKE, "--budget", "4trials"), ("jobs", "list")):
        done = run(tmp_path, *words, env=env)
        if done.returncode:
            expect_refused(done)
        assert "Traceback" not in done.stderr
