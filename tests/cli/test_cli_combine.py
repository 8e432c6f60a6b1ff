"""Files for several targets, from the command line."""

from pathlib import Path

import pytest
from cli_tools import Run

import tunery
from tunery.testing.fake_dialect import FakeDialect, fake_network


@pytest.mark.jobs
def test_a_command_compiles_for_several_targets(tmp_path: Path, run: Run) -> None:
    model = ("fake:net?tasks=2", "--dialect", "fake", "--store", str(tmp_path / "s.db"))
    place = str(tmp_path / "both.tunery")
    done = run("compile", *model, "--target", "native", "--target", "fake-fast", "-o", place, "--json")
    assert done.code == 0
    assert done.data["targets"] == ["native", "fake-fast"]
    assert [(one["target"], one["kept"]) for one in done.data["further"]] == [("fake-fast", True)]
    assert len(run("inspect", place, "--json").data["targets"]) == 2
    tunery.load_compiled(place)
    dialect = FakeDialect()
    for target in ("native", "fake-fast"):
        dialect.compile(fake_network(model[0]), dialect.resolve_target(target, 1), {}, tmp_path / target)
    files = [str(tmp_path / target) for target in ("native", "fake-fast")]
    assert run("combine", *files, "-o", place).code == 0
    assert run("combine", files[0], files[0], "-o", place).code == 2
    assert [one.name for one in tmp_path.glob("*.tunery")] == ["both.tunery"]


@pytest.mark.jobs
@pytest.mark.parametrize("wrong", ["no-such-target", "native"])
def test_all_targets_are_read_before_the_model_is(tmp_path: Path, run: Run, wrong: str) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    model = (str(tmp_path / "broken.onnx"), "--dialect", "fake", "--store", str(tmp_path / "s.db"))
    done = run("compile", *model, "--target", "native", "--target", wrong, "-o", str(tmp_path / "both.tunery"))
    assert done.code == 2
    assert wrong in done.err
    assert "broken.onnx" not in done.err
