"""Words that reach a compiler from outside: none of them becomes an option, and no program runs or file is written."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from web_tools import Serve, Site

from tunery._errors import ModelError, StoreError, TargetError, UsageError
from tunery.dialects import get_dialect, installed_dialects
from tunery.domain import (
    Candidate,
    Measurement,
    Origin,
    Outcome,
    Provenance,
    Record,
    Target,
    Task,
    TensorSpec,
    Workload,
)
from tunery.domain.closed_target import check_target, closed
from tunery.store import open_store

pytestmark = pytest.mark.hostile


def attacks(folder: Path) -> list[dict[str, Any]]:
    """Return targets with options by which LLVM, gcc or IREE run a program or write files."""
    program = folder / "program"
    program.write_text(f"#!/bin/sh\ntouch {folder / 'canary'}\n")
    program.chmod(0o755)
    runs = [f"-print-changed-diff-path:string={program}", "-print-changed:int=3"]
    writes = f"-ir-dump-directory:string={folder / 'dumped'}"
    base = {"kind": "llvm", "mcpu": "x86-64"}
    return [
        {**base, "cl-opt": runs}, {**base, "cl-opt": [writes]}, {**base, "libs": ["mkl"]}, {**base, "keys": ["cuda"]},
        {**base, "mtriple": f"x86_64 {writes}"}, {**base, "mattr": [writes]}, {**base, "mattr": ["+avx,-x"]},
        {**base, "mcpu": f"x86-64 {writes}"}, {**base, "host": base}, {**base, "jit": "orcjit"}, {**base, "tag": "x"},
        {**base, "fast-math": True}, {**base, "unswitch": writes}, {**base, "num-cores": writes},
        {"kind": "c", "mcpu": f"native -fplugin={program}"}, {"kind": "c", "mcpu": f"-wrapper {program}"},
        {"kind": "c", "mcpu": "native", "gcc": str(program)}, {"kind": "c", "mcpu": "x", "machine": f"../{program}"},
        {"kind": "llvm-cpu", "mcpu": f"x --iree-llvmcpu-system-linker-path={program}"},
        {"kind": "cuda", "arch": f"sm_80 --pre-include={program}"}, {"kind": [base]}, {"kind": base},
    ]  # fmt: skip


@pytest.mark.tvm
def test_no_dialect_makes_a_target_of_an_option(tmp_path: Path) -> None:
    for name in installed_dialects():
        for attack in attacks(tmp_path):
            for spec in (json.dumps(attack), str(attack.get("mcpu")), f" {json.dumps(attack)}"):
                if spec in {"native", "x86-64", "x", "None"}:
                    continue
                with pytest.raises(UsageError):
                    get_dialect(name).resolve_target(spec, 1)
    assert not (tmp_path / "canary").exists()
    assert not (tmp_path / "dumped").exists()


@pytest.mark.tvm
def test_a_target_that_came_another_way_is_looked_at_where_the_compiler_gets_it(tmp_path: Path) -> None:
    from tunery.dialects.iree.tools import cpu_flags
    from tunery.dialects.kernels.gcc import processor_of
    from tunery.dialects.metaschedule._tvm import open_target

    for attack in attacks(tmp_path):
        for reaches in (open_target, cpu_flags, processor_of):
            with pytest.raises((TargetError, KeyError)):
                reaches(attack)
    assert not (tmp_path / "canary").exists()


_VALUES = st.text() | st.integers() | st.floats() | st.booleans() | st.lists(st.text(max_size=8), max_size=3)


@given(
    st.dictionaries(st.sampled_from(["kind", "mcpu", "mattr", "device", "gcc", "arch"]) | st.text(max_size=12), _VALUES)
)
def test_what_passes_the_gate_has_no_option_path_or_command_in_it(config: Mapping[str, object]) -> None:
    try:
        fields = closed(config)
    except TargetError:
        return
    for value in fields.values():
        for word in value if isinstance(value, list) else [value]:
            assert not isinstance(word, str) or not set(word) & set("=;|&$`<>'\"\\\n\0"), word


def test_an_accounts_target_is_refused_before_it_is_queued(serve: Serve, tmp_path: Path) -> None:
    async def main(site: Site) -> None:
        ann = await site.account("ann")
        await ann.put("/v1/blobs/sha256:" + "0" * 64, content=b"")
        for attack in attacks(tmp_path):
            for target in (json.dumps(attack), f"x86-64 {attack.get('cl-opt')}"):
                job = {"model": "fake:web?tasks=1", "dialect": "fake", "target": target}
                for place in ("/v1/jobs", "/v1/measurements"):
                    answer = await ann.post(place, json=job)
                    assert answer.status_code == 422, (place, target, answer.text)
        assert (await ann.get("/v1/jobs")).json()["jobs"] == []

    serve(main)


def test_a_record_whose_target_holds_an_option_is_not_imported(tmp_path: Path) -> None:
    specs = (TensorSpec("x", (4,), "float32"), TensorSpec("y", (4,), "float32"))
    workload = Workload("key", "name", "conv2d", "program", specs, 1, 1.0)
    provenance = Provenance("fake", "fake-1", "device", "settings")
    for number, attack in enumerate(attacks(tmp_path)):
        task = Task(workload, Target("fake", attack, 1))
        record = Record(Candidate("c", task.key, "body", Origin.SEARCH), Measurement(Outcome.OK, (1e-3,)), provenance)
        with open_store(str(tmp_path / f"s{number}.db")) as store:
            store.add_record(task, record)
            store.export_records(tmp_path / "records.jsonl")
        with open_store(str(tmp_path / f"i{number}.db")) as store:
            with pytest.raises(StoreError, match="target"):
                store.import_records(tmp_path / "records.jsonl", _Trusting())
            assert store.tasks() == []


class _Trusting:
    """Checks that let everything through."""

    def workload(self, task: Task) -> str:
        return ""

    def bodies(self, dialect: str, bodies: Sequence[str]) -> Sequence[str]:
        return [""] * len(bodies)


def test_the_test_kits_dialects_are_closed_to_accounts(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_TEST_DIALECTS", "off")

    async def main(site: Site) -> None:
        ann, adm = await site.account("ann", "developer"), site.admin
        for client in (ann, adm):
            for job in (
                {"model": "fake:web?tasks=1", "dialect": "fake"},
                {"model": "zoo:mlp", "dialect": "fake"},
                {"model": "fake:web", "dialect": "metaschedule"},
                {"model": "zoo:mlp", "dialect": "metaschedule,fake"},
            ):
                for place in ("/v1/jobs", "/v1/measurements"):
                    answer = await client.post(place, json=job)
                    assert answer.status_code == 422, (place, job, answer.text)
        assert (await adm.get("/v1/jobs")).json()["jobs"] == []

    serve(main)


@pytest.mark.parametrize("flag", [
    "-fplugin=/tmp/x.so", "-wrapper", "-specs=/tmp/x", "-B/tmp", "-I/etc", "-include", "-o/tmp/x", "-Wp,-MD,/tmp/x",
    "-Wl,-rpath,/tmp", "-Xlinker", "@/tmp/x", "-fdump-tree-all=/tmp/x", "-x", "-save-temps", "-march=native", "-l:x.so",
    "-fprofile-dir=/tmp", "--param", "-MF", "-dumpdir", "-Wa,-al=/tmp/x", "-fstack-usage", "-fsave-optimization-record",
    "-fopt-info=x", "-fdiagnostics-format=json-file", "-ftest-coverage", "-fcallgraph-info", "-fcompare-debug",
    "-fuse-ld=gold", "-fmodule-mapper=x", "-fmodules", "-fauto-profile", "-fsplit-stack=/x", "-fdeps-file=x", "-Wl",
    "-mfentry-name=x", "-mtune=native", "-mcpu=x", "-fpreprocessed", "-fplugin-arg-x-y=z", "-mdump-tune-features",
    "-mavx2\n-x", "-O3 -x", "-fdump-tree-all", "-fsanitize=address", "-flto", "-frandom-seed=x", "-foffload=x",
])  # fmt: skip
def test_a_kernels_flags_name_no_file_and_no_program(flag: str, tmp_path: Path) -> None:
    from tunery.dialects.kernels.kernel_file import read_kernel

    (tmp_path / "k.c").write_text("void f(float *x) { x[0] = 1; }\n")
    (tmp_path / "k.toml").write_text(
        f'function = "f"\nsource = "k.c"\nflags = [{json.dumps(flag)}]\n[parameters]\nT = [1]\n'
        '[[arguments]]\nname = "x"\nshape = [1]\noutput = true\n'
    )
    with pytest.raises(ModelError, match="flag"):
        read_kernel(tmp_path / "k.toml")


@pytest.mark.parametrize(
    "spec", ["", "-x", "a b", "/bin/sh", "x=1", "a;b", "$(id)", "`id`", "é", "x" * 300, "{", "{}x"]
)
def test_a_name_is_a_plain_word(spec: str) -> None:
    with pytest.raises(TargetError):
        check_target(spec)
    assert os.environ
