"""Inputs and the unscheduled program's outputs, per task: computed once, kept in the process and on disk."""

import tempfile
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np

from tunery.dialects import Array, Dialect
from tunery.domain import Artifact, Task, digest
from tunery.measure.inputs import VERSION, make_inputs, numpy_dtype
from tunery.measure.verification import Expected, expect

_KEPT_BYTES = 256 * 2**20


class References:
    """Gives the expected outputs of a task on its independent inputs, numbered from 0.

    `directory` holds one .npz file for each; None keeps them in the process only. A torn or foreign file is computed
    again. In the process the latest 256 MiB are kept.
    """

    def __init__(self, dialect: Dialect, directory: Path | None, seed: int = 0) -> None:
        self._dialect = dialect
        self._directory = directory
        self._seed = seed
        self._kept: OrderedDict[tuple[str, int], tuple[list[Array], list[Expected]]] = OrderedDict()

    def get(self, task: Task, reference: Artifact, number: int) -> tuple[list[Array], list[Expected]]:
        """Return the inputs with this number and what the reference makes of them."""
        key = self._key(task, reference), number
        if key not in self._kept:
            inputs = make_inputs(task.workload.input_specs, self._seed + number)
            outputs = self._read(task, key) or self._compute(task, reference, inputs, key)
            self._kept[key] = inputs, expect(task.workload, outputs)
            self._shrink()
        self._kept.move_to_end(key)
        return self._kept[key]

    def _key(self, task: Task, reference: Artifact) -> str:
        return digest(task.key, reference.candidate_key, self._dialect.compiler, str(VERSION), str(self._seed))

    def _compute(self, task: Task, reference: Artifact, inputs: list[Array], key: tuple[str, int]) -> list[Array]:
        kernel = self._dialect.load(task, reference)
        kernel.bind(inputs)
        kernel.poison()
        kernel.run()
        outputs = kernel.outputs()
        self._write(outputs, key)
        return outputs

    def _path(self, key: tuple[str, int]) -> Path | None:
        return None if self._directory is None else self._directory / f"{key[0]}-{key[1]}.npz"

    def _read(self, task: Task, key: tuple[str, int]) -> list[Array] | None:
        path = self._path(key)
        if path is None or not path.exists():
            return None
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                # bytes, since .npy knows no bfloat16
                return [
                    stored[f"output{i}"].view(numpy_dtype(spec.dtype)).reshape(spec.shape)
                    for i, spec in enumerate(task.workload.output_specs)
                ]
        except (OSError, EOFError, KeyError, ValueError, TypeError, zipfile.BadZipFile):
            return None

    def _write(self, outputs: list[Array], key: tuple[str, int]) -> None:
        """Write in one step: a killed process leaves no half file, and a full disk only costs the cache."""
        path = self._path(key)
        if path is None:
            return
        data = {f"output{i}": np.ascontiguousarray(o).reshape(-1).view(np.uint8) for i, o in enumerate(outputs)}
        temporary = ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
                temporary = file.name
                np.savez(file, allow_pickle=False, **data)
            Path(temporary).replace(path)
        except OSError:
            if temporary:
                Path(temporary).unlink(missing_ok=True)

    def _shrink(self) -> None:
        while len(self._kept) > 1 and sum(map(_size, self._kept.values())) > _KEPT_BYTES:
            self._kept.popitem(last=False)


def _size(entry: tuple[list[Array], list[Expected]]) -> int:
    inputs, expected = entry
    return sum(array.nbytes for array in inputs) + sum(2 * reference.values.nbytes for reference in expected)
