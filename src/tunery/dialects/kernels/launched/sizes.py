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
    """How many work items there are in all, and in a group; None where the device may choose."""

    whole: tuple[int, ...]
    group: tuple[int, ...] | None


def sizes(kernel: KernelSpecification, configuration: Mapping[str, Value]) -> Sizes:
    """Return the launch of a configuration.

    Raises:
        DialectError: it is none: a size below 1 or no whole number, or groups that do not fill it.
    """
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
    return Sizes(whole, group or None)


def _size(text: str, kernel: KernelSpecification, configuration: Mapping[str, Value]) -> int:
    try:
        value = parse(text, kernel.parameters, kernel.problem)(configuration)
    except ExpressionError as error:
        raise DialectError(f"the launch's size {text!r:.60} has no value: {error}") from error
    if isinstance(value, str) or not 1 <= value <= _MOST_ITEMS or value != int(value):
        raise DialectError(
            f"the launch's size {text!r:.60} is {value!r:.40}, and should be a whole number from 1 to {_MOST_ITEMS}"
        )
    return int(value)
