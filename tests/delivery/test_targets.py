"""A file for several processors: the weights are there once, and what is loaded is the best that runs here."""

import json
import platform
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tunery
from tunery._errors import DialectError, UsageError
from tunery._processor import lacking
from tunery.delivery.files.inspection import inspect
from tunery.delivery.files.signing import create_key
from tunery.dialects import Array, NetworkCompiler, get_dialect
from tunery.domain import DeviceDescription
from tunery.domain.request import CompileOptions, Request
from tunery.models import prepare
from tunery.service.session import compile_model

pytestmark = [
    pytest.mark.tvm,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the lesser target is one of x86"),
]

LESSER = '{"kind": "llvm", "mcpu": "x86-64"}'
FOREIGN = "sve"


BOARD = DeviceDescription("cpu", "a board", (0, 1), {"arch": "aarch64", "vector": ["asimd"]})


def compiled(
    path: Path, target: str, threads: int, model: str = "zoo:mlp-mnist", name: str = "metaschedule",
    device: DeviceDescription | None = None,
) -> Path:  # fmt: skip
    dialect = get_dialect(name)
    scratch = path.with_suffix(".model")
    scratch.mkdir()
    network = prepare(model, {}, scratch)
    resolved = dialect.resolve_target_of(target, threads, device) if device else dialect.resolve_target(target, threads)
    NetworkCompiler.of(dialect).compile(network, resolved, {}, path)
    return path


@pytest.fixture(scope="module", name="files")
def _files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A file for this processor with two threads, one for any with one thread, and one of both."""
    place = tmp_path_factory.mktemp("files")
    best, lesser = compiled(place / "best", "native", 2), compiled(place / "lesser", LESSER, 1)
    return best, lesser, tunery.combine([lesser, best], place / "both.tunery")


def outputs(path: Path) -> tuple[int, list[Array]]:
    """Return the threads of what is loaded, which tell the targets apart, and what it gives."""
    network = tunery.load_compiled(path)
    rng = np.random.default_rng(0)
    return network.threads, network(*(rng.standard_normal(spec.shape, np.float32) for spec in network.inputs))


def needing(source: Path, path: Path, *foreign: int) -> Path:
    """Copy a file of which the targets of these threads need an instruction that no such processor has."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "manifest.json":
                manifest = json.loads(data)
                for target in manifest["parts"]:
                    target["instructions"] += [FOREIGN] if target["threads"] in foreign else []
                data = json.dumps(manifest).encode()
            new.writestr(name, data)
    return path


