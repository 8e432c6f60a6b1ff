"""Whole networks as worker services, each in a process of its own, so that no runtime's threads disturb another's.

All make the same inputs from the same seed, so only outputs cross the process border.
"""

import json
import mmap
import tempfile
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from tunery._archive import vouch
from tunery.blobs import Blobs
from tunery.dialects import Array, labels
from tunery.domain import BlobDigest, TensorSpec
from tunery.measuring.inputs import make_inputs

_KERNEL, _PROFILED, _WARM_S = "_kernel_time", 5, 0.05
_BESIDE = "session.model_external_initializers_file_folder_path"
_RANDOM, _TRAINING = (b"Random", b"Bernoulli", b"Multinomial", b"Dropout"), 3
_QUANTISES = (b"QuantizeLinear", b"DequantizeLinear", b"QLinear", b"MatMulInteger", b"ConvInteger", b"MatMulNBits")
"""What is in the names of operators."""


class Contestant(ABC):
    """One way to run a network."""

    def __init__(self, inputs: Sequence[TensorSpec], seed: int) -> None:
        self._arrays: list[Array] = list(make_inputs(inputs, seed))

    @abstractmethod
    def _run(self) -> Sequence[Array]:
        """Run once on this contestant's inputs."""

    def outputs(self) -> list[tuple[str, tuple[int, ...], bytes]]:
        return [(str(a.dtype), tuple(a.shape), np.ascontiguousarray(a).tobytes()) for a in self._run()]

    def samples(self, seconds: float, least: int) -> list[float]:
        """Run for about `seconds`, and return what each run took, in seconds; there are at least `least`.

        The runs of the first 50 ms do not count: after another contestant's turn, kernels of several threads take up to
        a quarter longer. With `cpu`, a run's time is the CPU time of this process's threads.
        """
        warm_s = min(_WARM_S, seconds / 2)
        end = time.perf_counter() + warm_s
        self._run()
        while time.perf_counter() < end:
            self._run()
        taken: list[float] = []
        end = time.perf_counter() + seconds - warm_s
        while len(taken) < least or time.perf_counter() < end:
            start = time.perf_counter_ns()
            self._run()
            taken.append((time.perf_counter_ns() - start) * 1e-9)
        return taken


class CompiledContestant(Contestant):
    """A network compiled by a dialect."""

    def __init__(self, blob: BlobDigest, threads: int, inputs: list[TensorSpec], seed: int, blobs: Blobs) -> None:
        from tunery.delivery.files.loading import load_compiled

        super().__init__(inputs, seed)
        path = blobs.get(blob)
        vouch(path)
        self._network = load_compiled(path, threads)

    def _run(self) -> Sequence[Array]:
        return self._network(*self._arrays)

    def profile(self) -> dict[str, float]:
        """Return the seconds that kernels take in one execution, by workload."""
        return dict(self._network.profile(self._arrays))


