"""`python -m tunery.models.torch._export PROGRAM.pt2 SCRATCH [--trust]`: convert a saved torch program to ONNX. It
writes `SCRATCH/model.onnx`, and what it says last on standard error is what went wrong."""

import errno
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

from tunery._errors import ModelError
from tunery._sandbox import FILES, enter
from tunery.models.torch._archive import CodeInProgramError, copy_data

OPSET = 18
NEEDS_TRUST = 3
"""Exit code where the program cannot be loaded without running code of its author."""
DISK_FULL = 4
_PICKLE = "Weights only load failed"  # torch's words


def main(source: str, scratch: str, *, trust: bool) -> int:
    try:
        program = data_of(Path(source), Path(scratch), trust=trust)
        # Before torch reads anything, and before there are threads, which would keep their rights.
        enter([*map(Path, (sys.prefix, sys.base_prefix, *filter(None, sys.path))), program], [Path(scratch)], FILES)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        _convert(load(program, trust=trust), Path(scratch, "model.onnx"))
    except CodeInProgramError as error:
        return _tell(str(error), NEEDS_TRUST)
    except ModelError as error:
        return _tell(str(error), 1)
    except Exception as error:  # noqa: BLE001 - reported to the caller as one line
        if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return _tell(str(error), DISK_FULL)
        first: BaseException = error
        while first.__cause__:
            first = first.__cause__
        return _tell(f"{type(first).__name__}: {first}", 1)
    return 0


def data_of(source: Path, scratch: Path, *, trust: bool) -> Path:
    """Return the program as it is with `trust`, else a copy in `scratch` that is data only."""
    if trust:
        return source
    copy = scratch / "program.pt2"
    copy_data(source, copy)
    return copy


def load(program: Path, *, trust: bool) -> Any:
    """Load a program; without `trust`, of its pickles only tensors."""
    if not trust:
        os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    import torch

    try:
        return torch.export.load(program)
    except Exception as error:
        if trust or _PICKLE not in str(error):
            raise
        raise CodeInProgramError("holds a pickle of more than tensors") from None


def _convert(program: Any, target: Path) -> None:
    warnings.simplefilter("ignore")
    import torch

    exported = torch.onnx.export(program, (), dynamo=True, opset_version=OPSET, verbose=False)
    target.write_bytes(exported.model_proto.SerializeToString())


def _tell(said: str, code: int) -> int:
    sys.stderr.write("\n" + " ".join(said.split())[:300] + "\n")
    return code


def _end_with_parent() -> None:
    os.read(0, 1)  # not sys.stdin: a thread that holds its lock turns the interpreter's end into a crash
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], trust="--trust" in sys.argv[3:]))
