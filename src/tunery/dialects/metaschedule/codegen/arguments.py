"""Constants of a network, transformed for the variants that its functions were given."""

from collections.abc import Mapping
from typing import Any

from tvm.relax.expr_functor import PyExprMutator, mutator

from tunery.dialects.metaschedule._tvm import relax, tvm
from tunery.dialects.metaschedule.loading.preparing import transformed

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
    rewriter = _Arguments(module, transforms)
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            rewriter.builder_.update_func(name, rewriter.visit_expr(function))
    return rewriter.builder_.get()


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
