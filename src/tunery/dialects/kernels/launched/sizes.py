"""How many work items a kernel is launched with, under a configuration."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tunery._errors import DialectError
from tunery.dialects.configurations.expressions import ExpressionError, Value, parse
from tunery.dialects.kernels.specification import KernelSpecification

_MOST_ITEMS = 1 << 40


@dataclass(frozen=True)
class Sizes:
    """How many work items there are in all, and in a group; None where the device may choose. `shared` are the bytes of
    shared memory that a block in CUDA gets beside what its source declares."""

    whole: tuple[int, ...]
    group: tuple[int, ...] | None
    shared: int = 0


def sizes(kernel: KernelSpecification, configuration: Mapping[str, Value]) -> Sizes:
    assert kernel.launch is not None, "a kernel for a device has a launch"
    whole, group = (
        tuple(_size(text, kernel, configuration) for text in of)
        for of in (kernel.launch.global_size, kernel.launch.local_size)
    )
    if any(all_ % each for all_, each in zip(whole, group, strict=False)):
        raise DialectError(
            f"the work groups of {list(group)} do not divide the {list(whole)} work items; a restriction can say so"
        )
    if math.prod(whole) > _MOST_ITEMS:
        raise DialectError(f"the launch has {math.prod(whole)} work items, and should have at most {_MOST_ITEMS}")
    shared = kernel.launch.shared
    return Sizes(whole, group or None, _size(shared, kernel, configuration, least=0) if shared else 0)


def _size(text: str, kernel: KernelSpecification, configuration: Mapping[str, Value], *, least: int = 1) -> int:
    try:
        value = parse(text, kernel.parameters, kernel.problem)(configuration)
    except ExpressionError as error:
        raise DialectError(f"the launch's size {text!r:.60} has no value: {error}") from error
    if isinstance(value, str) or not least <= value <= _MOST_ITEMS or value != int(value):
        raise DialectError(
            f"the launch's size {text!r:.60} is {value!r:.40}, and should be a whole number from {least} to "
            f"{_MOST_ITEMS}"
        )
    return int(value)
