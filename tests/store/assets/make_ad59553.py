"""Wrote `ad59553.sql.gz` and `../../delivery/assets/ad59553*.tunery` with the code of commit ad59553.

    git worktree add --detach OLD ad59553
    PYTHONPATH=OLD/src python tests/store/assets/make_ad59553.py

The store holds a stopped job of the fake dialect and a finished one of the compiler, each with its records, as that
version measured them; `@DEVICE@` stands for the fingerprint of the machine, `/gone` for what the cache held.
"""

import gzip
import os
import sqlite3
import tempfile
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import onnx.helper

ASSETS = Path(__file__).parent
FAKE = "fake:old?tasks=2&ops=matmul,elementwise"
TARGET = '{"kind": "llvm", "mcpu": "x86-64"}'  # runs on every x86-64


def main(directory: Path) -> None:
    os.environ |= {"TUNERY_CACHE": str(directory / "cache"), "TUNERY_LOAD_WATCH": "off"}
    from tunery.jobs import Request, compile_model, tune

    from tunery.domain import Budget

    store = directory / "store.db"
    stop = threading.Event()

    def enough(progress: object) -> None:
        if progress.trials >= 8:
            stop.set()

    common = {"threads": 1, "store": str(store), "budget": Budget.parse("16trials")}
    tune(Request(FAKE, dialect="fake", **common), enough, stop)
    os.chdir(directory)
    model(Path("scale.onnx"))
    tune(Request("zoo:mlp-mnist", target=TARGET, **common | {"budget": Budget.parse("4trials")}))
    files = ASSETS.parents[1] / "delivery" / "assets"
    alone = {"threads": 1, "store": str(directory / "empty.db")}
    compile_model(Request("scale.onnx", target=TARGET, **alone), files / "ad59553.tunery")
    compile_model(Request("fake:old?tasks=1&ops=matmul", dialect="fake", **alone), files / "ad59553-fake.tunery")
    with closing(sqlite3.connect(store)) as connection, connection:
        text = "\n".join(connection.iterdump()) + "\n"
        [[device]] = connection.execute("SELECT DISTINCT device FROM records")
    connection.close()
    text = text.replace(device, "@DEVICE@").replace(str(directory / "cache"), "/gone")
    (ASSETS / "ad59553.sql.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def model(path: Path) -> None:
    """Write a network that gives 16 times each row's sum, in every column."""
    value = onnx.helper.make_tensor_value_info
    weights = onnx.numpy_helper.from_array(np.full((16, 16), 16.0, np.float32), "w")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [value("x", onnx.TensorProto.FLOAT, (4, 16))], [value("y", onnx.TensorProto.FLOAT, (4, 16))], [weights],
    )  # fmt: skip
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
