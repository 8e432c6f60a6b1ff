"""Building candidates to shared objects, and running them.

A candidate that rewrites a weight's layout is split: packing turns weights into their packed form once, `main` is what
runs at each call. The artifact's JSON manifest says how the arguments connect, and how weights are packed.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from tunery._errors import DialectError
from tunery.dialects._base import Array, Kernel, Place
from tunery.dialects.metaschedule import vector_math  # noqa: F401 - its rules for exp and erf
from tunery.dialects.metaschedule._tvm import relax, tvm
from tunery.dialects.metaschedule.expressions import read_body, transformed
from tunery.dialects.metaschedule.lowering import argument_specs
from tunery.dialects.metaschedule.packing import Index, pack, read_packing
from tunery.dialects.metaschedule.program import expressions, scheduled_module, tvm_target
from tunery.domain import Artifact, Candidate, Task

_ENTRY, _PREPACK = "tunery_main", "tunery_prepack"
_INDEX_TYPES = frozenset({"int32", "int64", "uint32", "uint64", "bool"})
"""Constants that may be indices: other numbers in their place would read out of bounds."""
# The compiler's own elimination of common subexpressions repeats what LLVM does (10 % of a build), and the argument
# checks of a kernel that only we call are code to compile for nothing.
_BUILD_OPTIONS = {"tirx.disable_cse_tir": True, "tirx.disable_assert": True}


@dataclass(frozen=True)
class Split:
    """A scheduled program ready to build. `prepack_inputs` are indices of the task's arguments; `packed` the shapes and
    dtypes prepacking produces; `call` names each argument of the entry: an argument index, or -1-i for packed array i;
    `packing` is, per packed array, its source argument and index expressions, empty where packing must be compiled;
    `weights` are the places in `call` of the network's constant matrices.
    """

    module: Any
    prepack_inputs: tuple[int, ...]
    packed: tuple[tuple[tuple[int, ...], str], ...]
    call: tuple[int, ...]
    packing: tuple[tuple[int, list[Index]], ...] = ()
    weights: tuple[int, ...] = ()


def split_prepack(module: Any, task: Task) -> Split:
    """Separate the weight packing from the computation, with Relax's own pass."""
    count = len(task.workload.arguments)
    function = module["main"]
    if not function.attrs or "layout_free_buffers" not in function.attrs:
        entry = function.with_attr("global_symbol", _ENTRY)
        return Split(tvm.IRModule({_ENTRY: entry}), (), (), tuple(range(count)))
    constant = {int(index) for index in function.attrs["layout_free_buffers"]}
    wrapped, inputs = _wrap(function, task)
    wrapped = relax.transform.SplitLayoutRewritePreproc()(wrapped)
    variables = {variable: index for index, variable in enumerate(inputs)}
    calls = [b for block in wrapped["main"].body.blocks for b in block.bindings if _is_call_tir(b)]
    if len(calls) == 1:
        entry = wrapped[calls[0].value.args[0]].with_attr("global_symbol", _ENTRY)
        return Split(tvm.IRModule({_ENTRY: entry}), (), (), tuple(range(count)), weights=tuple(sorted(constant)))
    prepack, main = calls
    prepack_function = wrapped[prepack.value.args[0]]
    prepack_inputs = tuple(variables[v] for v in prepack.value.args[1].fields)
    specs = argument_specs(prepack_function) or []
    packed = tuple((tuple(shape), dtype) for shape, dtype in specs[len(prepack_inputs) :])
    source = {prepack.var: 0}
    for block in wrapped["main"].body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.TupleGetItem):
                source[binding.var] = int(binding.value.index)
    call = [variables[v] if v in variables else -1 - source[v] for v in main.value.args[1].fields]
    call += range(count - task.workload.outputs, count)
    packing = _packing(prepack_function, prepack_inputs)
    functions = {_ENTRY: wrapped[main.value.args[0]].with_attr("global_symbol", _ENTRY)}
    if not packing:
        functions[_PREPACK] = prepack_function.with_attr("global_symbol", _PREPACK)
    weights = tuple(place for place, index in enumerate(call) if index < 0 or index in constant)
    return Split(tvm.IRModule(functions), prepack_inputs, packed, tuple(call), packing, weights)


def _packing(function: Any, inputs: Sequence[int]) -> tuple[tuple[int, list[Index]], ...]:
    found = read_packing(function)
    names = [parameter.name for parameter in function.params]
    outputs = names[len(inputs) :]
    if found is None or set(outputs) != set(found):
        return ()
    sources = {name: inputs[i] for i, name in enumerate(names[: len(inputs)])}
    return tuple((sources[found[name][0]], found[name][1]) for name in outputs)


def _wrap(function: Any, task: Task) -> tuple[Any, list[Any]]:
    # Not the workload's own inputs: an expression may take transformed ones.
    specs = (argument_specs(function) or [])[: len(task.workload.input_specs)]
    inputs = [relax.Var(f"a{i}", relax.TensorType(shape, dtype)) for i, (shape, dtype) in enumerate(specs)]
    results = [relax.TensorType(s.shape, s.dtype) for s in task.workload.output_specs]
    builder = relax.BlockBuilder()
    name = builder.add_func(function.without_attr("global_symbol"), "kernel")
    with builder.function("main", inputs):
        with builder.dataflow():
            out = builder.emit_output(relax.call_tir(name, inputs, results[0] if len(results) == 1 else results))
        builder.emit_func_output(out)
    return builder.get(), inputs


def _is_call_tir(binding: Any) -> bool:
    value = binding.value
    return isinstance(value, relax.Call) and value.op == tvm.ir.Op.get("relax.call_tir")


