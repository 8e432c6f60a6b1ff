"""`python -m tunery.models.torch._export PROGRAM.pt2 MODEL.onnx`: the one place that imports torch.

Loading a `.pt2` file trusts its author as far as torch's own loader does.
"""

import os
import sys
import threading
import warnings
from pathlib import Path

OPSET = 18


def main(source: str, target: str) -> int:
    """Convert a saved ExportedProgram; the last line on standard error says what went wrong, if anything did."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    warnings.simplefilter("ignore")
    import torch

    try:
        program = torch.export.load(source)
        exported = torch.onnx.export(program, (), dynamo=True, opset_version=OPSET, verbose=False)
        temporary = Path(f"{target}.{os.getpid()}.tmp")
        temporary.write_bytes(exported.model_proto.SerializeToString())
        temporary.replace(target)
    except Exception as error:  # noqa: BLE001 - reported to the caller as one line
        sys.stderr.write("\n" + " ".join(f"{type(error).__name__}: {error}".split())[:300] + "\n")
        return 1
    return 0


def _end_with_parent() -> None:
    """End when standard input closes: the process that started this one is gone."""
    os.read(0, 1)  # not sys.stdin: a thread that holds its lock turns the interpreter's end into a crash
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
