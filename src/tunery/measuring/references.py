"""Inputs and the unscheduled program's outputs, per task: computed once, kept in the process and among the blobs."""

import zipfile
from collections import OrderedDict
from contextlib import suppress

import numpy as np

from tunery._errors import BlobError, BlobNotFoundError
from tunery.blobs import Blobs
from tunery.devices import Device
from tunery.dialects import Array, Built, Codegen, Dialect, Kernel
from tunery.domain import Task, Verification, digest
from tunery.measuring.inputs import VERSION, make_inputs, numpy_dtype, special_inputs
from tunery.measuring.verification import ExpectedOutput, compare, expect, finite_share, merge

_KEPT_BYTES = 256 * 2**20
_ENOUGH_FINITE, _SOME_FINITE = 0.9, 0.25
_WAYS = 2  # of making ordinary inputs, and special ones
_PADDED_KINDS = ("conv", "depthwise")
SPECIAL = Verification.FULL - 1
"""The number of inputs with special values, which users' kernels need not keep."""

_Key = tuple[str, int]
_Entry = tuple[list[Array], list[ExpectedOutput]]


class References:
    """Gives the expected outputs of a task on its independent inputs, numbered from 0. `blobs` hold one .npz file for
    each; None keeps them in the process only. A damaged file is computed again. In the process the latest 256 MiB are
    kept."""

    def __init__(self, dialect: Dialect, device: Device, blobs: Blobs | None, seed: int = 0) -> None:
        self._codegen, self._compiler, self._device = Codegen.of(dialect), dialect.compiler, device
        self._users = dialect.runs_users_code
        self._blobs = blobs
        self._seed = seed
        self._kept: OrderedDict[_Key, _Entry] = OrderedDict()

    def get(self, task: Task, reference: Built, number: int) -> tuple[list[Array], list[ExpectedOutput]]:
        key = self._key(task, reference), number
        if key not in self._kept:
            stored = self._read(task, key)
            self._kept[key] = self._compute(task, reference, key) if stored is None else stored
            self._shrink()
        self._kept.move_to_end(key)
        return self._kept[key]

    def verify(self, task: Task, kernel: Kernel, reference: Built) -> Verification:
        """Compare a kernel on as many inputs as delivery asks for; afterwards it is bound to those of number 0."""
        ordinary = self._users or kernel.slack != 1  # which multiplies by 0 what it does not use
        verdicts = []
        for number in reversed(range(Verification.FULL)):
            inputs, expected = self.get(task, reference, number + (ordinary and number == SPECIAL))
            kernel.bind(inputs)
            kernel.poison()
            kernel.run()
            verdicts.append(compare(expected, kernel.outputs(), slack=kernel.slack))
            if not verdicts[-1].passed:
                break
        return merge(verdicts)

    def _key(self, task: Task, reference: Built) -> str:
        return digest(task.key, reference.candidate_key, self._compiler, str(VERSION), str(self._seed))

    def _inputs(self, task: Task, number: int, way: int) -> list[Array]:
        """Return inputs of a number: the last one's are special; by one of several ways, each more harmless."""
        specs, seed = task.workload.input_specs, self._seed + number
        if number != SPECIAL or way >= _WAYS:
            return make_inputs(specs, seed, positive=way % _WAYS > 0)
        # Padding times an infinite weight is NaN to who multiplies it, and nothing to who leaves it out.
        padded = task.workload.kind.startswith(_PADDED_KINDS)
        return special_inputs(specs, seed, only_first=way > 0 or padded)

    def _compute(self, task: Task, reference: Built, key: _Key) -> _Entry:
        kernel = self._codegen.load(task, reference, self._device)
        for way in range(2 * _WAYS if key[1] == SPECIAL else _WAYS):
            inputs = self._inputs(task, key[1], way)
            kernel.bind(inputs)
            kernel.poison()
            kernel.run()
            outputs = kernel.outputs()
            # Of many NaN little is seen, so a task that makes it of negative numbers, or infinities, gets none.
            least = _SOME_FINITE if key[1] == SPECIAL and way < _WAYS else _ENOUGH_FINITE
            if min(map(finite_share, outputs), default=1.0) >= least:
                break
        self._write(outputs, way, key)
        return inputs, expect(task.workload, outputs)

    def _read(self, task: Task, key: _Key) -> _Entry | None:
        blob = None if self._blobs is None else self._blobs.find(_name(key))
        if self._blobs is None or blob is None:
            return None
        try:
            path = self._blobs.get(blob, verify=True)
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                # bytes, since .npy knows no bfloat16
                outputs = [
                    stored[f"output{i}"].view(numpy_dtype(spec.dtype)).reshape(spec.shape)
                    for i, spec in enumerate(task.workload.output_specs)
                ]
                return self._inputs(task, key[1], int(stored["way"])), expect(task.workload, outputs)
        except (BlobNotFoundError, OSError, EOFError, KeyError, ValueError, TypeError, zipfile.BadZipFile):
            return None
        finally:
            self._blobs.release(blob)

    def _write(self, outputs: list[Array], way: int, key: _Key) -> None:
        """Keep outputs for other processes; a full disk only costs that."""
        if self._blobs is None:
            return
        data = {f"output{i}": np.ascontiguousarray(o).reshape(-1).view(np.uint8) for i, o in enumerate(outputs)}
        with suppress(BlobError, OSError), self._blobs.scratch() as directory:
            with (directory / "outputs").open("wb") as file:
                np.savez(file, allow_pickle=False, way=np.array(way), **data)
            blob = self._blobs.put(directory / "outputs", move=True, sync=False)
            self._blobs.remember(_name(key), blob)
            self._blobs.release(blob)

    def _shrink(self) -> None:
        while len(self._kept) > 1 and sum(map(_size, self._kept.values())) > _KEPT_BYTES:
            self._kept.popitem(last=False)


class Unmeasured:
    """Compares candidates with references in this process; hangs and crashes are ended from outside."""

    def __init__(self, dialect: Dialect, device: Device) -> None:
        self._codegen, self._device = Codegen.of(dialect), device
        self._references = References(dialect, device, None)

    def verify(self, task: Task, built: Built, reference: Built) -> Verification:
        """Return the verdict on as many independent inputs as delivery asks for, each into poisoned outputs."""
        if built.path == reference.path:
            return Verification("is the reference", Verification.FULL, 0.0, passed=True)
        return self._references.verify(task, self._codegen.load(task, built, self._device), reference)


def _name(key: _Key) -> str:
    return f"reference outputs {key[0]} {key[1]}"


def _size(entry: _Entry) -> int:
    inputs, expected = entry
    return sum(array.nbytes for array in inputs) + sum(2 * reference.values.nbytes for reference in expected)
