"""Kernel files are read whole or refused in one sentence, in our form and in Kernel Tuner's."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tunery._errors import ModelError
from tunery.dialects.kernels.kernel_file import read_kernel
from tunery.dialects.kernels.kernel_tuner import KernelTunerResult, cache_of, read_results, t4_of
from tunery.dialects.kernels.specification import decoded, read_specification

HEAD = """
function = "scale"
source = "scale.c"
restrictions = ["TILE * UNROLL <= N"]
"""
BODY = """
[problem]
N = 64
[[arguments]]
name = "x"
shape = ["N", 2]
[[arguments]]
name = "factor"
dtype = "float32"
value = 3.0
[[arguments]]
name = "y"
shape = ["N", 2]
output = true
[parameters]
TILE = [8, 16, 32, 64]
UNROLL = [1, 2, 4]
[reference]
numpy = "x * factor"
"""
T1 = {
    "ConfigurationSpace": {
        "TuningParameters": [
            {"Name": "TILE", "Type": "int", "Values": "[8, 16, 32]"},
            {"Name": "UNROLL", "Type": "int", "Values": "[2**i for i in range(3)]"},
        ],
        "Conditions": [{"Parameters": ["TILE", "UNROLL"], "Expression": "TILE * UNROLL <= ProblemSize[0]"}],
    },
    "KernelSpecification": {
        "Language": "C", "KernelName": "scale", "KernelFile": "scale.c", "ProblemSize": [64],
        "GlobalSize": {"X": "1"}, "LocalSize": {"X": "1"},
        "Arguments": [
            {"Name": "x", "Type": "float", "MemoryType": "Vector", "Size": "2*ProblemSize[0]", "FillType": "Random"},
            {"Name": "factor", "Type": "float", "MemoryType": "Scalar", "FillValue": 3.0},
            {"Name": "y", "Type": "float", "MemoryType": "Vector", "Size": 128, "AccessType": "WriteOnly"},
        ],
    },
}  # fmt: skip


def write(directory: Path, text: str, name: str = "scale.toml") -> Path:
    (directory / "scale.c").write_text("void scale(const float *x, float factor, float *y) {}\n")
    path = directory / name
    path.write_text(text)
    return path


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_kernel(path)
    return str(caught.value)


def test_our_form_and_t1_say_the_same(tmp_path: Path) -> None:
    ours = read_kernel(write(tmp_path, HEAD + BODY))
    theirs = read_kernel(write(tmp_path, json.dumps(T1), "scale.json"))
    assert ours.space.size == 9
    assert theirs.space.size == 8
    assert ours.default == theirs.default == {"TILE": 8, "UNROLL": 1}
    assert [one.shape for one in theirs.arguments] == [(128,), (), (128,)]
    half = read_kernel(write(tmp_path, json.dumps(T1).replace('"float"', '"half"'), "half.json"))
    assert [one.dtype for one in half.arguments] == ["float16"] * 3
    for found in (ours, theirs, half):
        again = read_specification(found.text)
        assert again == found
        assert again.key == found.key


def test_what_decides_the_code_decides_the_key_and_hints_do_not(tmp_path: Path) -> None:
    found = read_kernel(write(tmp_path, HEAD + BODY))
    assert read_kernel(write(tmp_path, HEAD + BODY)).key == found.key
    for old, new in (("N = 64", "N = 128"), ("[1, 2, 4]", "[1, 2, 8]"), ("3.0", "4.0"), ("x * factor", "x * 3")):
        assert read_kernel(write(tmp_path, (HEAD + BODY).replace(old, new))).key != found.key, new
    results = [KernelTunerResult({"TILE": 16, "UNROLL": 2}, 1e-3)]
    (tmp_path / "cache.json").write_text(json.dumps(cache_of(results, found.parameters, "scale", "here", [64])))
    hinted = read_kernel(write(tmp_path, 'hints = "cache.json"\n' + HEAD + BODY))
    assert hinted.hints == ({"TILE": 16, "UNROLL": 2},)
    assert hinted.key == found.key


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('name = "x"\nshape = ["N", 2]', 'name = "x"', "neither a shape nor a value"),
        ("output = true", "", "no argument is an output"),
        ("TILE * UNROLL <= N", "TILE * UNROL <= N", "'UNROL'"),
        ("TILE * UNROLL <= N", "N <= 64", "names no parameter"),
        ("TILE * UNROLL <= N", "TILE > 64", "no configuration fulfils"),
        ("TILE * UNROLL <= N", "all(TILE > i for i in [1])", "this call"),
        ("TILE * UNROLL <= N", "[x for x in [1]]", "a loop"),
        ("TILE * UNROLL <= N", "__import__('os').system('true')", "this call"),
        ("TILE * UNROLL <= N", "TILE <", "no expression"),
        ("TILE * UNROLL <= N", "(" * 300 + "TILE" + ")" * 300, "no expression"),
        ("N = 64", "N = 3000000000", "GB"),
        ("N = 64", "N = -1", "whole number from 1 on"),
        ("[8, 16, 32, 64]", "[]", "0 values"),
        ("[8, 16, 32, 64]", "[8, 8]", "twice"),
        ("[8, 16, 32, 64]", '["1; int x"]', "no name or number of C"),
        ("TILE = [8", "int = [8", "word of C"),
        ('dtype = "float32"', 'dtype = "complex64"', "dtype"),
        ("value = 3.0", 'value = 3.0\nshape = ["N"]', "no shape"),
        ("x * factor", "open('x')", "'open'"),
        ("x * factor", "x.tofile", "Attribute"),
        ("x * factor", "z * 2", "'z'"),
        ('source = "scale.c"', 'source = "absent.c"', "not there"),
        ('source = "scale.c"', 'source = "."', "no file"),
        ('source = "scale.c"', 'source = "scale.c"\nflags = ["-fplugin=x.so"]', "flag"),
        ('source = "scale.c"', 'source = "scale.c"\ncolour = 1', "colour"),
        ('source = "scale.c"', 'source = "scale.c"\nlanguage = "fortran"', "language"),
        ('source = "scale.c"', 'source = "scale.c"\nlanguage = "cuda"', "launch"),
        ("[parameters]", "[launch]\nglobal = [1]\nshared = 8\n[parameters]", "has a table `launch`"),
        ("[reference]", "[default]\nTILE = 9\n[reference]", "none of its values"),
        ("[reference]", "[default]\nTILE = 64\nUNROLL = 4\n[reference]", "does not fulfil"),
        ("[reference]", "[default]\nTILE = 64\n[reference]", "no value for UNROLL"),
        ('shape = ["N", 2]\noutput', 'fill = "x.npy"\nshape = ["N", 2]\noutput', "never filled"),
        ('name = "factor"', 'name = "x"', "one name"),
    ],
)
def test_each_fault_of_a_kernel_file_is_one_sentence(tmp_path: Path, old: str, new: str, told: str) -> None:
    text = HEAD + BODY
    assert old in text
    message = refused(write(tmp_path, text.replace(old, new, 1)))
    assert told in message
    assert "\n" not in message
    assert "scale.toml" in message or "absent.c" in message or "source" in message


def test_only_cuda_is_given_shared_memory(tmp_path: Path) -> None:
    text = 'language = "OpenCL"' + HEAD + BODY + "[launch]\nglobal = [64]\nlocal = [1]\nshared = 'TILE * 4'\n"
    assert "__local" in refused(write(tmp_path, text))
    launch = read_kernel(write(tmp_path, text.replace("OpenCL", "CUDA"))).launch
    assert launch is not None
    assert launch.shared == "TILE * 4"


def test_recorded_arrays_must_fit(tmp_path: Path) -> None:
    text = (HEAD + BODY).replace('shape = ["N", 2]', 'fill = "x.npy"\nshape = ["N", 2]', 1)
    np.save(tmp_path / "x.npy", np.ones((64, 2), np.float32))
    assert not read_kernel(write(tmp_path, text)).inputs[0].fill.varies
    for wrong in (np.ones((2, 64), np.float32), np.ones((64, 2)), np.array([{}], dtype=object)):
        np.save(tmp_path / "x.npy", wrong, allow_pickle=True)
        assert "x.npy" in refused(write(tmp_path, text))
    with_all = write(tmp_path, 'inputs = "all.npz"\n' + HEAD + BODY)
    np.savez(tmp_path / "all.npz", x=np.full((64, 2), 3, np.float32))
    [filled] = [one.fill for one in read_kernel(with_all).arguments if one.name == "x"]
    assert (decoded(filled.recorded) == 3).all()
    np.savez(tmp_path / "all.npz", z=np.ones((64, 2), np.float32))
    assert "all.npz" in refused(with_all)
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY")
    assert "no .npy file" in refused(write(tmp_path, text))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t1: t1.pop("ConfigurationSpace"), "ConfigurationSpace"),
        (lambda t1: t1["KernelSpecification"].update(Language="HIP"), "CUDA"),
        (lambda t1: t1["KernelSpecification"].pop("Arguments"), "Arguments"),
        (lambda t1: t1["KernelSpecification"]["Arguments"][0].update(MemoryType="Local"), "shape"),
        (lambda t1: t1["KernelSpecification"]["Arguments"][0].update(Size=10**12), "GB"),
        (lambda t1: t1["ConfigurationSpace"]["TuningParameters"][0].update(Values="exec('1')"), "exec"),
        (lambda t1: t1["ConfigurationSpace"]["TuningParameters"][0].update(Values="range(10**12)"), "more than"),
        (lambda t1: t1["ConfigurationSpace"]["Conditions"][0].update(Expression="TILE < 0"), "no configuration"),
    ],
)
def test_each_fault_of_a_t1_file_is_one_sentence(tmp_path: Path, change: object, told: str) -> None:
    t1 = json.loads(json.dumps(T1))
    change(t1)  # type: ignore[operator]
    message = refused(write(tmp_path, json.dumps(t1), "scale.json"))
    assert told in message
    assert "\n" not in message


def test_results_of_others_are_read_and_written(tmp_path: Path) -> None:
    results = [KernelTunerResult({"TILE": 8, "UNROLL": 1}, 2e-3), KernelTunerResult({"TILE": 16, "UNROLL": 1}, 1e-3),
               KernelTunerResult({"TILE": 32, "UNROLL": 1}, None, "runtime")]  # fmt: skip
    parameters = {"TILE": (8, 16, 32), "UNROLL": (1,)}
    for plain in (cache_of(results, parameters, "scale", "here", [64]), t4_of(results)):
        (tmp_path / "results.json").write_text(json.dumps(plain))
        found = read_results(tmp_path / "results.json")
        assert [one.latency_s for one in found] == pytest.approx([1e-3, 2e-3, None])
        assert found[0].configuration == {"TILE": 16, "UNROLL": 1}
        assert found[2].reason


@pytest.mark.parametrize("time", [float("nan"), -1.0, 0, 5e-324, True, None, float("inf"), [1]])
def test_impossible_times_are_refused(tmp_path: Path, time: object) -> None:
    plain = cache_of([KernelTunerResult({"TILE": 8}, 1e-3)], {"TILE": (8,)}, "scale", "here", [64])
    plain["cache"]["8"]["time"] = time
    (tmp_path / "cache.json").write_text(json.dumps(plain))
    with pytest.raises(ModelError, match="time"):
        read_results(tmp_path / "cache.json")


def test_other_versions_and_torn_files_are_refused(tmp_path: Path) -> None:
    whole = json.dumps(t4_of([KernelTunerResult({"TILE": 8}, 1e-3)]))
    for text in (whole[: len(whole) // 2], whole.replace("1.0.0", "9.0.0"), "[]", "{}", "[" * 100_000):
        (tmp_path / "results.json").write_text(text)
        with pytest.raises(ModelError):
            read_results(tmp_path / "results.json")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def _places(plain: object, at: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    inner = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    return [at, *(place for key, value in inner for place in _places(value, (*at, key)))]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_change_of_a_t1_file_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    t1 = json.loads(json.dumps(T1))
    place = data.draw(st.sampled_from(_places(t1)[1:]))
    inner: object = t1
    for key in place[:-1]:
        inner = inner[key]  # type: ignore[index]
    inner[place[-1]] = data.draw(_JSON)  # type: ignore[index]
    _read_or_refused(write(tmp_path, json.dumps(t1), "scale.json"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_change_of_a_kernel_file_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    text = HEAD + BODY
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 12)))
    _read_or_refused(write(tmp_path, text[:start] + data.draw(st.text(max_size=6)) + text[end:]))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kind=st.sampled_from(["cache", "t4"]))
def test_any_change_of_a_file_of_results_is_read_or_refused(tmp_path: Path, data: st.DataObject, kind: str) -> None:
    results = [
        KernelTunerResult({"TILE": 8, "UNROLL": 1}, 2e-3, compile_s=1.0),
        KernelTunerResult({"TILE": 16, "UNROLL": 2}, None, "runtime"),
    ]
    parameters = {"TILE": (8, 16), "UNROLL": (1, 2)}
    whole = cache_of(results, parameters, "scale", "here", [64]) if kind == "cache" else t4_of(results)
    plain = json.loads(json.dumps(whole))
    place = data.draw(st.sampled_from(_places(plain)[1:]))
    inner = plain
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = data.draw(_JSON)
    (tmp_path / "results.json").write_text(json.dumps(plain))
    try:
        found = read_results(tmp_path / "results.json")
    except ModelError:
        return
    assert all(one.latency_s is None or one.latency_s > 0 for one in found)
    assert all(one.latency_s is not None or one.reason for one in found)


def _read_or_refused(path: Path) -> None:
    try:
        found = read_kernel(path)
    except ModelError:
        return
    assert found.space.allows(found.space.first)
