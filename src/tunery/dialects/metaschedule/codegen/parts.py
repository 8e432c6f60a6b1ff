"""What a network's functions were given: constants transformed for their variants, and kernels compiled before.
Verification builds the very program that the network runs. Its object file holds the same code under a name of its own,
and its manifest says how the arguments connect, so neither the schedule nor the code need be made again: calls get
packed weights, the code is linked."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunery.dialects import Array, Built
from tunery.dialects.metaschedule._tvm import relax, tvm
from tunery.dialects.metaschedule.importing.rules.common import rewritten
from tunery.dialects.metaschedule.loading.preparing import Index, transformed
from tunery.dialects.metaschedule.loading.weights import Weight
from tunery.domain import Candidate

Transforms = Mapping[int, str]


def constant_everywhere(module: Any, name: str, transforms: Transforms) -> bool:
    """Whether every call of a function passes constants where its variant wants transformed ones."""
    call_tir = tvm.ir.Op.get("relax.call_tir")
    variable: list[int] = []

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call) and node.op == call_tir and node.args[0].name_hint == name:
            variable.extend(i for i in transforms if not isinstance(node.args[1].fields[i], tvm.ir.GenericConst))

    for _, function in module.functions_items():
        if transforms and isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return not variable


def transform_arguments(module: Any, transforms: Mapping[str, Transforms]) -> Any:
    if not transforms:
        return module
    return rewritten(_Arguments(module, transforms), module)


@mutator
class _Arguments(PyExprMutator):  # type: ignore[misc] # TVM has no types
    def __init__(self, module: Any, transforms: Mapping[str, Transforms]) -> None:
        kept = {name: f for name, f in module.functions_items() if name.name_hint not in transforms}
        super().__init__(tvm.IRModule(kept, module.attrs))
        self._transforms = transforms
        self._call_tir = tvm.ir.Op.get("relax.call_tir")
        # A global variable has its function's type, which is another one now.
        self._functions = {name: self.builder_.add_func(module[name], f"{name}_transformed") for name in transforms}

    def visit_call_(self, call: Any) -> Any:
        if call.op != self._call_tir or call.args[0].name_hint not in self._transforms:
            return self.visit_expr_post_order(call)
        arguments = list(call.args[1].fields)
        for index, name in self._transforms[call.args[0].name_hint].items():
            [array] = transformed([arguments[index].value.numpy()], {0: name})
            arguments[index] = relax.const(array)
        function = self._functions[call.args[0].name_hint]
        call = relax.Call(call.op, [function, relax.Tuple(arguments), *call.args[2:]], call.attrs, call.ty_args)
        return self.visit_expr_post_order(call)


@dataclass(frozen=True)
class CompiledPart:
    """A compiled kernel: where its code is, what it is called there, and how a workload's arguments become its own.
    `transforms` names transformations of arguments by index; `packing` says, per packed array, its shape, its source
    argument and its index expressions; `call` names each input of the kernel: an argument, or -1-i for packed array i;
    `left_out` says what the search that found it did without, and why."""

    path: Path
    entry: str
    transforms: Mapping[int, str]
    packing: tuple[tuple[tuple[int, ...], int, list[Index]], ...]
    call: tuple[int, ...]
    left_out: Mapping[str, str]

    @property
    def constants(self) -> dict[int, str]:
        return dict(self.transforms) | {source: "" for _, source, _ in self.packing}


def read_part(built: Built, workload_key: str, candidate: Candidate) -> CompiledPart | None:
    """Return what was kept of a candidate's build, None if it cannot be used."""
    try:
        manifest = json.loads(built.manifest)
        fits = manifest["workload"] == workload_key and built.candidate_key == candidate.key
        if not fits or not built.path.exists():
            return None
        if len(manifest["packing"]) < len(manifest["packed"]):
            return None  # its packing is code of its own
        packing = tuple(
            (tuple(shape), source, indices)
            for (shape, _), (source, indices) in zip(manifest["packed"], manifest["packing"], strict=True)
        )
        inputs = len(manifest["call"]) - manifest["outputs"]
        call, left_out = tuple(manifest["call"][:inputs]), dict(manifest["traits"]["left_out"])
        return CompiledPart(built.path, manifest["entry"], dict(manifest["transforms"]), packing, call, left_out)
    except (ValueError, KeyError, TypeError):
        return None


def usable(module: Any, name: str, part: CompiledPart) -> bool:
    """Whether every call of a function passes constants wherever the part wants other ones in their place."""
    return constant_everywhere(module, name, part.constants)


def take_over(module: Any, parts: Mapping[str, CompiledPart]) -> tuple[Any, list[Weight]]:
    """Return the module with the named functions' calls going to their parts, and the weights that its `main` takes.
    They come after its inputs, in this order; other constants stay in the module."""
    rewriter = _Calls(module, parts)
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            rewriter.builder_.update_func(name, rewriter.rewritten(name.name_hint, function))
    changed = rewriter.builder_.get()
    for name, function in module.functions_items():
        if name.name_hint in rewriter.named:
            changed.update_func(name, function.with_attr("global_symbol", name.name_hint))
    rest = relax.transform.DeadCodeElimination()(changed)
    if not any(isinstance(function, tvm.tirx.PrimFunc) for _, function in rest.functions_items()):
        rest[_ANCHOR] = _anchor()
    return rest, rewriter.weights