class OnnxRuntimeContestant(Contestant):
    """ONNX Runtime on the CPU, with all its optimisations."""

    def __init__(self, blob: BlobDigest, threads: int, inputs: list[TensorSpec], seed: int, blobs: Blobs) -> None:
        import onnxruntime

        super().__init__(inputs, seed)
        self._path, self._threads = blobs.get(blob), threads
        self._session = onnxruntime.InferenceSession(
            str(self._path), _options(threads), providers=["CPUExecutionProvider"]
        )
        self._feed = {spec.name: array for spec, array in zip(inputs, self._arrays, strict=True)}

    def _run(self) -> Sequence[Array]:
        outputs: Sequence[Array] = self._session.run(None, self._feed)
        return outputs

    def profile(self) -> dict[str, float]:
        """Return the seconds that nodes take in one execution, by label, with what is fused to them."""
        import onnx
        import onnxruntime

        model = onnx.load(self._path, load_external_data=False)
        named = labels(model.graph.node)
        for number, node in enumerate(model.graph.node):
            node.name = f"node {number}"
        with tempfile.TemporaryDirectory(prefix="tunery-") as scratch:
            options = _options(self._threads)
            options.add_session_config_entry(_BESIDE, str(self._path.parent))
            options.enable_profiling, options.profile_file_prefix = True, f"{scratch}/profile"
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            for _ in range(_PROFILED):
                session.run(None, self._feed)
            events = json.loads(Path(session.end_profiling()).read_text())
        return _by_node(events, model.graph, named)

    def rounding(self) -> list[float]:
        """Return how far each output is off without the optimiser, in a network that quantises; else nothing.

        A sum that is rounded otherwise in its last bit is a step away after the next quantisation, and steps add up.
        So it is 0 of an output that lies behind no quantisation. Data that products of 4-bit weights quantise stays in
        single precision there. Nothing is returned where that cannot be run, either.
        """
        if not _mentions(self._path, _QUANTISES):
            return []
        import onnx
        import onnxruntime

        model = onnx.load(self._path, load_external_data=False)
        quantised = _behind(model.graph, _quantises)
        names = [value.name for value in self._session.get_outputs()]
        if quantised.isdisjoint(names):
            return []
        options = _options(self._threads)
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry(_BESIDE, str(self._path.parent))
        try:
            plain = onnxruntime.InferenceSession(self._exact(model), options, providers=["CPUExecutionProvider"])
            theirs = plain.run(None, self._feed)
        except Exception:  # noqa: BLE001 - ONNX Runtime raises many; it may need its optimiser for what it has no kernel of
            return []
        both = zip(names, self._run(), theirs, strict=True)
        return [_difference(one, other) if name in quantised else 0.0 for name, one, other in both]

    def _exact(self, model: Any) -> str | bytes:
        """Return what ONNX Runtime loads of a model whose products of 4-bit weights quantise no data."""
        levels = [one for node in model.graph.node for one in node.attribute if one.name == "accuracy_level"]
        for level in levels:
            level.i = 0
        return bytes(model.SerializeToString()) if levels else str(self._path)

    @override
    def outputs(self) -> list[tuple[str, tuple[int, ...], bytes]]:
        """Return each output's dtype, shape and bytes; no bytes of one that random numbers reach: no two agree."""
        outputs = super().outputs()
        if not _mentions(self._path, _RANDOM):
            return outputs
        import onnx

        random = _behind(onnx.load(self._path, load_external_data=False).graph, _is_random)
        names = [value.name for value in self._session.get_outputs()]
        return [
            (dtype, shape, b"" if name in random else data)
            for name, (dtype, shape, data) in zip(names, outputs, strict=True)
        ]


def _options(threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    return options


def _behind(graph: Any, is_source: Callable[[Any], bool], outside: Collection[str] = ()) -> set[str]:
    """Return the names of a graph's values that lie behind such a node; `outside` are those of the graph around."""
    found = set(outside)
    for node in graph.node:
        inside = [one for attribute in node.attribute for one in (attribute.g, *attribute.graphs) if one.node]
        is_behind = is_source(node) or found.intersection(node.input)
        if is_behind or any(_behind(one, is_source, found) - found for one in inside):
            found |= {name for name in node.output if name}
    return found


def _quantises(node: Any) -> bool:
    return any(name in node.op_type.encode() for name in _QUANTISES)


def _is_random(node: Any) -> bool:
    """Tell whether a node draws numbers; Dropout does only where it is told that it trains."""
    drops = node.op_type == "Dropout"
    return any(name in node.op_type.encode() for name in _RANDOM) and not (drops and len(node.input) < _TRAINING)


def _difference(one: Array, other: Array) -> float:
    """Return the largest difference where both are finite; 0 of arrays of different shapes."""
    if one.shape != other.shape:
        return 0.0
    finite = np.isfinite(one) & np.isfinite(other)
    return float(np.abs(one[finite].astype(np.float64) - other[finite].astype(np.float64)).max(initial=0.0))


def _by_node(events: Sequence[Mapping[str, Any]], graph: Any, named: Sequence[str]) -> dict[str, float]:
    """Return the seconds of one execution by label, from ONNX Runtime's events.

    A fused node has the name of one of its nodes, or of what it makes.
    """
    places = {name: label for node, label in zip(graph.node, named, strict=True) for name in node.output if name}
    places |= {f"node {number}": label for number, label in enumerate(named)}  # as they were named before
    found: defaultdict[str, float] = defaultdict(float)
    for event in events:
        if event.get("cat") == "Node" and str(event["name"]).endswith(_KERNEL):
            name = str(event["name"]).removesuffix(_KERNEL).removesuffix("_nchwc")
            found[places.get(name, name)] += event["dur"] * 1e-6 / _PROFILED
    return found


def _mentions(path: Path, operators: Sequence[bytes]) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return any(data.find(name) >= 0 for name in operators)
