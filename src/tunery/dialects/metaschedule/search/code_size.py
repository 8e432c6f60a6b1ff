"""How much code a scheduled program unrolls to, told before it is compiled.

MetaSchedule asks for a body to be unrolled up to a number of steps, a step being one store however wide. Beside one
another such bodies become thousands of instructions, on which LLVM spends seconds; no such program has won a search
(docs/decisions/005).
"""

from typing import Any

LARGEST = 768
"""Vector stores in the text of a program above which it is not worth a build."""

WIDEST = 16
"""Float32 in the widest vector register there is."""
_SERIAL, _VECTORIZED, _UNROLLED = 0, 2, 3  # tvm.tirx.ForKind
_LIMIT = "pragma_auto_unroll_max_step"


def code_size(module: Any, lanes: int = WIDEST) -> float:
    """Return how many stores of one vector register each are in a scheduled module's text once its loops are unrolled.

    `lanes` is how many float32 a register holds.

    The rule is that of TVM's UnrollLoop pass: a serial loop without a loop left inside is unrolled if its stores stay
    within the limit that the nearest annotation around it states. Takes 0.2 ms.
    """
    return sum(_Count(lanes).visit(function.body, 0)[1] for function in module.functions.values())


class _Count:
    """Counts for registers of so many lanes."""

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes

    def visit(self, statement: Any, limit: int) -> tuple[int, float, bool]:
        """Return a statement's stores, the same counted in vector registers, and whether a loop is left in it."""
        match type(statement).__name__:
            case "For":
                return self._loop(statement, int(statement.annotations.get(_LIMIT, limit)))
            case "SBlockRealize":
                return self.visit(statement.block, limit)
            case "SBlock":
                return self._total([part for part in (statement.init, statement.body) if part is not None], limit)
            case "SeqStmt":
                return self._total(statement.seq, limit)
            case "IfThenElse":
                parts = (statement.then_case, statement.else_case)
                return self._total([part for part in parts if part is not None], limit)
            case _:
                return 1, 1.0, False

    def _total(self, statements: Any, limit: int) -> tuple[int, float, bool]:
        parts = [self.visit(statement, limit) for statement in statements]
        return sum(steps for steps, _, _ in parts), sum(size for _, size, _ in parts), any(left for _, _, left in parts)

    def _loop(self, loop: Any, limit: int) -> tuple[int, float, bool]:
        steps, size, left = self.visit(loop.body, limit)
        extent, kind = int(loop.extent), int(loop.kind)
        if extent == 1:
            return steps, size, left
        if kind == _VECTORIZED:
            return steps, size * max(1, extent / self._lanes), left
        if kind == _UNROLLED or (kind == _SERIAL and not left and steps * extent <= limit):
            return steps * extent, size * extent, left
        return steps, size, True
