"""Compile models of special values as users do, and compare each file with the model on the inputs beside it.

    python benchmarks/values.py FOLDER [NAME-PART...] [--sample N]

FOLDER holds NAME.onnx and NAME.npz, with arrays called `SET/INPUT`, as `tests/helpers/value_models.py` writes them.
What is right is what ONNX Runtime computes of the model without its optimiser. A set on which that fails is left out.
Of integers that it rounds or saturates what onnx's reference computes is right as well; "told" are models of which the
compile or the limits say that they lose such a value, "a step" quantised ones of which a few values are a step away.
The table is printed as Markdown; the exit code is 1 if a file is wrong, or something fails for no reason that is told.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

import tunery
from tunery._errors import TuneryError
from tunery.dialects.metaschedule.importing.special import NOT_KEPT
from tunery.domain.request import CompileOptions, Request
from tunery.service.session import Session

TOLD, STEP = "told", "a step"
RIGHT, REFUSED, WRONG, FAULT, UNJUDGED = "right", "refused", "wrong", "fault", "not run by ONNX Runtime"


def sets_of(path: Path) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = defaultdict(dict)
    with np.load(path.with_suffix(".npz")) as data:
        for key in data.files:
            number, _, name = key.partition("/")
            found[int(number)][name] = data[key]
    return [found[number] for number in sorted(found)] or [{}]


def expected(path: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the sets on which ONNX Runtime runs a model, with what it computes of each."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    pairs = []
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001 - of many kinds
        return []
    names = [one.name for one in session.get_outputs()]
    for feed in sets_of(path):
        try:
            pairs.append((feed, dict(zip(names, session.run(None, feed), strict=True))))
        except Exception:  # noqa: BLE001 - it is left out
            continue
    return pairs


def difference(ours: Any, theirs: Any) -> str:
    """Say how an output differs, "" where it does not: by a thousandth of itself, or a millionth of the largest."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{ours.dtype}{list(ours.shape)} instead of {theirs.dtype}{list(theirs.shape)}"
    if theirs.dtype.kind != "f" and theirs.dtype.name != "bfloat16":
        near = ours == theirs
    else:
        left, right = ours.astype(np.float64), theirs.astype(np.float64)
        finite = np.isfinite(left) & np.isfinite(right)
        wide = theirs.dtype.itemsize > 2
        with np.errstate(all="ignore"):
            near = np.isclose(left, right, rtol=1e-3 if wide else 2e-2, atol=0, equal_nan=True)
            largest = np.abs(right[np.isfinite(right)]).max(initial=0)
            near |= finite & (np.abs(left - right) <= (1e-6 if wide else 1e-3) * largest)
    if np.all(near):
        return ""
    place = tuple(np.argwhere(~near)[0])
    return (
        f"{np.size(near) - np.count_nonzero(near)} of {np.size(near)}, as {ours[place]!r} instead of {theirs[place]!r}"
    )


def is_float(value: Any) -> bool:
    return bool(value.dtype.kind == "f")


def is_exact(path: Path, feed: dict[str, Any], name: str, ours: Any) -> bool:
    """Whether an output of integers is what integer arithmetic gives."""
    if ours.dtype.kind not in "iu":
        return False
    with np.errstate(all="ignore"), suppress(Exception):  # it does not know all operators
        evaluator = ReferenceEvaluator(str(path))
        found = dict(zip(evaluator.output_names, evaluator.run(None, feed), strict=True))[name]
        return bool(np.array_equal(found, ours))
    return False


def loses(path: Path) -> bool:
    """Whether the limits name an operator of a model, which then runs natively."""
    return any(node.op_type in NOT_KEPT for node in onnx.load(path).graph.node)


def is_step(path: Path, ours: Any, theirs: Any) -> bool:
    """Whether at most a quarter of a quantised model's values are off, and those by a step."""
    model = onnx.load(path)
    scales = {one.name: one for one in model.graph.initializer}
    used = [name for node in model.graph.node if "Quantize" in node.op_type or "QLinear" in node.op_type
            for name in node.input if name in scales and scales[name].data_type == onnx.TensorProto.FLOAT]  # fmt: skip
    steps = [float(onnx.numpy_helper.to_array(scales[name]).max()) for name in used]
    if not steps or ours.shape != theirs.shape:
        return False
    off = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
    allowed = 1.01 * max(steps) if is_float(ours) else 1.0
    return bool(off.max() <= allowed and np.count_nonzero(off > 1e-6 * allowed) <= max(1, off.size // 4))


def judged(session: Session, path: Path, folder: Path) -> tuple[str, str, bool]:
    """Return what became of a model, why, and whether no node of it runs in ONNX Runtime."""
    pairs = expected(path)
    if not pairs:
        return UNJUDGED, "", False
    try:
        report, _ = session.compile(Request(str(path), threads=1), folder / "file.tunery", CompileOptions(force=True))
        network = tunery.load_compiled(folder / "file.tunery")
        for number, (feed, wanted) in enumerate(pairs):
            found = network(*(feed[spec.name] for spec in network.inputs))
            for spec, one in zip(network.outputs, found, strict=True):
                ours, theirs = np.asarray(one), wanted[spec.name]
                if (why := difference(ours, theirs)) and not is_exact(path, feed, spec.name, ours):
                    special = any(not np.isfinite(x).all() for x in feed.values() if is_float(x))
                    lost = bool(report.not_kept) or (special and not report.elsewhere and loses(path))
                    result = TOLD if lost else STEP if is_step(path, ours, theirs) else WRONG
                    return result, f"set {number}, {spec.name}: {why}", not report.elsewhere
    except TuneryError as error:
        return REFUSED, str(error), False
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return FAULT, f"{type(error).__name__}: {error}", False
    return RIGHT, "; ".join(dict.fromkeys(report.elsewhere.values())), not report.elsewhere


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("parts", nargs="*", help="parts of names")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="every Nth model only")
    given = parser.parse_args()
    paths = [
        path
        for path in sorted(given.folder.glob("*.onnx"))
        if not given.parts or any(part in path.stem for part in given.parts)
    ][:: given.sample]
    counts, native = Counter[str](), 0
    print("| model | result | native | seconds | why |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(prefix="tunery-") as scratch, Session(f"{scratch}/values.db") as session:
        for path in paths:
            began = time.monotonic()
            result, why, alone = judged(session, path, Path(scratch))
            counts[result] += 1
            native += result == RIGHT and alone
            said = " ".join(why.split()).replace("|", "/")[:160]
            print(
                f"| {path.stem} | {result} | {'yes' if alone else ''} | {time.monotonic() - began:.1f} | {said} |",
                flush=True,
            )
    print(f"\n{', '.join(f'{count} {result}' for result, count in counts.items())}; {native} of the right ones native")
    return 1 if counts[WRONG] or counts[FAULT] else 0


if __name__ == "__main__":
    sys.exit(main())
