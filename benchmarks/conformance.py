"""Compile ONNX's own operator tests, run each on its inputs, and compare with what the test says.

    python benchmarks/conformance.py [--only NAME-PART] [--sample N] [-o FILE]

Of the cases that come with the package `onnx` those are taken that this ONNX Runtime runs rightly. Each is prepared,
lowered and compiled as `tunery compile --effort records` does without a record, in a process that serves many cases and
is started anew when a case ends it. `native` is the share of cases of which ONNX Runtime runs no node. Many cases have
as inputs what models have as constants (axes, shapes, sizes): one that is refused, or not native, is tried again with
its inputs of at most one dimension and eight values as constants, but for the first of several. The table by operator
is printed from the JSON that `-o` writes. Each refusal has to say which limit of `docs/limits.md` it is for.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

RIGHT, REFUSED, WRONG, FAULT = _RESULTS = ("right", "refused", "wrong", "fault")
LIMITS = ("of text", "no tensor", "a dimension of 0", "number of dimensions depends on the data")
"""What `docs/limits.md` says is refused."""
_SAID = ("holds text", "is no tensor", "a dimension of 0", "the number of dimensions of output")
"""And how a refusal says so."""
_LIMIT_S = 60.0
_SMALL = 8
_RELEASED, _RELEASED_FORMAT = 25, 13  # of operators and of files, which this ONNX Runtime knows


@dataclass(frozen=True)
class Case:
    """One test: a model, and what it gives for some inputs."""

    name: str
    operator: str
    model: bytes
    inputs: list[Any]
    outputs: list[Any]


@dataclass(frozen=True)
class Verdict:
    """What became of a case; `why` is the refusal or the difference in one line.

    `native` says that TVM runs it, and no node of it ONNX Runtime.
    """

    name: str
    operator: str
    result: str
    why: str = ""
    native: bool = False


def collected(only: Sequence[str] = (), part: str = "") -> Iterator[Case]:
    """Yield the cases of the package `onnx` that this ONNX Runtime runs and gets right.

    `only` are the names of some, `part` is in the name of each.
    """
    from onnx.backend.test.case.node import collect_testcases

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    for case in cases:
        if (only and case.name not in only) or part not in case.name or case.model is None or not case.data_sets:
            continue
        inputs, outputs = ([_array(one) for one in each] for each in case.data_sets[0])
        if any(one is None for one in (*inputs, *outputs)):
            continue  # sequences, optional values
        found = None
        for older in (False, True):
            if older:  # most cases of a version that is not out yet hold for the latest one that is
                _make_older(case.model)
            data = case.model.SerializeToString()
            try:
                session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
                found = session.run(None, {one.name: x for one, x in zip(session.get_inputs(), inputs, strict=True)})
                break
            except Exception:  # noqa: BLE001 - what it does not run is not asked of us
                continue
        if found and all(_differs(left, right) is None for left, right in zip(found, outputs, strict=True)):
            yield Case(case.name, _operator(case), data, inputs, outputs)


def _array(value: Any) -> Any:
    """Return a case's value as an array, None where it is none."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.ndarray | np.generic) else None


def _make_older(model: onnx.ModelProto) -> None:
    model.ir_version = min(model.ir_version, _RELEASED_FORMAT)
    for entry in model.opset_import:
        entry.version = min(entry.version, _RELEASED)


def _operator(case: Any) -> str:
    kinds = [node.op_type for node in case.model.graph.node if node.op_type != "Constant"]
    return kinds[0] if len(set(kinds)) == 1 else "(a graph)"


