"""Kernels that were compiled before, taken over into a network: their calls get packed constants, their code is linked.

Verification builds the very program that the network runs. Its object file holds the same code under a name of its own,
and its manifest says how the arguments connect, so neither the schedule nor the code need be made again.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm.relax.expr_functor import PyExprMutator, mutator

from tunery.dialects._base import Array
from tunery.dialects.metaschedule._tvm import relax, tvm
from tunery.dialects.metaschedule.arguments import constant_everywhere
from tunery.dialects.metaschedule.expressions import transformed
from tunery.dialects.metaschedule.kernel import object_path
from tunery.dialects.metaschedule.packing import Index, pack
from tunery.domain import Candidate, Target


@dataclass(frozen=True)
class Part:
    """A compiled kernel: where its code is, what it is called there, and how a workload's arguments become its own.

    `transforms` names transformations of arguments by index; `packing` says, per packed array, its shape, its source
    argument and its index expressions; `call` names each input of the kernel: an argument, or -1-i for packed array i.
    """

    path: Path
    entry: str
    transforms: Mapping[int, str]
    packing: tuple[tuple[tuple[int, ...], int, list[Index]], ...]
    call: tuple[int, ...]

    @property
    def constants(self) -> dict[int, str]:
        """The arguments that must be constants, as keys."""
        return dict(self.transforms) | {source: "" for _, source, _ in self.packing}


def find_part(directory: Path | None, workload_key: str, candidate: Candidate, target: Target) -> Part | None:
    """Return what was kept of a candidate's build in a directory, None if there is nothing that can be used."""
    if directory is None:
        return None
    path = object_path(directory, candidate.key, target.key)
    try:
        manifest = json.loads(path.with_suffix(".json").read_text())
        if manifest["workload"] != workload_key or not path.exists():
            return None
        if len(manifest["packing"]) < len(manifest["packed"]):
            return None  # its packing is code of its own
        packing = tuple(
            (tuple(shape), source, indices)
            for (shape, _), (source, indices) in zip(manifest["packed"], manifest["packing"], strict=True)
        )
        inputs = len(manifest["call"]) - manifest["outputs"]
        return Part(path, manifest["entry"], dict(manifest["transforms"]), packing, tuple(manifest["call"][:inputs]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def usable(module: Any, name: str, part: Part) -> bool:
    """Whether every call of a function passes constants wherever the part wants other ones in their place."""
    return constant_everywhere(module, name, part.constants)


def take_over(module: Any, parts: Mapping[str, Part]) -> Any:
    """Return the module with the named functions' calls going to their parts."""
    if not parts:
        return module
    rewriter = _Calls(module, parts)
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            rewriter.builder_.update_func(name, rewriter.visit_expr(function))
    rest = relax.transform.DeadCodeElimination()(rewriter.builder_.get())
    if any(isinstance(function, tvm.tirx.PrimFunc) for _, function in rest.functions_items()):
        return rest
    rest[_ANCHOR] = _anchor()
    return rest


_ANCHOR = "tunery_anchor"


def _anchor() -> Any:
    """Return a function that is never called: a network without code of its own would not look for any in its file."""
    te: Any = tvm.te
    source = te.placeholder((1,), name="source")
    function = te.create_prim_func([source, te.compute((1,), lambda i: source[i], name="copy")])
    return function.with_attr("global_symbol", _ANCHOR)


@mutator
class _Calls(PyExprMutator):  # type: ignore[misc] # TVM has no types
    def __init__(self, module: Any, parts: Mapping[str, Part]) -> None:
        super().__init__(module)
        self._parts = parts
        self._call_tir = tvm.ir.Op.get("relax.call_tir")
        self._call_packed = tvm.ir.Op.get("relax.call_dps_packed")

    def visit_call_(self, call: Any) -> Any:
        if call.op != self._call_tir or call.args[0].name_hint not in self._parts:
            return self.visit_expr_post_order(call)
        part = self._parts[call.args[0].name_hint]
        arguments = relax.Tuple(_arguments(part, list(call.args[1].fields)))
        call = relax.Call(self._call_packed, [relax.ExternFunc(part.entry), arguments], None, call.ty_args)
        return self.visit_expr_post_order(call)


def _arguments(part: Part, given: Sequence[Any]) -> list[Any]:
    arrays: dict[int, Array] = {index: given[index].value.numpy() for index in part.constants}
    arrays |= {i: transformed([arrays[i]], {0: name})[0] for i, name in part.transforms.items()}
    packed = [pack(arrays[source], shape, indices) for shape, source, indices in part.packing]
    changed = {i: relax.const(arrays[i]) for i in part.transforms if i in part.call}
    return [relax.const(packed[-1 - i]) if i < 0 else changed.get(i, given[i]) for i in part.call]
