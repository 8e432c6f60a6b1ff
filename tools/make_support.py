"""Write support.ll, the LLVM IR that every compiled kernel has beside its own code, from support.c.

    python tools/make_support.py [--clang clang-19]

The text names no processor: TVM compiles it for each target. Its first line has the digest of its source, which a test
compares, so that whoever changes the one makes the other anew.
"""

import argparse
import hashlib
import re
import subprocess
from pathlib import Path

NATIVE = Path(__file__).parents[1] / "src/tunery/dialects/metaschedule/loading/native"
SOURCE, MADE = NATIVE / "support.c", NATIVE / "support.ll"
OPTIONS = "-std=gnu11 -O2 -fPIC -fno-stack-protector -fno-vectorize -fno-slp-vectorize -S -emit-llvm".split()
_DROPPED = re.compile(r"; ModuleID|source_filename|target |!llvm\.|!\d+ = .*(clang|wchar_size|PIC Level|uwtable|frame)")


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clang", default="clang-19")
    command = [parser.parse_args().clang, "--target=x86_64-linux-gnu", *OPTIONS, "-o", "-", str(SOURCE)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    MADE.write_text(f"; {digest()} of support.c, by tools/make_support.py\n" + portable(text))
    print(f"{MADE} ({len(text.splitlines())} lines)")


def digest() -> str:
    """Return the SHA-256 of the source."""
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()


def portable(text: str) -> str:
    """Return IR without what is of one processor."""
    lines = [line for line in text.splitlines() if line and not _DROPPED.match(line)]
    kept = "\n".join(lines) + "\n"
    kept = re.sub(r' "[\w-]+"="[^"]*"', "", kept)  # the attributes of one processor
    kept = re.sub(r", !srcloc !\d+", "", kept).replace("= { }", "= { nounwind }")
    return kept.replace("~{memory},~{dirflag},~{fpsr},~{flags}", "~{memory}")


if __name__ == "__main__":
    main()
