"""tunery without the extra `tune`: compiled files run, a service is asked, and the rest says what is missing."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from base_install import WITHOUT, modules_of, only

from tunery._archive import new_archive
from tunery._extras import missing_part, to_install

pytestmark = pytest.mark.jobs

_COMMANDS = """
import io
from contextlib import redirect_stderr, redirect_stdout
from tunery.cli import main
found = []
for words in json.loads(sys.argv[1]):
    sys.argv[1:], said, code = words, io.StringIO(), None
    with redirect_stderr(said), redirect_stdout(io.StringIO()):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    found.append((code, said.getvalue()))
print(json.dumps(found))
"""
_REFUSAL = "\nexcept tunery.UsageError as refusal: print(refusal)"
TO_INSTALL = "pip install 'tunery[tune]'"


def python(code: str, *arguments: str) -> str:
    """Run code where nothing of the extra can be imported."""
    command = [sys.executable, "-c", WITHOUT + code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tunery(*lines: str) -> dict[str, tuple[int, str]]:
    """Run commands in one such process; return the exit code of each, and what it says on stderr."""
    found = json.loads(python(_COMMANDS, json.dumps([line.split() for line in lines])))
    return dict(zip(lines, map(tuple, found), strict=True))


def test_a_missing_package_names_the_extra_that_has_it() -> None:
    for extra in ("client", "tune", "serve"):
        for module in modules_of(extra):
            error = ModuleNotFoundError(name=module)
            assert missing_part(error) == module
            assert to_install(module) == f"pip install 'tunery[{extra}]'"


def test_a_file_runs_with_numpy_and_tvm_ffi_alone_and_commands_name_their_extra(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"a model")
    with new_archive(tmp_path / "whole.tunery") as archive:
        archive.add("network.onnx", tmp_path / "model")
        archive.finish({"dialect": "onnxruntime", "format": "onnxruntime-1", "network": "n", "threads": 1,
                        "optimised": True, "inputs": [], "outputs": []})  # fmt: skip
    code = f"{only('')}import tunery\ntry: tunery.load_compiled(sys.argv[1]){_REFUSAL}\n"
    code += "from tunery.cli import main\ntry: main()\nexcept SystemExit as end: print(end.code)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "whole.tunery")], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[0].endswith("needs onnxruntime, which is not installed: pip install onnxruntime")
    assert done.stdout.splitlines()[1] == "2", done.stderr
    assert "pip install 'tunery[client]'" in done.stderr


def test_what_needs_no_compiler_works() -> None:
    assert set(tunery("--help", "tune --help", "jobs --help", "version", "zoo list").values()) == {(0, "")}


def test_what_needs_a_compiler_says_in_a_line_how_to_get_it() -> None:
    found = tunery(
        "tune zoo:resnet18", "compile zoo:resnet18 -o x", "bench zoo:resnet18", "jobs list", "serve",
        "serve --listen 127.0.0.1:7433", "records stats", "report 0", "agent --stdio", "keys create k",
    )  # fmt: skip
    assert {code for code, _ in found.values()} == {2}
    for command, (_, said) in found.items():
        assert said.count("\n") == 1, command
        assert (TO_INSTALL.replace("tune]", "serve]") if command.startswith("serve") else TO_INSTALL) in said, command


def test_the_doctor_says_what_is_not_installed_and_that_files_run() -> None:
    checks = {
        one["name"]: one["state"]
        for one in json.loads(
            python("import sys\nsys.argv[1:] = ['doctor', '--json']\nfrom tunery.cli import main\ntry: main()\n"
                   "except SystemExit as end: assert not end.code")
        )["checks"]
    }  # fmt: skip
    assert (checks["python"], checks["compiler"], checks["runtime"]) == ("ok", "warn", "ok")
    assert checks["store"] == checks["memory"] == "warn"


def test_a_service_is_asked_without_a_compiler(tmp_path: Path) -> None:
    where = "--server http://127.0.0.1:9"
    found = tunery(f"tune zoo:a {where}", f"tune zoo:a -o {tmp_path} {where}", f"compile zoo:a -o {tmp_path} {where}")
    for command, (code, said) in found.items():
        assert code == 2
        assert "log in with `tunery login http://127.0.0.1:9`" in said, command


def test_the_chain_says_what_to_install() -> None:
    for verb in ("tune()", "within('1min').tune()"):
        said = python(f"import tunery\ntry: tunery.load('x.onnx').on().{verb}{_REFUSAL}")
        assert re.search(rf"needs \w+, which is not installed: {re.escape(TO_INSTALL)}$", said)


@pytest.mark.parametrize(
    ("how", "package"), [("sys.argv[1]", "onnxruntime"), ("sys.argv[1], trusted='key.pub'", "cryptography")]
)
def test_a_compiled_file_that_needs_more_names_it(how: str, package: str, tmp_path: Path) -> None:
    file = tmp_path / "whole.tunery"
    (tmp_path / "model").write_bytes(b"a model")
    with new_archive(file) as archive:
        archive.add("network.onnx", tmp_path / "model")
        archive.finish({"dialect": "onnxruntime", "format": "onnxruntime-1", "network": "n", "threads": 1,
                        "optimised": True, "inputs": [], "outputs": []})  # fmt: skip
    said = python(f"import tunery\ntry: tunery.load_compiled({how}){_REFUSAL}", str(file))
    assert said.endswith(f"needs {package}, which is not installed: pip install {package}\n")
