"""A compiled network for several shapes: each call runs the one that was compiled for the shapes of its inputs."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from tunery._archive import ACCEPTS, DIMENSIONS, OTHERS, Archive
from tunery._errors import UsageError
from tunery.dialects import Array, CompiledNetwork
from tunery.domain import TensorSpec, merged_specs, shape_text

Shapes = tuple[tuple[int, ...], ...]


class ShapedNetwork(CompiledNetwork):
    """A compiled network for several shapes, of which each but the first is loaded when it is first called.

    `dimensions` are the names of its inputs' dimensions, "" without one, where it takes any shape.
    """

    def __init__(self, parts: Sequence[Archive], load: Callable[[Archive], CompiledNetwork]) -> None:
        self._load, self._parts = load, parts
        self._numbers: dict[Shapes, int] = {}
        self._any: int | None = None
        self.dimensions: Mapping[str, Sequence[str]] = {}
        self._warned = False
        inputs, outputs = [], []
        for number, told in enumerate(part.manifest for part in parts):
            own, given = (_specs(told[side]) for side in ("inputs", "outputs"))
            outputs.append(given)
            if ACCEPTS not in told:
                inputs.append(own)
                self._numbers[tuple(spec.shape for spec in own)] = number
                continue
            for accepted in told[ACCEPTS]:
                shapes = tuple(tuple(map(int, shape)) for shape in accepted)
                inputs.append(tuple(replace(spec, shape=shape) for spec, shape in zip(own, shapes, strict=True)))
                self._numbers.setdefault(shapes, number)
            if told.get(OTHERS):
                inputs.append(own)
                self._any, self.dimensions = number, dict(told[DIMENSIONS])
        self.inputs, self.outputs = merged_specs(inputs), merged_specs(outputs)
        first = load(parts[0])
        self.threads = first.threads
        self._networks = {0: first}
        self._known: dict[Shapes, CompiledNetwork] = {
            shapes: first for shapes, number in self._numbers.items() if number == 0
        }

    @property
    def shapes(self) -> list[Shapes]:
        return list(self._numbers)

    @override
    def __call__(self, *arrays: Any, out: Sequence[Any] | None = None, **named: Any) -> list[Array]:
        if named:
            raise self._in_order()
        try:
            network = self._known.get(_shapes_of(arrays))
        except TypeError:  # a shape that is none, as of ONNX Runtime's OrtValue
            network = None
        network = network or self._network_for(arrays)
        return network(*arrays, out=out)

    @override
    def _run(self, arrays: Sequence[Array]) -> list[Array]:
        return self._network_for(arrays)._run(arrays)

    @override
    def time(self, arrays: Sequence[Array], calls: int) -> float:
        return self._network_for(arrays).time(arrays, calls)

    @override
    def profile(self, arrays: Sequence[Array]) -> Mapping[str, float]:
        return self._network_for(arrays).profile(arrays)

    def _network_for(self, arrays: Sequence[Any]) -> CompiledNetwork:
        shapes = tuple(tuple(array.shape) for array in self.checked(arrays))
        number = self._numbers.get(shapes)
        if number is not None:
            self._known[shapes] = self._loaded(number)
            return self._known[shapes]
        held = " or ".join(self._told(one) for one in self._numbers)
        if self._any is None:
            raise UsageError(
                f"the network takes {held}, not {self._told(shapes)}; compile it for that too, or for all (--any-shape)"
            )
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"ONNX Runtime runs shapes that the network was not compiled for, as {self._told(shapes)}: it was for "
                f"{held}",
                stacklevel=3,
            )
        return self._loaded(self._any)

    def _loaded(self, number: int) -> CompiledNetwork:
        # Without a lock: what two threads load at once is loaded twice, and one of both is kept.
        if number not in self._networks:
            self._networks.setdefault(number, self._load(self._parts[number]))
        return self._networks[number]

    def _told(self, shapes: Shapes) -> str:
        named = zip(self.inputs, shapes, strict=True)
        return ", ".join(f"{spec.name:.80}{shape_text(shape)}" for spec, shape in named if -1 in spec.shape)


def _shapes_of(arrays: Sequence[Any]) -> Shapes:
    return tuple([tuple(getattr(array, "shape", ())) for array in arrays])


def _specs(told: Sequence[Any]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, tuple(map(int, shape)), dtype) for name, shape, dtype in told)
