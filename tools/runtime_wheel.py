"""Write the wheel of tunery that runs compiled files by itself: with TVM's runtime library, and without its compiler.

    python tools/runtime_wheel.py -o dist [--platform manylinux_2_28_aarch64]

TVM's wheel has 300 MB, of which a compiled file needs one library of 3 MB. Its licence (Apache-2.0) allows to hand that
on with the licence and the notice, which go with it.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACE = "tunery/dialects/metaschedule/loading/lib"
MEMBERS = {"tvm/lib/libtvm_runtime.so": "libtvm_runtime.so", "tvm/NOTICE": "NOTICE.apache-tvm"}
LICENCE = re.compile(r"apache_tvm-[^/]*\.dist-info/licenses/LICENSE")


def main() -> None:
    """Build the wheel and say where it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("dist"))
    parser.add_argument("--platform", default="", help="that of another machine, as TVM's wheel has it in its name")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        made = build(Path(scratch), arguments.platform)
        target = arguments.output / made.name
        target.write_bytes(made.read_bytes())
    print(f"{target} ({target.stat().st_size / 1e6:.1f} MB)")


def build(scratch: Path, platform: str) -> Path:
    """Return the wheel, in `scratch`: tunery's own, unpacked, with the library, and packed for one platform."""
    pinned = pin("apache-tvm")
    source = scratch / "source"  # apart from what an earlier build has left in the checkout
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "src"):
        (source / name).symlink_to(ROOT / name)
    pip("wheel", "--no-deps", "--wheel-dir", str(scratch / "pure"), str(source))
    other = ["--platform", platform, "--only-binary", ":all:"] if platform else []
    pip("download", "--no-deps", "--dest", str(scratch), *other, f"apache-tvm=={pinned}")
    [pure], [compiler] = (scratch / "pure").glob("tunery-*.whl"), scratch.glob("apache_tvm-*.whl")
    wheel("unpack", str(pure), "--dest", str(scratch))
    [unpacked] = (path for path in scratch.glob("tunery-*") if path.is_dir())
    add_library(compiler, unpacked / PLACE, pinned)
    described = next(unpacked.glob("*.dist-info/WHEEL"))
    tags = compiler.stem.rpartition("-")[2].split(".")
    lines = [line for line in described.read_text().splitlines() if line and not line.startswith(("Root-Is", "Tag:"))]
    lines += ["Root-Is-Purelib: false", *(f"Tag: py3-none-{tag}" for tag in tags)]
    described.write_text("\n".join(lines) + "\n")
    wheel("pack", str(unpacked), "--dest-dir", str(scratch))
    return next(scratch.glob("tunery-*.whl"))


def add_library(compiler: Path, place: Path, version: str) -> None:
    """Put the library of TVM's wheel, its licence, its notice and its version into a directory."""
    place.mkdir()
    with zipfile.ZipFile(compiler) as archive:
        [licence] = (name for name in archive.namelist() if LICENCE.fullmatch(name))
        for member, name in {**MEMBERS, licence: "LICENSE.apache-tvm"}.items():
            (place / name).write_bytes(archive.read(member))
    (place / "VERSION").write_text(version + "\n")


def pin(name: str) -> str:
    """Return the version of a package that pyproject.toml pins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return next(line.partition("==")[2] for line in project["optional-dependencies"]["tune"] if line.startswith(name))


def pip(*words: str) -> None:
    """Run pip."""
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words], check=True)


def wheel(*words: str) -> None:
    """Run the program that takes wheels apart and together."""
    subprocess.run([sys.executable, "-m", "wheel", *words], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