_ANCHOR = "tunery_anchor"
_HEAD = 64


def _anchor() -> Any:
    """Return a function that is never called: a network without code of its own would not look for any in its file."""
    te: Any = tvm.te
    source = te.placeholder((1,), name="source")
    function = te.create_prim_func([source, te.compute((1,), lambda i: source[i], name="copy")])
    return function.with_attr("global_symbol", _ANCHOR)


@mutator
class _Calls(PyExprMutator):  # type: ignore[misc] # TVM has no types
    def __init__(self, module: Any, parts: Mapping[str, CompiledPart]) -> None:
        super().__init__(module)
        self.weights: list[Weight] = []
        self._parameters: dict[tuple[int, str, str], Any] = {}
        self._arrays: dict[tuple[tuple[int, ...], str, bytes], list[Array]] = {}
        self.named: set[str] = set()
        self._main = False
        self._parts = parts
        self._call_tir = tvm.ir.Op.get("relax.call_tir")
        self._call_packed = tvm.ir.Op.get("relax.call_dps_packed")

    def rewritten(self, name: str, function: Any) -> Any:
        """Return a function with its calls going to their parts; `main` takes their weights behind its inputs."""
        self._main = name == "main"
        function = self.visit_expr(function)
        if not self._main or not self.weights:
            return function
        parameters = [*function.params, *self._parameters.values()]
        return relax.Function(parameters, function.body, function.ret_ty, function.is_pure, function.attrs)

    def visit_call_(self, call: Any) -> Any:
        if call.op != self._call_tir:
            return self.visit_expr_post_order(call)
        part = self._parts.get(call.args[0].name_hint)
        if part is None:
            return self.visit_expr_post_order(self._with_weights(call))
        arguments = relax.Tuple(self._arguments(part, list(call.args[1].fields)))
        call = relax.Call(self._call_packed, [relax.ExternFunc(part.entry), arguments], None, call.ty_args)
        return self.visit_expr_post_order(call)

    def _with_weights(self, call: Any) -> Any:
        """Return a call with parameters of `main` for its large constants: by its function's name, if there are any."""
        given = list(call.args[1].fields)
        arguments = [self._outside(one) for one in given]
        if all(one is other for one, other in zip(arguments, given, strict=True)):
            return call
        name = call.args[0].name_hint
        self.named.add(name)
        return relax.Call(self._call_packed, [relax.ExternFunc(name), relax.Tuple(arguments)], None, call.ty_args)

    def _arguments(self, part: CompiledPart, given: Sequence[Any]) -> list[Any]:
        return [self._packed(part, given, -1 - i) if i < 0 else self._as_it_is(part, given[i], i) for i in part.call]

    def _packed(self, part: CompiledPart, given: Sequence[Any], number: int) -> Any:
        shape, source, indices = part.packing[number]
        constant = given[source].value
        weight = Weight(self._array(constant), part.transforms.get(source, ""), (shape, indices))
        return self._parameter(weight) if self._apart(weight, constant) else relax.const(weight.prepared())

    def _as_it_is(self, part: CompiledPart, given: Any, index: int) -> Any:
        return self._outside(given, part.transforms.get(index, ""))

    def _outside(self, given: Any, transform: str = "") -> Any:
        """Return a parameter of `main` in place of an argument that is a large constant; others as they are."""
        if not isinstance(given, tvm.ir.GenericConst):
            return given
        weight = Weight(self._array(given.value), transform)
        if self._apart(weight, given.value):
            return self._parameter(weight)
        return relax.const(weight.prepared()) if weight.transform else given

    def _apart(self, weight: Weight, constant: Any) -> bool:
        same = str(weight.array.dtype) == str(constant.dtype)  # TVM gives NumPy some types as others
        return self._main and weight.apart and same

    def _parameter(self, weight: Weight) -> Any:
        key = (id(weight.array), weight.transform, json.dumps(weight.packing))
        if key not in self._parameters:
            # Of any type: one of a tensor's type would be compared with it by the virtual machine in each call.
            self._parameters[key] = tvm.ir.Var(f"weight{len(self.weights)}", relax.AnyType())
            self.weights.append(weight)
        return self._parameters[key]

    def _array(self, constant: Any) -> Array:
        """Return a constant's data, and for equal ones the same array: layers may share their weights."""
        try:
            array = np.from_dlpack(constant)
        except (BufferError, RuntimeError, TypeError):
            array = np.asarray(constant.numpy())
        alike = self._arrays.setdefault((array.shape, str(array.dtype), array.reshape(-1)[:_HEAD].tobytes()), [])
        for known in alike:
            if np.array_equal(known, array):
                return known
        alike.append(array)
        return array
