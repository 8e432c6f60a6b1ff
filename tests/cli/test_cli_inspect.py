"""What a compiled file says of itself, and that hostile files say nothing worse than a sentence."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from cli_tools import Run

from tunery.delivery.files.inspection import inspect
from tunery.delivery.files.signing import create_key, read_key, sign
from tunery.dialects.onnxruntime import OnnxRuntimeDialect
from tunery.domain.request import Request
from tunery.models import prepare
from tunery.service.session import compile_model


@pytest.fixture(scope="module", name="file")
def _file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("file")
    dialect = OnnxRuntimeDialect()
    dialect.compile(prepare("zoo:mlp-mnist", {}, place), dialect.resolve_target("native", 2), {}, place / "a.tunery")
    return place / "a.tunery"


def lying(file: Path, path: Path, **lie: Any) -> Path:
    """Write a copy of a file without its members, of which the manifest says something else."""
    with zipfile.ZipFile(file) as given, zipfile.ZipFile(path, "w") as made:
        manifest = json.loads(given.read("manifest.json"))
        manifest["members"] = lie.pop("members", manifest["members"])
        facts = {**manifest["parts"][0], **lie}
        manifest["parts"] = [{k: v for k, v in facts.items() if v is not None}]
        made.writestr("manifest.json", json.dumps(manifest))
    return path


def test_a_file_says_what_it_takes_and_gives(file: Path, run: Run) -> None:
    found = inspect(file)
    assert found.size_bytes == file.stat().st_size
    assert (found.file.network, found.file.threads) == ("mlp-mnist", 2)
    assert sum(found.members.values()) < found.size_bytes
    answer = run("inspect", str(file), "--json")
    assert answer.code == 0
    assert [set(one) for one in answer.data["inputs"]] == [{"name", "shape", "dtype"}]
    shown = run("inspect", str(file)).out
    assert "mlp-mnist" in shown
    assert f"{answer.data['inputs'][0]['dtype']}{answer.data['inputs'][0]['shape']}" in shown


def test_damage_is_told(file: Path, tmp_path: Path, run: Run) -> None:
    assert not inspect(file).damaged
    [*members] = inspect(file).members
    with zipfile.ZipFile(file) as archive:
        place = archive.getinfo(members[0]).header_offset + 5000  # behind the padding
    damaged, data = tmp_path / "damaged.tunery", bytearray(file.read_bytes())
    data[place] ^= 1
    damaged.write_bytes(data)
    assert inspect(damaged).damaged == members[:1]
    assert [run("inspect", str(damaged), *json).code for json in ((), ("--json",))] == [1, 1]
    short, model = tmp_path / "short.tunery", tmp_path / "model.onnx"
    for path in (short, model):
        path.write_bytes(file.read_bytes()[:-100])
        assert run("inspect", str(path)).code == 2
    assert str(model) not in run("inspect", str(model)).err.partition("`")[2], "it would be lost"


@pytest.mark.jobs
def test_a_file_says_where_it_comes_from(tmp_path: Path, run: Run) -> None:
    request = Request("fake:net?tasks=2", dialect="fake", store=str(tmp_path / "s.db"))
    report, _ = compile_model(request, tmp_path / "net.tunery")
    origin = inspect(tmp_path / "net.tunery").file.origin
    assert origin is not None
    assert sum(origin.rungs.values()) == len(report.coverage)
    assert origin.device.name in run("inspect", str(tmp_path / "net.tunery")).out


def test_a_signature_is_told_and_checked(file: Path, tmp_path: Path, run: Run) -> None:
    assert inspect(file).signature == "none"
    mine, other = create_key(tmp_path / "mine"), create_key(tmp_path / "other")
    signed = tmp_path / "signed.tunery"
    signed.write_bytes(file.read_bytes())
    sign(signed, read_key(tmp_path / "mine"))
    assert inspect(signed).signature == "unchecked"
    assert inspect(signed, mine).signature == "trusted"
    assert run("inspect", str(signed), "--trusted", str(mine)).code == 0
    assert run("inspect", str(signed), "--trusted", str(other)).code == 2
    assert run("inspect", str(file), "--trusted", str(mine)).code == 2


LIES: list[dict[str, Any]] = [
    {"inputs": [["x", "many", "float32"]]}, {"inputs": [["x"]]}, {"threads": -1}, {"threads": 1.5}, {"dialect": 3},
    {"dialect": None}, {"network": "n" * 10_000}, {"inputs": [["x", [1], "float32"]] * 10_000}, {"segments": [-1]},
    {"segments": 10**30}, {"origin": {}}, {"origin": []}, {"target": []}, {"versions": {"a": 1}}, {"coverage": [1]},
    {"inputs": [["x", [1] * 1000, "float32"]]},
]  # fmt: skip


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: next(iter(lie)))
def test_a_file_that_talks_nonsense_is_refused_in_one_sentence(
    lie: dict[str, Any], file: Path, tmp_path: Path, run: Run
) -> None:
    answer = run("inspect", str(lying(file, tmp_path / "liar.tunery", **lie)))
    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1
    assert len(answer.err) < 1000


@pytest.mark.parametrize("content", [b"", b"PK", b"\x7fELF", None])
def test_what_is_no_compiled_network_is_refused(content: bytes | None, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "odd"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    for odd in (path, tmp_path / "missing"):
        answer = run("inspect", str(odd))
        assert (answer.code, len(answer.err.splitlines())) == (2, 1)


def test_names_do_not_command_the_terminal(file: Path, tmp_path: Path, run: Run) -> None:
    shown = run("inspect", str(lying(file, tmp_path / "odd.tunery", network="\x1b[2Jnet\r\u202e")))
    assert shown.code == 0
    assert not {"\x1b", "\r", "\u202e"} & set(shown.out)
