"""Code for an ARM device of another host, made here: from what the device tells, and with nothing of this processor."""

import json
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("tvm")

from metaschedule_models import convolution_network

from tunery._errors import TargetError
from tunery.dialects.metaschedule import MetaScheduleDialect
from tunery.domain import DeviceDescription

pytestmark = pytest.mark.tvm

_AARCH64 = 183  # EM_AARCH64 in the ELF specification


def board(vector: Sequence[str], vendor: str = "0x41", model: str = "0xd08") -> DeviceDescription:
    facts = {"arch": "aarch64", "vendor": vendor, "model": model, "vector": list(vector)}
    return DeviceDescription("cpu", "a board", (0, 1, 2, 3), facts)


@pytest.mark.parametrize(
    ("device", "processor", "features"),
    [
        (board(["asimd"]), "cortex-a72", []),
        (board(["asimd", "asimddp", "asimdhp"], model="0xd0b"), "cortex-a76", []),
        # One whose kernel hides what others of its kind have gets no code for that.
        (board(["asimd"], model="0xd0b"), "generic", ["+neon"]),
        (board(["asimd", "asimddp"], vendor="", model=""), "generic", ["+neon", "+dotprod"]),
    ],
)
def test_the_target_is_what_the_device_says_of_itself(
    device: DeviceDescription, processor: str, features: list[str], dialect: MetaScheduleDialect
) -> None:
    target = dialect.resolve_target_of("native", 0, device)
    assert (target.config["mcpu"], target.config.get("mattr", [])) == (processor, features)
    assert target.threads == 4
    assert not any(word in json.dumps(dict(target.config)) for word in ("x86", "znver", "avx", "sse"))


@pytest.mark.parametrize(
    "spec", ["cortex-a76", '{"kind": "llvm", "mcpu": "cortex-a72", "mattr": ["+dotprod"]}', "znver4"]
)
def test_what_the_device_cannot_run_is_refused(spec: str, dialect: MetaScheduleDialect) -> None:
    with pytest.raises(TargetError):
        dialect.resolve_target_of(spec, 1, board(["asimd"]))


def test_a_named_processor_is_taken_where_it_runs(dialect: MetaScheduleDialect) -> None:
    assert dialect.resolve_target_of("cortex-a53", 1, board(["asimd"])).config["mcpu"] == "cortex-a53"


def test_a_candidate_is_built_for_the_device(dialect: MetaScheduleDialect, tmp_path: Path) -> None:
    target = dialect.resolve_target_of("native", 2, board(["asimd"]))
    network = convolution_network(tmp_path, channels=(8, 8))
    task = max(dialect.extract(network, target), key=lambda task: task.workload.flop)
    [candidate] = dialect.open(task, [], None, 0).propose(1)
    part = dialect.build_part(task, candidate, tmp_path)
    assert part is not None
    [machine] = struct.unpack_from("<18xH", part.path.read_bytes())
    assert machine == _AARCH64


def test_no_code_is_made_for_other_kinds_of_machines(dialect: MetaScheduleDialect) -> None:
    with pytest.raises(TargetError):
        dialect.resolve_target_of("native", 1, DeviceDescription("cpu", "a mainframe", (0,), {"arch": "s390x"}))


def test_a_kernel_is_run_without_the_compiler() -> None:
    code = "import sys, tunery.dialects.metaschedule.loading.kernel; sys.exit('tvm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