def build(task: Task, candidate: Candidate, directory: Path) -> Artifact:
    """Compile a candidate to `directory/<candidate key>-<target key>.so` with its manifest beside it.

    Raises:
        DialectError: it does not replay, or code generation or linking fails.
    """
    path = directory / f"{candidate.key}-{task.target.key}.so"
    if not path.exists() or not path.with_suffix(".json").exists():
        split = split_prepack(scheduled_module(task, candidate), task)
        manifest = {
            "prepack_inputs": split.prepack_inputs,
            "packed": split.packed,
            "call": split.call,
            "packing": split.packing,
            "weights": split.weights,
            **_expression(task, candidate),
        }
        partial = path.with_name(f"{path.stem}.{os.getpid()}")
        try:
            with tvm.transform.PassContext(opt_level=3, config=_BUILD_OPTIONS):
                library = tvm.tirx.build(split.module, target=tvm_target(task.target))
            library.write_to_file(f"{partial}.o", "o")
            link([Path(f"{partial}.o")], Path(f"{partial}.so"))
            Path(f"{partial}.json").write_text(json.dumps(manifest))
            Path(f"{partial}.json").replace(path.with_suffix(".json"))
            Path(f"{partial}.so").replace(path)
        except DialectError:
            raise
        except Exception as error:
            raise DialectError(f"code generation failed: {str(error).strip().splitlines()[-1][:200]}") from error
        finally:
            for suffix in (".o", ".so", ".json"):
                Path(f"{partial}{suffix}").unlink(missing_ok=True)
    return Artifact(candidate.key, str(path), path.stat().st_size)


def _expression(task: Task, candidate: Candidate) -> dict[str, Any]:
    known = expressions(task)
    expression = known.found[read_body(candidate.body)[0]]
    return {
        "transforms": list(expression.transforms.items()),
        "slack": expression.slack,
        "traits": {"expression": expression.name, "left_out": dict(known.left_out)},
    }


def link(sources: list[Path], destination: Path) -> None:
    """Link object files to a shared object; calling the linker directly costs a fifth of the compiler driver.

    Raises:
        DialectError: no linker is installed, or it failed.
    """
    linker = shutil.which("ld") or shutil.which("ld.lld")
    command = [linker] if linker else [shutil.which("cc") or ""]
    if not command[0]:
        raise DialectError("no linker found; install binutils (for example: apt-get install binutils)")
    done = subprocess.run(
        [*command, "-shared", "-o", destination, *sources], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise DialectError(f"linking failed: {done.stderr.strip()[-200:]}")


class TvmKernel(Kernel):
    """A built candidate in this process, with TVM arrays on the CPU."""

    def __init__(self, task: Task, artifact: Artifact) -> None:
        manifest = json.loads(Path(artifact.path).with_suffix(".json").read_text())
        self._library = tvm.runtime.load_module(artifact.path)
        self._entry = self._library[_ENTRY]
        self._prepack = self._library[_PREPACK] if manifest["packed"] and not manifest["packing"] else None
        self._manifest = manifest
        self.slack = float(manifest["slack"])
        self.traits = dict(manifest["traits"])
        self._outputs = [_empty(spec.shape, spec.dtype) for spec in task.workload.output_specs]
        self._call: list[Any] = []
        self._weights: list[tuple[int, tuple[int, ...], str]] = []
        self._place: Place | None = None

    @override
    def bind(self, inputs: Sequence[Array]) -> None:
        inputs = transformed(inputs, dict(self._manifest["transforms"]))
        arrays = [tvm.runtime.tensor(np.array(array, order="C")) for array in inputs] + self._outputs
        packed = [
            tvm.runtime.tensor(pack(inputs[source], tuple(shape), indices))
            for (shape, _), (source, indices) in zip(self._manifest["packed"], self._manifest["packing"], strict=False)
        ]
        if self._prepack is not None:
            packed = [_empty(tuple(shape), dtype) for shape, dtype in self._manifest["packed"]]
            self._prepack(*(arrays[i] for i in self._manifest["prepack_inputs"]), *packed)
        self._call = [arrays[i] if i >= 0 else packed[-1 - i] for i in self._manifest["call"]]
        weights = [(i, self._call[i]) for i in self._manifest["weights"]]
        self._weights = [(i, tuple(w.shape), str(w.dtype)) for i, w in weights if str(w.dtype) not in _INDEX_TYPES]

    @override
    def poison(self) -> None:
        for output in self._outputs:
            output.copyfrom(_poison(output.numpy()))

    @override
    def run(self) -> None:
        self._entry(*self._call)

    @override
    def rotate(self, place: Place) -> None:
        self._place = place

    @override
    def time(self, calls: int) -> float:
        entry, turns = self._entry, [self._arguments() for _ in range(calls)]
        start = time.perf_counter_ns()
        for arguments in turns:
            entry(*arguments)
        return (time.perf_counter_ns() - start) * 1e-9

    def _arguments(self) -> list[Any]:
        """Return what the next timed call takes: weights at another place each time, if they are to rotate."""
        if self._place is None:
            return self._call
        arguments = list(self._call)
        for i, shape, dtype in self._weights:
            arguments[i] = tvm.runtime.from_dlpack(self._place(shape, dtype))
        return arguments

    @override
    def outputs(self) -> list[Array]:
        return [output.numpy().copy() for output in self._outputs]


def _empty(shape: Sequence[int], dtype: str) -> Any:
    return tvm.runtime.empty(tuple(shape), dtype)


def _poison(array: Array) -> Array:
    if array.dtype.kind in "iu":
        return np.full_like(array, np.iinfo(array.dtype.name).min)
    if array.dtype.kind == "b":
        return np.logical_not(array)
    return np.full_like(array, np.nan)
