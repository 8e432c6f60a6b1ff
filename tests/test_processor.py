"""The limits of the group that we are in count, not only those of the outermost one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tunery import _processor
from tunery._processor import granted_cores, limit_bytes, quota_cores

GROUPS = tuple(Path(f"/sys/fs/cgroup/{kind}tunery-test-{os.getpid()}") for kind in ("cpu/", "unified/", ""))


def put(place: Path, **files: str) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / name.replace("__", ".")).write_text(text + "\n")


@pytest.fixture
def membership(tmp_path: Path) -> Path:
    return tmp_path / "membership"


def test_version_2_the_tightest_of_all_groups_around_us(tmp_path: Path, membership: Path) -> None:
    membership.write_text("0::/user.slice/mine.scope\n")
    put(tmp_path, memory__max="max")
    put(tmp_path / "user.slice", cpu__max="150000 100000", memory__max="4096")
    put(tmp_path / "user.slice/mine.scope", cpu__max="max 100000", memory__max="8192")
    put(tmp_path / "user.slice/other.scope", cpu__max="10000 100000", memory__max="1")
    assert quota_cores(membership, tmp_path) == 1.5
    assert limit_bytes(membership, tmp_path) == 4096


def test_version_1_by_controller(tmp_path: Path, membership: Path) -> None:
    membership.write_text("4:memory:/box\n2:cpu,cpuacct:/half\n1:name=systemd:/half\n0::/\n")
    put(tmp_path / "cpu", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    put(tmp_path / "cpu/half", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    put(tmp_path / "memory/box", memory__limit_in_bytes="65536")
    assert quota_cores(membership, tmp_path) == 0.5
    assert limit_bytes(membership, tmp_path) == 65536


def test_in_a_container_that_shows_the_hosts_path_the_mount_is_ours(tmp_path: Path, membership: Path) -> None:
    membership.write_text("2:cpu:/docker/abc\n0::/../abc\n")
    put(tmp_path, cpu__max="200000 100000")
    put(tmp_path / "cpu", cpu__cfs_quota_us="100000", cpu__cfs_period_us="100000")
    put(tmp_path.parent / "abc", cpu__max="1000 100000")
    assert quota_cores(membership, tmp_path) == 1.0


def test_no_groups_are_no_limits(tmp_path: Path) -> None:
    assert quota_cores(tmp_path / "none", tmp_path) is None
    assert limit_bytes(tmp_path / "none", tmp_path) is None
    assert quota_cores() is None or quota_cores() > 0


@pytest.mark.parametrize(("quota", "cores"), [(None, 4), (2.5, 2), (0.3, 1), (16.0, 4)])
def test_a_quota_limits_the_cores(monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(_processor, "quota_cores", lambda: quota)
    assert granted_cores() == cores


def test_a_quota_of_half_a_core_is_one_thread_where_the_file_runs() -> None:
    """A real group, where this machine lets us make one."""
    group = next((path for path in GROUPS if path.parent.is_dir() and os.access(path.parent, os.W_OK)), None)
    if group is None:
        pytest.skip("no control group of processor time can be made here")
    quota = {"cpu.max": "50000 100000"} if "unified" in str(group) else {"cpu.cfs_quota_us": "50000"}
    code = "from tunery.dialects._loaded import thread_count; print(thread_count(None, 64))"
    try:
        group.mkdir()
        for name, text in quota.items():
            (group / name).write_text(text)
        command = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", sys.executable, "-c", code]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": ""}
        )
    except OSError as error:
        pytest.skip(f"no control group of processor time can be made here: {error}")
    finally:
        if group.is_dir():
            group.rmdir()
    assert done.stdout == "1\n", done.stderr
