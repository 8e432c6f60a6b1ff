"""Whole networks as worker services, each in a process of its own, so that no runtime's threads disturb another's.

All make the same inputs from the same seed, so only outputs cross the process border.
"""

import json
import mmap
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from tunery._archive import vouch
from tunery._processor import is_another_thread_running
from tunery.blobs import Blobs
from tunery.dialects import Array, labels
from tunery.domain import BlobDigest, InputRange, TensorSpec
from tunery.measuring.inputs import SETS, fitting, network_inputs, read_sets, set_label, set_numbers

_KERNEL, _PROFILED, _WARM_S = "_kernel_time", 5, 0.05
_LOOK_S, _LONGEST_REST_S = 0.005, 0.3
_BESIDE = "session.model_external_initializers_file_folder_path"
_RANDOM, _TRAINING = (b"Random", b"Bernoulli", b"Multinomial", b"Dropout"), 3
_LONGEST_S, _MOST_BYTES = 5.0, 64 << 20
"""What further input sets may take, and what their outputs may."""
_QUANTISES = (b"QuantizeLinear", b"DequantizeLinear", b"QLinear", b"MatMulInteger", b"ConvInteger", b"MatMulNBits")
"""What is in the names of operators."""
_PRODUCTS = {b"MatMulInteger": (1, 3), b"ConvInteger": (1, 3), b"QLinearMatMul": (3, 5), b"QLinearConv": (3, 5)}
"""Products of integers: which of their operands are weights, and these weights' zero points."""


_FLOATS = ("(float)", "(double)", "(float16)", "(bfloat16)")
_ROUNDED = (1, 10, 11, 16)
"""The same, as ONNX numbers them."""
_EXACT = frozenset(
    {"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile", "Slice", "Split"}
    | {"Concat", "Gather", "GatherElements", "GatherND", "Where", "DepthToSpace", "SpaceToDepth", "Constant", "Pad"}
    | {"Abs", "Neg", "Relu", "Max", "Min", "Clip", "MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin", "Floor"}
    | {"Ceil", "Round", "Sign", "TopK", "ScatterElements", "ScatterND", "ConstantOfShape", "Trilu"}
)
"""Operators that round no floats."""
_NUDGE = 2.0**-20
_FLIPPED = 0.01
"""The share of integers that rounding may change."""


