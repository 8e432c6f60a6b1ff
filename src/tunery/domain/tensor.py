"""The shape and type of one array."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One array that goes in or out: its name, static shape and NumPy dtype name (`float32`, `int64`, `bfloat16`)."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)