def test_the_best_target_that_runs_here_is_loaded(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    best, lesser, both = files
    cases = [(best, both), (lesser, needing(both, tmp_path / "a", 2)), (best, needing(both, tmp_path / "b", 1))]
    for alone, several in cases:
        threads, expected = outputs(alone)
        used, found = outputs(several)
        assert used == threads
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_file_of_which_no_target_runs_here_is_refused(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    none = needing(files[2], tmp_path / "none", 1, 2)
    for refused in (tunery.load_compiled, tunery.InferenceSession):
        with pytest.raises(UsageError, match=FOREIGN) as caught:
            refused(none)
        assert "\n" not in str(caught.value)


def test_a_file_lists_its_targets(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    found = inspect(files[2])
    assert [one.threads for one in found.targets] == [2, 1]
    assert set(found.targets[0].instructions) > set(found.targets[1].instructions)
    assert found.file.threads == 2
    foreign = inspect(needing(files[2], tmp_path / "a", 2))
    assert (foreign.targets[0].lacking, foreign.file.threads) == ([FOREIGN], 1)


@pytest.mark.parametrize(("llvms", "linuxs"), [("avxvnni", "avx_vnni"), ("amx-int8", "amx_int8"), ("i8mm", "i8mm")])
def test_instructions_that_numpy_does_not_know_are_asked_of_the_system(llvms: str, linuxs: str) -> None:
    has = linuxs in Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    assert lacking([llvms]) == ([] if has else [llvms])


@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-gcc") is None, reason="nothing here links code for ARM")
def test_a_file_for_arm_and_x86_serves_each(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    best, _, _ = files
    board = compiled(tmp_path / "board", "native", 1, device=BOARD)
    both = tunery.combine([board, best], tmp_path / "both.tunery")
    assert outputs(both)[0] == outputs(best)[0] == 2
    listed = {one.threads: one for one in inspect(both).targets}
    assert (listed[1].instructions, listed[1].lacking, listed[2].lacking) == (["neon"], ["neon"], [])
    assert "avx" in listed[2].instructions
    made = tunery.bundle(both, tmp_path / "bundle")
    [part] = (one for one in (made / "network").iterdir() if one.is_dir())
    assert "needs avx\n" in (part / "network.txt").read_text()
    for refused in (tunery.load_compiled, lambda file: tunery.bundle(file, tmp_path / "other")):
        with pytest.raises(UsageError, match=r"aarch64|neon") as caught:
            refused(board)
        assert "\n" not in str(caught.value)


def test_a_combined_file_can_be_signed(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    public = create_key(tmp_path / "key")
    signed = tunery.combine(files[:2], tmp_path / "signed.tunery", sign=tmp_path / "key")
    assert tunery.load_compiled(signed, trusted=public).threads == 2
    with pytest.raises(UsageError):
        tunery.combine(files[:2], tmp_path / "more.tunery", trusted=public)
    with pytest.raises(UsageError):
        tunery.load_compiled(needing(signed, tmp_path / "other", 2), trusted=public)


def test_what_cannot_be_combined_is_said_in_one_sentence(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    best, lesser, both = files
    other = compiled(tmp_path / "other", LESSER, 1, "zoo:ds-cnn")
    whole = compiled(tmp_path / "whole", "native", 1, name="onnxruntime")
    again = tmp_path / "again"
    again.write_bytes(best.read_bytes())
    cut = tmp_path / "cut"
    cut.write_bytes(lesser.read_bytes()[:-40])
    for given in ([best], [best, best], [best, again], [best, other], [best, whole], [both, lesser], [best, cut],
                  [best, tmp_path / "missing"], [best, tmp_path]):  # fmt: skip
        with pytest.raises(UsageError) as caught:
            tunery.combine(given, tmp_path / "made.tunery")
        assert "\n" not in str(caught.value)
    other_whole = tmp_path / "other_whole"
    other_whole.write_bytes(whole.read_bytes())
    with pytest.raises(DialectError):
        tunery.combine([whole, other_whole], tmp_path / "made.tunery")
    with pytest.raises(UsageError):
        tunery.combine([best, lesser], best)
    assert not (tmp_path / "made.tunery").exists()


@pytest.mark.slow
def test_a_model_is_compiled_for_several_targets(tmp_path: Path, let_win: Callable[..., None]) -> None:
    request = Request("zoo:mlp-mnist", threads=1, store=str(tmp_path / "s.db"))
    let_win("tunery", "onnxruntime")  # which does not matter for the second target: that is for other processors
    report, _ = compile_model(request, tmp_path / "a.tunery", CompileOptions(predict=True, targets=(LESSER,)))
    assert report.targets == ("native", LESSER)
    [further] = report.further
    assert (further.target, further.kept) == (LESSER, True)
    assert further.max_abs_error is not None
    assert further.max_abs_error < 1e-3
    assert further.latency_s
    assert further.onnxruntime_s
    found = inspect(tmp_path / "a.tunery")
    assert len(found.targets) == 2
    assert 0 < found.members["weights.bin"] < 1.01 * prepare("zoo:mlp-mnist", {}, tmp_path).parameters * 4
    let_win("onnxruntime")
    report, _ = compile_model(request, tmp_path / "b.tunery", CompileOptions(targets=(LESSER,)))
    assert report.targets == ("native",)
    assert inspect(tmp_path / "b.tunery").file.dialect == "onnxruntime"
    assert sorted(one.suffix for one in tmp_path.iterdir() if one.is_file())[-2:] == [".tunery", ".tunery"]