class Contestant(ABC):
    """One way to run a network."""

    def __init__(
        self, inputs: Sequence[TensorSpec], ranges: Mapping[str, InputRange], seed: int, given: Path | None = None
    ) -> None:
        self._inputs, self._ranges, self._seed = inputs, ranges, seed
        self._given = [fitting(one, inputs) for one in read_sets(given)] if given else []
        self.use(len(SETS) if given else 0)

    def use(self, number: int) -> None:
        """Run on an input set from now on: one of `SETS`, or behind them one that the user gave."""
        self._arrays: list[Array] = (
            self._given[number - len(SETS)]
            if number >= len(SETS)
            else network_inputs(self._inputs, self._ranges, self._seed, number)
        )

    @abstractmethod
    def _run(self) -> Sequence[Array]:
        """Run once on this contestant's inputs."""

    def outputs(self, number: int = 0) -> list[tuple[str, tuple[int, ...], bytes]]:
        self.use(number)
        return [(str(a.dtype), tuple(a.shape), np.ascontiguousarray(a).tobytes()) for a in self._run()]

    def samples(self, seconds: float, least: int) -> list[float]:
        """Run for about `seconds`, and return what each run took, in seconds; there are at least `least`.

        The runs of the first 50 ms do not count: after another contestant's turn, kernels of several threads take up to
        a quarter longer. It returns once this process's threads sleep.
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
        _rest()
        return taken


def _rest() -> None:
    """Wait for the end of this process's threads' spinning.

    Those of ONNX Runtime go on for 40 ms after a call, and would take a core from whoever is timed next.
    """
    end = time.perf_counter() + _LONGEST_REST_S
    while is_another_thread_running() and time.perf_counter() < end:
        time.sleep(_LOOK_S)


class FileContestant(Contestant):
    """A network in a file."""

    def __init__(
        self,
        blob: BlobDigest,
        threads: int,
        inputs: list[TensorSpec],
        ranges: dict[str, InputRange],
        *,
        seed: int,
        blobs: Blobs,
        given: BlobDigest = "",
    ) -> None:
        self._path, self._threads = blobs.get(blob), threads
        self._open()
        super().__init__(inputs, ranges, seed, blobs.get(given) if given else None)

    @abstractmethod
    def _open(self) -> None:
        """Load it."""


class CompiledContestant(FileContestant):
    """A network compiled by a dialect."""

    def _open(self) -> None:
        from tunery.delivery.files.loading import load_compiled

        vouch(self._path)
        self._network = load_compiled(self._path, self._threads)

    def _run(self) -> Sequence[Array]:
        return self._network(*self._arrays)

    def profile(self) -> dict[str, float]:
        """Return the seconds that kernels take in one execution, by workload."""
        return dict(self._network.profile(self._arrays))


class OnnxRuntimeContestant(FileContestant):
    """ONNX Runtime on the CPU, with all its optimisations."""

    def _open(self) -> None:
        self._session = self._opened()

    def _opened(self, model: str | bytes = b"", *, optimised: bool = True) -> Any:
        import onnxruntime

        options = _options(self._threads)
        options.add_session_config_entry(_BESIDE, str(self._path.parent))
        given = model or str(self._path)
        if optimised:
            with suppress(Exception):  # its optimiser may fail where the model runs without
                return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])

    @override
    def use(self, number: int) -> None:
        super().use(number)
        self._feed = {spec.name: array for spec, array in zip(self._inputs, self._arrays, strict=True)}

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


class OriginalModel(OnnxRuntimeContestant):
    """The model as it was read, in ONNX Runtime without its optimiser: what it computes is right.

    The optimiser is on where the model needs that to run.
    """

    @override
    def _opened(self, model: str | bytes = b"", *, optimised: bool = False) -> Any:
        for one in () if optimised else (exact_products(self._path), str(self._path)):
            with suppress(Exception):
                return super()._opened(model or one, optimised=False)
        return super()._opened(optimised=True)

    def expected(self, most: int) -> list[tuple[int, list[tuple[str, tuple[int, ...], bytes]], list[float], str]]:
        """Return of up to `most` input sets: its number, the outputs, their roundings, and why there are none, if so.

        An output that random numbers reach has no bytes. `roundings` say how far each output of a network that
        quantises is off with the optimiser, or with inputs that are off by as much as a sum of some hundred numbers: a
        sum that is rounded otherwise in its last bit is a step away after the next quantisation, and steps add up. So
        it is 0 of an output that lies behind no quantisation. Of integers it is the share that rounding may change: 0
        where none is computed of floats that are rounded.
        """
        import onnx

        random, quantised, other = set[str](), set[str](), None
        rounded = self._rounded()
        if _mentions(self._path, (*_RANDOM, *_QUANTISES)):
            graph = onnx.load(self._path, load_external_data=False).graph
            random, quantised = _behind(graph, _is_random), _behind(graph, _quantises)
        names = [value.name for value in self._session.get_outputs()]
        if not quantised.isdisjoint(names):
            other = super()._opened()
        began, taken = time.monotonic(), 0
        found = list[tuple[int, list[tuple[str, tuple[int, ...], bytes]], list[float], str]]()
        made = set_numbers(self._inputs, self._ranges)
        for number in [*range(len(SETS), len(SETS) + len(self._given)), *made][:most]:
            try:
                outputs, roundings = self.outputs(number), [rounded.get(name, 0.0) for name in names]
                outputs = [
                    (dtype, shape, b"" if name in random else data)
                    for name, (dtype, shape, data) in zip(names, outputs, strict=True)
                ]
                if other is not None:
                    runs = other.run(None, self._feed), self._session.run(None, self._nudged())
                    each = zip(names, roundings, self._run(), *runs, strict=True)
                    roundings = [
                        rounded.get(name, max(_difference(one, same), _difference(one, near)))
                        if name in quantised else rounding
                        for name, rounding, one, same, near in each
                    ]  # fmt: skip
            except Exception as error:  # noqa: BLE001 - ONNX Runtime raises many
                found.append((number, [], [], f"{set_label(number)}: {error}"))
            else:
                taken += sum(len(data) for _, _, data in outputs)
                found.append((number, outputs, roundings, ""))
            if time.monotonic() - began > _LONGEST_S or taken > _MOST_BYTES:
                break
        return found

    def _nudged(self) -> dict[str, Array]:
        """Return the inputs with each float a little more or less than it is."""
        signs, nudged = np.random.default_rng(0), dict[str, Any](self._feed)
        for name, array in self._feed.items():
            if array.dtype.kind == "f":
                by = max(_NUDGE, float(np.finfo(str(array.dtype)).eps)) * signs.choice([-1, 1], array.shape)
                nudged[name] = (nudged[name] * (1 + by)).astype(array.dtype)
        return nudged

    def _rounded(self) -> dict[str, float]:
        """Return for each output of integers the share of them that rounding may change."""
        import onnx

        integers = [one.name for one in self._session.get_outputs() if not one.type.endswith(_FLOATS)]
        if not integers:
            return {}
        model = onnx.load(self._path, load_external_data=False)
        with suppress(Exception):  # then all types are unknown
            model = onnx.shape_inference.infer_shapes(model)
        values = [*model.graph.value_info, *model.graph.output]
        types = {one.name: one.type.tensor_type.elem_type for one in values}

        def rounds(node: Any) -> bool:
            kinds = {types.get(name, 0) for name in node.output if name} & {0, *_ROUNDED}
            exact = node.op_type in _EXACT or (node.op_type == "Cast" and kinds <= {onnx.TensorProto.FLOAT})
            return _quantises(node) or bool(kinds and not exact)

        behind = _behind(model.graph, rounds)
        return {name: _FLIPPED if name in behind else 0.0 for name in integers}


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
        blobs: Blobs,
        given: BlobDigest = "",
        trust: bool = False,
    ) -> None:
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of compilers that idles beside us
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        import torch

        from tunery.models.torch._zoo import module_of

        super().__init__(inputs, ranges, seed, blobs.get(given) if given else None)
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


def exact_products(path: Path) -> str | bytes:
    """Return what ONNX Runtime loads of a model so that its products of integers are exact.

    Its kernels for unsigned by signed bytes saturate on processors without VNNI; those of unsigned ones do not. So
    constant signed weights are raised by 128, with their zero points. Products of 4-bit weights quantise no data.
    """
    import onnx
    from onnx import numpy_helper

    if not _mentions(path, (*_PRODUCTS, b"accuracy_level")):
        return str(path)
    model = onnx.load(path, load_external_data=False)
    weights = {one.name: one for one in model.graph.initializer if one.data_type == onnx.TensorProto.INT8}
    raised = set[str]()

    def raise_to_unsigned(name: str) -> str:
        if name not in raised:
            signed = numpy_helper.to_array(weights[name]) if name else np.zeros((), np.int8)
            values = signed.astype(np.int16) + 128
            model.graph.initializer.append(numpy_helper.from_array(values.astype(np.uint8), f"{name} raised"))
            raised.add(name)
        return f"{name} raised"

    for node in model.graph.node:
        for one in node.attribute:
            if one.name == "accuracy_level":
                one.i = 0
        weight, zero = _PRODUCTS.get(node.op_type.encode(), (0, 0))
        if not weight or node.input[weight] not in weights:
            continue
        node.input.extend([""] * (zero + 1 - len(node.input)))
        if node.input[zero] in {"", *weights}:
            node.input[weight], node.input[zero] = map(raise_to_unsigned, (node.input[weight], node.input[zero]))
    return bytes(model.SerializeToString())


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
