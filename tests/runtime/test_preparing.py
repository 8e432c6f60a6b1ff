"""Prepared networks are blobs: found again, made again where they are damaged, and gone when they were for once."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tunery.blobs import Blobs, DirectoryBlobs
from tunery.models import _prepare
from tunery.runtime.services.importer import Preparer
from tunery.testing.fake_blobs import FakeBlobs


@pytest.fixture(params=[FakeBlobs, DirectoryBlobs])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    return FakeBlobs() if request.param is FakeBlobs else DirectoryBlobs(tmp_path / "blobs")


@pytest.fixture
def source(tmp_path: Path) -> str:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "n.onnx")
    return str(tmp_path / "n.onnx")


def test_a_prepared_network_is_a_blob_and_names_no_path(blobs: Blobs, source: str) -> None:
    network = Preparer(blobs).load(source, {})
    assert network.path == ""
    assert network.digest == Preparer(blobs).identify(source, {})
    onnx.checker.check_model(str(blobs.get(network.blob, verify=True)))


def test_a_network_is_prepared_once_and_again_if_its_blob_is_damaged(
    blobs: Blobs, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Preparer(blobs).load(source, {})
    with monkeypatch.context() as patched:
        patched.setattr(_prepare, "simplify", lambda *_: pytest.fail("it was prepared before"))
        assert Preparer(blobs).load(source, {}) == first
    path = blobs.get(first.blob)
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-20])
    assert Preparer(blobs).load(source, {}) == first
    onnx.checker.check_model(str(blobs.get(first.blob, verify=True)))


def test_a_network_for_once_goes_with_its_release_unless_it_was_kept(blobs: Blobs, source: str) -> None:
    once = Preparer(blobs).load(source, {}, temporary=True)
    blobs.release(once.blob)
    assert not blobs.has(once.blob)
    kept = Preparer(blobs).load(source, {})
    assert kept == once
    assert Preparer(blobs).load(source, {}, temporary=True) == once
    blobs.release(once.blob)
    assert blobs.has(once.blob)
