"""A compiled file behind the interface of ONNX Runtime's sessions."""

import json
import pickle
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest

import tunery
from tunery._errors import UsageError
from tunery.dialects.onnxruntime import OnnxRuntimeDialect
from tunery.models import prepare


@pytest.fixture(scope="module", name="files")
def _files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A network's prepared ONNX file, and it compiled."""
    place = tmp_path_factory.mktemp("files")
    network = prepare("zoo:mlp-mnist", {}, place)
    dialect = OnnxRuntimeDialect()
    dialect.compile(network, dialect.resolve_target("native", 1), {}, place / "mlp.tunery")
    return Path(network.path), place / "mlp.tunery"


def test_it_answers_as_onnx_runtime_does(files: tuple[Path, Path]) -> None:
    theirs = onnxruntime.InferenceSession(str(files[0]), providers=["CPUExecutionProvider"])
    ours = tunery.InferenceSession(
        path_or_bytes=files[1], sess_options=None, providers=["CPUExecutionProvider"], provider_options=[{}]
    )
    for mine, other in ((ours.get_inputs(), theirs.get_inputs()), (ours.get_outputs(), theirs.get_outputs())):
        assert [(one.name, one.type, one.shape) for one in mine] == [(one.name, one.type, one.shape) for one in other]
    assert ours.get_providers() == theirs.get_providers()
    [given] = ours.get_inputs()
    feed = {given.name: np.ones(given.shape, np.float32)}
    [expected] = theirs.run(None, feed)
    for names in (None, [ours.get_outputs()[0].name]):
        [found] = ours.run(names, feed)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_what_only_onnx_runtime_has_is_missing_as_python_says_it(files: tuple[Path, Path]) -> None:
    session = tunery.InferenceSession(files[1])
    assert not hasattr(session, "get_modelmeta")
    with pytest.raises(AttributeError, match="out"):
        session.io_binding()


def test_the_number_of_threads_is_the_options(files: tuple[Path, Path]) -> None:
    options = SimpleNamespace(intra_op_num_threads=2)
    assert tunery.InferenceSession(files[1], options)._network.threads == 2


def test_what_does_not_fit_is_said(files: tuple[Path, Path]) -> None:
    session = tunery.InferenceSession(files[1])
    [given] = session.get_inputs()
    image = np.ones(given.shape, np.float32)
    for names, feed in (
        (None, {}),
        (None, [image]),
        (None, None),
        (None, {1: image, "other": image}),
        (None, {given.name: [[1.0], [2.0, 3.0]]}),
        (given.name, {given.name: image}),
        (5, {given.name: image}),
        ([["none"]], {given.name: image}),
        (None, {given.name: image, "other": image}),
        (None, {given.name: image.astype(np.float64)}),
        (None, {given.name: image[..., :-1]}),
        (["none"], {given.name: image}),
    ):
        with pytest.raises(UsageError):
            session.run(names, feed)
    [made] = session.get_outputs()
    for out in (5, [], [None], [image], [np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), made.shape, (0, 0))]):
        with pytest.raises(UsageError):
            session.run(None, {given.name: image}, out=out)
    with pytest.raises(UsageError):
        pickle.dumps(session)


@pytest.mark.parametrize("path", [None, 3, b"a", "", "a\0b", "a" * 5000, "/dev/zero"])
def test_what_is_no_path_of_a_file_is_said(path: object) -> None:
    for read in (tunery.load_compiled, tunery.InferenceSession):
        with pytest.raises(UsageError) as caught:
            read(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("threads", ["many", -3, 5000, 1.5])
def test_what_is_no_number_of_threads_is_said(threads: object, files: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError):
        tunery.InferenceSession(files[1], SimpleNamespace(intra_op_num_threads=threads))
    with pytest.raises(UsageError):
        tunery.load_compiled(files[1], threads)


@pytest.mark.parametrize(
    "change", [{"threads": 10**7}, {"threads": -1}, {"threads": "x"}, {"inputs": None}, {"format": "z"}]
)
def test_a_file_that_lies_is_refused(change: dict[str, object], files: tuple[Path, Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(files[1]) as given, zipfile.ZipFile(tmp_path / "lie.tunery", "w") as made:
        for name in given.namelist():
            data = given.read(name)
            if name == "manifest.json":
                manifest = json.loads(data)
                data = json.dumps({**manifest, "parts": [{**manifest["parts"][0], **change}]}).encode()
            made.writestr(name, data)
    with pytest.raises(UsageError):
        tunery.load_compiled(tmp_path / "lie.tunery")
