"""Torch's own network as a contestant: as it is, and compiled by torch's compiler."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from tunery.delivery.comparing.contestants import Contestant
from tunery.dialects import Array
from tunery.domain import InputRange, TensorSpec


class TorchContestant(Contestant):
    """The network as its public library runs it, one operator at a time."""

    def __init__(
        self,
        path: Path,
        threads: int,
        inputs: list[TensorSpec],
        ranges: dict[str, InputRange],
        *,
        seed: int,
        trust: bool = False,
    ) -> None:
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of compilers that idles beside us
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        import torch

        from tunery.models.torch._zoo import module_of

        super().__init__(inputs, ranges, seed)
        torch.set_num_threads(threads)
        self._module = self._prepared(module_of(str(path), trust=trust))
        self._tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in self._arrays]
        self._inference = torch.inference_mode

    def _prepared(self, module: Any) -> Any:
        return module

    @override
    def _run(self) -> Sequence[Array]:
        with self._inference():
            output = self._module(*self._tensors)
        # The zoo's graphs keep the first tensor of a structured output.
        first = next(iter(output.values())) if isinstance(output, dict) else output
        return [(first[0] if isinstance(first, tuple | list) else first).numpy()]


class TorchCompiledContestant(TorchContestant):
    """The same, compiled by `torch.compile` with its default settings at the first run."""

    @override
    def _prepared(self, module: Any) -> Any:
        import torch

        return torch.compile(module)
