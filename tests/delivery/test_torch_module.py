"""Compiled networks in torch: as modules, as a backend of `torch.compile`, and with its tensors."""

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tunery
from tunery._errors import UsageError
from tunery.dialects.onnxruntime import OnnxRuntimeDialect
from tunery.models import prepare

torch = pytest.importorskip("torch")

import tunery.torch as subject  # noqa: E402


@pytest.fixture(scope="module", name="file")
def _file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("file")
    dialect = OnnxRuntimeDialect()
    network = prepare("zoo:mlp-mnist", {}, place)
    dialect.compile(network, dialect.resolve_target("native", 1), {}, place / "mlp.tunery")
    return place / "mlp.tunery"


def test_a_compiled_file_is_a_module(file: Path) -> None:
    module, network = subject.wrap(file), tunery.load_compiled(file)
    [spec] = network.inputs
    image = torch.linspace(-1, 1, spec.size).reshape(spec.shape)
    assert isinstance(module, torch.nn.Module)
    found = torch.nn.Sequential(module, torch.nn.Softmax(-1))(image)
    np.testing.assert_allclose(found, torch.softmax(torch.from_numpy(network(image.numpy())[0]), -1))
    assert str(spec.shape[-1]) in repr(module)
    negative = torch.complex(image, image).conj().imag  # a view whose sign no other library sees
    for wrong in (
        image[..., :-1],
        image.double(),
        image.clone().requires_grad_(),
        image.to(torch.bfloat16),
        1,
        negative,
    ):
        with pytest.raises(UsageError):
            module(wrong)
    np.testing.assert_array_equal(module(negative.resolve_neg()), module(-image))


def test_a_model_with_a_compiled_file_in_it_is_compiled(file: Path) -> None:
    model = torch.nn.Sequential(subject.wrap(file), torch.nn.Softmax(-1)).eval()
    [spec] = tunery.load_compiled(file).inputs
    image = torch.ones(spec.shape)
    with torch.no_grad():
        np.testing.assert_allclose(torch.compile(model, backend="eager")(image), model(image), rtol=1e-5)


def test_what_records_or_transforms_a_model_does_not_take_outputs_for_constants(file: Path) -> None:
    module = subject.wrap(file)
    [spec] = module.network.inputs
    image = torch.ones(spec.shape)
    for record in (
        lambda: torch.jit.trace(module, image),
        lambda: torch.fx.experimental.proxy_tensor.make_fx(module)(image),
        lambda: torch.export.export(module, (image,)),
        lambda: torch.func.functionalize(module)(image),
        lambda: torch.func.vmap(module)(image[None]),
    ):
        with pytest.raises(UsageError):
            record()
    with torch.autocast("cpu"):
        np.testing.assert_array_equal(module(image), module.network(image)[0])
    with pytest.raises(UsageError):
        module.network(image, out=[torch.empty(1, 1).expand(module.network.outputs[0].shape)])


def test_tensors_go_in_and_out_of_a_session(file: Path) -> None:
    session = tunery.InferenceSession(file)
    [given], [made] = session.get_inputs(), session.get_outputs()
    image, place = torch.ones(given.shape), torch.zeros(made.shape)
    [expected] = session.run(None, {given.name: image.numpy()})
    [found] = session.run(None, {given.name: image}, out=[place])
    np.testing.assert_array_equal(place, expected)
    assert found.ctypes.data == place.data_ptr()


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.norm = torch.nn.Linear(32, 16), torch.nn.BatchNorm1d(16)

    def forward(self, rows: Any) -> Any:
        hidden = torch.relu(self.norm(self.dense(rows)))
        return hidden, hidden.sum(1)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    with warnings.catch_warnings():  # torch's own, about Python and itself
        warnings.simplefilter("ignore")
        yield


def told(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Return what a call gives, and what tunery warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = call()
    return found, [str(one.message) for one in caught if "tunery" in str(one.message)]


@pytest.mark.tvm
def test_torch_compiles_with_tunery(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TUNERY_STORE", str(tmp_path / "s.db"))
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    net, rows = Net().eval(), torch.linspace(-1, 1, 64).reshape(2, 32)
    fast = torch.compile(net, backend="tunery")
    with torch.no_grad():
        expected = net(rows)
        found, said = told(lambda: fast(rows))
        assert not said
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
        assert "tvm" not in sys.modules
        net.dense.weight.add_(1)
        found, said = told(lambda: fast(rows))
        torch.testing.assert_close(found, net(rows))
        assert len(said) == 1


@pytest.mark.parametrize("case", ["gradient", "training", "size"])
def test_what_tunery_cannot_compile_runs_in_torch_and_is_said(case: str) -> None:
    net, rows = Net(), torch.linspace(-1, 1, 64).reshape(2, 32)
    net.train(case == "training")
    fast = torch.compile(net, backend="tunery", dynamic=case == "size")
    with torch.set_grad_enabled(case == "gradient"):
        found, said = told(lambda: fast(rows))
        assert len(said) == 1
        assert "\n" not in said[0]
        torch.testing.assert_close(found[0].shape, (2, 16))
    if case == "gradient":
        found[1].sum().backward()
        assert net.dense.weight.grad is not None


def test_a_module_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    net = Net().eval()
    model = tunery.load(net, (torch.zeros(2, 32),))
    network = prepare(model.source, model.shapes, tmp_path, trust=model.trust)
    assert (network.name, network.inputs[0].shape) == ("Net", (2, 32))
    batch = torch.export.Dim("batch", min=1, max=64)
    several = tunery.load(
        net, torch.zeros(2, 32), shapes=[{"rows:0": 1}, {"rows:0": 4}], dynamic_shapes=({0: batch},)
    )  # fmt: skip
    found = [
        prepare(several.source, shapes, tmp_path, trust=True) for shapes in (several.shapes, *several.more_shapes)
    ]  # fmt: skip
    assert [one.inputs[0].shape for one in found] == [(1, 32), (4, 32)]
    rows = torch.randn(4, 32)
    dialect = OnnxRuntimeDialect()
    dialect.compile(found[1], dialect.resolve_target("native", 1), {}, tmp_path / "net.tunery")
    ours = tunery.load_compiled(tmp_path / "net.tunery")(rows)
    with torch.no_grad():
        for one, theirs in zip(ours, net(rows), strict=True):
            np.testing.assert_allclose(one, theirs, rtol=1e-4, atol=1e-5)


def test_exported_programs_are_removed_when_they_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path))
    for number in range(3):  # 2 GiB each, on no disk
        place = tmp_path / "torch" / f"{number}"
        place.mkdir(parents=True)
        with (place / "Net.pt2").open("wb") as file:
            file.truncate(2 << 30)
        os.utime(place, (number, number))
    tunery.load(Net().eval(), (torch.zeros(2, 32),))
    kept = {one.name for one in (tmp_path / "torch").iterdir()}
    assert "2" in kept
    assert len(kept) == 2


class Branching(torch.nn.Module):  # type: ignore[misc]
    def forward(self, rows: Any) -> Any:
        return rows + 1 if rows.sum() > 0 else rows


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Net().train(), (torch.zeros(2, 32),)), (Net().eval(), ()), (Net().eval(), None), (Net().eval(), (1, 2, 3)),
        (Branching().eval(), (torch.zeros(2),)), (7, (torch.zeros(2),)), (torch.zeros(2), (torch.zeros(2),)),
    ],
)  # fmt: skip
def test_what_is_no_model_of_torch_is_refused_in_one_sentence(
    model: object, inputs: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UsageError) as caught:
        tunery.load(model, inputs)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("*.pt2"))
