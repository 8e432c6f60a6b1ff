"""Six networks, quantised by ONNX Runtime's own tool: how fast are they beside ONNX Runtime?

    python benchmarks/quantised.py [--directory DIR] [NAME=WAY ...]
    python benchmarks/real_models.py --directory DIR --only .q. --budget 60s --json out/quantised.jsonl

Networks of the zoo are prepared, quantised in a way (`qdq`, `qoperator` or `dynamic`), and written to `DIR/exports`,
from where the second command takes, tunes and compiles them, and prints the table. A file that is there is kept.
"""

import argparse
from pathlib import Path

from real_exports import convert

from tunery.models import prepare

NETWORKS = (
    "resnet18=qdq", "mobilenet_v2=qoperator", "squeezenet1_1=qoperator", "bert-tiny=dynamic", "bert-small=dynamic",
    "deit_tiny_patch16_224=qdq",
)  # fmt: skip


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=NETWORKS, metavar="NAME=WAY")
    parser.add_argument("--directory", type=Path, default=Path("out/quantised"))
    given = parser.parse_args()
    exports = given.directory / "exports"
    exports.mkdir(parents=True, exist_ok=True)
    for one in given.networks:
        name, _, way = one.partition("=")
        path = exports / f"{name}.q.{way}.onnx"
        if not path.exists():
            convert(Path(prepare(f"zoo:{name}", {}, given.directory / "prepared").path), way, path)
        print(path, flush=True)


if __name__ == "__main__":
    main()