def _differs(found: Any, wanted: Any) -> str | None:
    """Say how an output differs from the one wanted, None where it does not."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    if found.shape != wanted.shape:
        return f"shape {found.shape} for {wanted.shape}"
    if found.dtype != wanted.dtype:
        return f"{found.dtype} for {wanted.dtype}"
    if wanted.dtype.kind in "fc":
        tolerance = 2e-2 if wanted.dtype.itemsize < 4 else 1e-3
        near = np.isclose(found, wanted, rtol=tolerance, atol=tolerance / 100, equal_nan=True)
    else:
        near = found == wanted
    return None if np.all(near) else f"{np.size(near) - np.count_nonzero(near)} of {np.size(near)} values differ"


def judge(case: Case, folder: Path) -> Verdict:
    """Compile a case and run it, where it is refused or runs in ONNX Runtime with its parameters as constants."""
    verdict = _judge(case, folder)
    if (verdict.result == REFUSED or (verdict.result == RIGHT and not verdict.native)) and (
        constant := with_constants(case)
    ):
        again = _judge(constant, folder)
        if verdict.result == RIGHT and again.result == REFUSED:
            return verdict
        return again if again.result == RIGHT else replace(again, why=f"{again.why} (as inputs: {verdict.why})"[:500])
    return verdict


def with_constants(case: Case) -> Case | None:
    """Return the case with its small inputs as constants, None where none is; the first of several stays an input."""
    model = onnx.load_from_string(case.model)
    pairs = list(zip(model.graph.input, case.inputs, strict=True))
    small = [one.name for one, x in pairs if x.ndim <= 1 and x.size <= _SMALL and x.dtype.kind in "iuf"]
    if len(small) == len(pairs) > 1:
        small.remove(pairs[0][0].name)
    if not small:
        return None
    model.graph.initializer.extend(numpy_helper.from_array(x, one.name) for one, x in pairs if one.name in small)
    kept = [(one, x) for one, x in pairs if one.name not in small]
    del model.graph.input[:]
    model.graph.input.extend(one for one, _ in kept)
    return replace(case, model=model.SerializeToString(), inputs=[x for _, x in kept])


def _judge(case: Case, folder: Path) -> Verdict:
    from tunery._errors import TuneryError
    from tunery.delivery.files.loading import load_compiled
    from tunery.dialects.metaschedule import MetaScheduleDialect
    from tunery.models import prepare

    dialect = MetaScheduleDialect()
    path = folder / f"{case.name}.onnx"
    path.write_bytes(case.model)
    result, why, native = RIGHT, "", False
    try:
        network = prepare(str(path), {}, folder)
        made = dialect.compile(network, dialect.resolve_target("native", 1), {}, folder / "compiled.tunery")
        native, why = not made.elsewhere, "; ".join(dict.fromkeys(made.elsewhere.values()))
        compiled = load_compiled(folder / "compiled.tunery", 1)
        names = [one.name for one in onnx.load_from_string(case.model).graph.input]
        by_name = dict(zip(names, case.inputs, strict=True))
        found = compiled(*(by_name[one.name] for one in compiled.inputs))
        differences = [_differs(left, right) for left, right in zip(found, case.outputs, strict=True)]
        if any(differences):
            result, why = WRONG, next(filter(None, differences))
    except TuneryError as error:
        result, why = REFUSED, str(error)
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        result, why = FAULT, f"{type(error).__name__}: {error} ({traceback.extract_tb(error.__traceback__)[-1].name})"
    finally:
        for left in folder.iterdir():
            left.unlink(missing_ok=True)
    return Verdict(case.name, case.operator, result, " ".join(why.split())[:300], native)


def _serve(tasks: Any, answers: Any) -> None:
    with tempfile.TemporaryDirectory(prefix="tunery-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while (case := tasks.get()) is not None:
            answers.put(judge(case, Path(folder)))


def judged(cases: Sequence[Case]) -> Iterator[Verdict]:
    """Yield a verdict for each case; one that ends or hangs the process is a fault."""
    context = multiprocessing.get_context("spawn")
    process = None
    for case in cases:
        if process is None or not process.is_alive():
            tasks, answers = context.Queue(), context.Queue()
            process = context.Process(target=_serve, args=(tasks, answers), daemon=True)
            process.start()
        tasks.put(case)
        for _ in range(int(_LIMIT_S * 4)):
            try:
                yield answers.get(timeout=0.25)
                break
            except Exception:  # noqa: BLE001 - nothing yet
                if not process.is_alive():
                    yield Verdict(case.name, case.operator, FAULT, f"the process ended ({process.exitcode})")
                    break
        else:
            process.kill()
            process.join()
            yield Verdict(case.name, case.operator, FAULT, f"no answer in {_LIMIT_S:.0f} s")
    if process is not None and process.is_alive():
        tasks.put(None)
        process.join(10)


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the table by operator, those with the most cases that are not right first."""
    by_operator: defaultdict[str, list[Verdict]] = defaultdict(list)
    for one in verdicts:
        by_operator[one.operator].append(one)
    lines = ["| operator | right | refused | wrong | fault | native |", "| --- | --- | --- | --- | --- | --- |"]
    order = sorted(by_operator.items(), key=lambda item: (-sum(one.result != RIGHT for one in item[1]), item[0]))
    for operator, its in [*order, ("**all**", list(verdicts))]:
        counts = Counter(one.result for one in its)
        cells = [str(counts[kind] or "") for kind in _RESULTS]
        lines.append(f"| {operator} | {' | '.join(cells)} | {native_share(its):.0%} |")
    return "\n".join(lines)


def native_share(verdicts: Sequence[Verdict]) -> float:
    """Return how many of the right cases TVM runs wholly, as the mean over operators of the share of each."""
    by_operator: defaultdict[str, list[bool]] = defaultdict(list)
    for one in verdicts:
        if one.result == RIGHT:
            by_operator[one.operator].append(one.native)
    return mean(mean(each) for each in by_operator.values()) if by_operator else 0.0


def limits_of(verdicts: Sequence[Verdict]) -> dict[str, list[str]]:
    """Return the refused cases by the limit that their refusals name, "" where that is none."""
    found: dict[str, list[str]] = {}
    for one in verdicts:
        if one.result == REFUSED:
            said = zip(LIMITS, _SAID, strict=True)
            found.setdefault(next((limit for limit, words in said if words in one.why), ""), []).append(one.name)
    return found


def foreign_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """Say why right cases run in ONNX Runtime, the reason of most first, with the operators."""
    operators: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for one in verdicts:
        if one.result == RIGHT and not one.native:
            operators[one.why][one.operator] += 1
    order = sorted(operators.items(), key=lambda item: -item[1].total())
    return [f"{found.total():4} {why}: {', '.join(name for name, _ in found.most_common(12))}" for why, found in order]


def main() -> int:
    """Run the command; 1 if a case is wrong, a fault, or refused for no limit that is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--sample", type=int, default=1, help="every N-th case")
    parser.add_argument("-o", "--output", type=Path, help="write the verdicts as JSON")
    given = parser.parse_args()
    cases = list(collected(part=given.only))[:: given.sample]
    verdicts = []
    for one in judged(cases):
        verdicts.append(one)
        if one.result != RIGHT:
            print(f"{one.result:8} {one.name}: {one.why}", file=sys.stderr, flush=True)
    if given.output:
        given.output.write_text(json.dumps([asdict(one) for one in verdicts], indent=1))
    print(table(verdicts))
    print("in ONNX Runtime, for these reasons:", *foreign_lines(verdicts), sep="\n")
    refused = limits_of(verdicts)
    for limit, names in refused.items():
        print(f"{len(names):4} refused: {limit or f'no known limit ({names[0]})'}")
    return int("" in refused or any(one.result in {WRONG, FAULT} for one in verdicts))


if __name__ == "__main__":
    sys.exit(main())
