"""Turn a bound model into its normal form with ONNX Runtime's own basic optimiser. Real files compute reshape targets,
pads and sizes at run time; with static inputs these are constants, and folding them is what makes the file importable
for a compiler. The basic level keeps to standard operators."""

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx

from tunery._errors import ModelError, told_by_onnxruntime
from tunery.models.onnx._detached import as_inputs, as_weights
from tunery.models.onnx._expand import expand, write_out
from tunery.models.onnx._file import MOST_BYTES, STANDARD, check_size, graphs, no_numbers
from tunery.models.onnx._fold import NO_FILES, SILENT, fold, unoptimised
from tunery.models.onnx._loops import is_loop, types_of_loop
from tunery.models.onnx._unfuse import unfuse

_CHANGING = (
    "CastElimination", "CastChainElimination", "DivMulFusion", "DoubleQDQPairsRemover", "FuseReluClip",
    "MatMulAddFusion", "Pad_Fusion",
)  # fmt: skip
"""Rules of ONNX Runtime's optimiser that change values, or fail, or hide what follows a product behind a reshape."""
_WIDENED = "InsertedPrecisionFreeCast_"
_MOST_NODES = 30_000
"""An import takes time with the square of the nodes: 20,000 activations take 100 s."""
_INLINED = "_inlfunc_"
_LARGE_BYTES = 1 << 16
_MOST_ROUNDS = 64
_UNINFERRED = frozenset({"MeanVarianceNormalization"})
_UNWRITTEN = "erialization failed"
_TOO_LARGE = "the model has more than 2 GB once its constants are folded; export it with smaller constants"
_MISFITS = ("ShapeInference", "TypeInference", "ncompatible dimensions", "imension mismatch")
_REMARKS = (
    (
        ("is not a registered function", "NOT_IMPLEMENTED", "No Op registered"),
        "ONNX Runtime, which checks all results, lacks an operator of the model: {}; export it with standard operators",
    ),
    (
        ("No opset import",),
        "the model lacks the version of an operator set: {}; export it again, or add the version to opset_import",
    ),
    (("opset", "IR version"), "the model's ONNX version is not supported: {}; export it with opset 18"),
    (
        _MISFITS,
        "the model does not accept these input shapes, or is corrupt: {}; give other --shape values or export it again",
    ),
)


class MisfitError(ModelError):
    """The operators of a model contradict each other's shapes, or those of the inputs; `detail` says which."""

    def __init__(self, message: str, detail: str) -> None:
        super().__init__(message)
        self.detail = detail


def simplify(
    model: onnx.ModelProto,
    values: Mapping[str, bytes],
    scratch: Path,
    ranks: Mapping[str, int] = MappingProxyType({}),
    elsewhere: Collection[str] = (),
) -> onnx.ModelProto:
    """Return the model with constants folded, dead and redundant nodes gone, and all inferable shapes written down.

    `model` has static inputs; `scratch` is a directory for a temporary file; `ranks` are those that the file declares
    for its outputs. Names of inputs and outputs are kept. `values` are those of large weights that were detached, by
    name. Weights whose values lie `elsewhere` have none here either.
    """
    unfuse(model)
    model = expand(model)
    write_out(model)
    absent = {*values, *elsewhere}
    model = _folded(model, absent)
    optimised = _optimise(model, scratch / "optimised.onnx", {**values, **dict.fromkeys(elsewhere, b"")})
    if _spoilt(optimised, model):
        optimised = model
    else:
        _rename_new(optimised, model)
    check_size(optimised, _MOST_NODES, "the simplified model")
    if _has_control_flow(model.graph):  # branches have taken the place of their conditions
        optimised = _folded(optimised, absent)
    _tidy(optimised)
    inferred = _inferred(optimised)
    if not _norms_fit(inferred.graph):
        inferred = _inferred(model)
    _complete(inferred, absent, ranks)
    _check_channels(inferred)
    _check_outputs(inferred)
    return inferred


def _folded(model: onnx.ModelProto, absent: Collection[str]) -> onnx.ModelProto:
    """Fold what is known without data; again where types that only inference of the whole tells make more known."""
    hints: dict[str, onnx.TypeProto] = {}
    for _ in range(_MOST_ROUNDS):
        if not fold(model, hints, absent) and hints:
            break
        if not _has_control_flow(model.graph):
            break
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        hints = {value.name: value.type for value in _inferred(copy).graph.value_info}
    return model


def _has_control_flow(graph: onnx.GraphProto) -> bool:
    return any(one.HasField("g") for node in graph.node for one in node.attribute)


def _norms_fit(graph: onnx.GraphProto) -> bool:
    """Return whether no normalisation has a scale wider than its data, of which the optimiser makes wrong ones."""
    types = {value.name: value.type.tensor_type.shape.dim for value in (*graph.input, *graph.value_info)}
    sizes = {tensor.name: math.prod(tensor.dims) for tensor in graph.initializer}
    for node in (node for node in graph.node if node.op_type == "LayerNormalization"):
        axis = next((one.i for one in node.attribute if one.name == "axis"), -1)
        data = [dim.dim_value for dim in types.get(node.input[0], ())]
        if data and min(data) > 0 and sizes.get(node.input[1], 0) > math.prod(data[axis:]):
            return False
    return True


def _rename_new(result: onnx.ModelProto, model: onnx.ModelProto) -> None:
    """Give constants that the optimiser made other names: run again on its own file, it makes some of the same name."""
    known = {name for graph in graphs(model.graph) for node in graph.node for name in (*node.input, *node.output)}
    known |= {one.name for one in (*model.graph.initializer, *model.graph.output)}
    new = dict[str, str]()
    for name in [tensor.name for tensor in result.graph.initializer if tensor.name not in known]:
        new[name] = f"folded_{name}"
        while new[name] in known:  # by an earlier preparation of a part of the model
            new[name] = f"folded_{new[name]}"
    for tensor in result.graph.initializer:
        tensor.name = new.get(tensor.name, tensor.name)
    for graph in graphs(result.graph):
        for node in graph.node:
            for at, name in enumerate(node.input):
                node.input[at] = new.get(name, name)


def _serialised(model: onnx.ModelProto, beside: int) -> bytes:
    try:
        data = bytes(model.SerializeToString())
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - protobuf's own, which has no types
        data = None
    if data is None or len(data) + beside > MOST_BYTES:
        raise ModelError(
            "the model has more than 2 GB of weights, too many for one ONNX file; split it or use half precision"
        )
    return data


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its shapes; large weights, on whose values none depends, are not copied to and fro."""
    names = Counter(tensor.name for tensor in model.graph.initializer)
    values = {}
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) > _LARGE_BYTES and names[tensor.name] == 1:
            values[tensor.name] = tensor.raw_data
            tensor.ClearField("raw_data")
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    for _ in range(_MOST_ROUNDS):
        if not (_tell_shapes(inferred.graph) or _tell_loops(inferred)):
            break
        inferred = onnx.shape_inference.infer_shapes(inferred, data_prop=True)
    for tensor in inferred.graph.initializer:
        if tensor.name in values:
            tensor.raw_data = values.pop(tensor.name)
    return inferred


def _tell_shapes(graph: onnx.GraphProto) -> bool:
    """Give the outputs of operators that ONNX's inference leaves out the type of their input; say if one was new."""
    typed = {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)}
    told = False
    for node in (node for node in graph.node if node.op_type in _UNINFERRED):
        before, after = typed.get(node.input[0]), typed.get(node.output[0])
        if before is not None and _is_static(before.type) and (after is None or not _is_static(after.type)):
            (graph.value_info.add(name=node.output[0]) if after is None else after).type.CopyFrom(before.type)
            told = True
    return told


def _tell_loops(model: onnx.ModelProto) -> bool:
    graph, told = model.graph, False
    outputs = {value.name: value for value in graph.output}
    typed = {value.name: value for value in (*graph.input, *graph.value_info)} | outputs
    for node in filter(is_loop, graph.node):
        known = {name: value.type for name, value in typed.items()}
        known |= {one.name: onnx.helper.make_tensor_type_proto(one.data_type, one.dims) for one in graph.initializer}
        for name, kind in types_of_loop(node, known, model).items():
            if _sizes_in(kind) > _sizes_in(known.get(name, onnx.TypeProto())):
                (typed[name] if name in typed else graph.value_info.add(name=name)).type.CopyFrom(kind)
                told = True
    return told


def _sizes_in(kind: onnx.TypeProto) -> int:
    shape = kind.tensor_type
    known = sum(dim.HasField("dim_value") for dim in shape.shape.dim)
    return 1 + known if shape.HasField("shape") else 0


def _complete(model: onnx.ModelProto, aside: Collection[str], ranks: Mapping[str, int]) -> None:
    """Add the types that ONNX's inference lacks, as of operators of other domains, and the declared `ranks`."""
    graph = model.graph
    outputs = {value.name: value for value in graph.output}
    found = {value.name: value for value in graph.value_info} | outputs
    made = dict.fromkeys(name for node in graph.node for name in node.output if name)
    lacking = [name for name in made if name not in found or not _is_static(found[name].type)]
    for name, kind in _asked(model, lacking, aside).items():
        if name not in found:
            graph.value_info.add(name=name).type.CopyFrom(kind)
        elif _is_static(kind) or not found[name].type.tensor_type.HasField("shape"):
            found[name].type.CopyFrom(kind)
    unknown = [name for name, value in outputs.items() if _lacks_rank(value) and name not in ranks]
    ranks = {**ranks, **_computed_ranks(model, unknown, aside)}
    for name, value in outputs.items():
        kind = value.type.tensor_type
        if _lacks_rank(value) and name in ranks:
            kind.shape.SetInParent()
            for _ in range(ranks[name]):
                kind.shape.dim.add()
        for dim in kind.shape.dim:
            dim.ClearField("dim_param")


def _lacks_rank(value: onnx.ValueInfoProto) -> bool:
    return value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")


def _computed_ranks(model: onnx.ModelProto, names: Sequence[str], aside: Collection[str]) -> dict[str, int]:
    """Return how many dimensions some outputs have that ONNX Runtime computes of zeros; none where it cannot."""
    if not names or _has_control_flow(model.graph):  # whose branches may differ in that
        return {}
    try:
        copy = as_inputs(model, aside)
        zeros = {}
        for value in copy.graph.input:
            kind = value.type.tensor_type
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            zeros[value.name] = np.zeros([dim.dim_value for dim in kind.shape.dim], dtype)
        found = unoptimised(copy.SerializeToString()).run(list(names), zeros)
    except Exception:  # noqa: BLE001 - of many kinds
        return {}
    return {name: one.ndim for name, one in zip(names, found, strict=True)}


def _asked(model: onnx.ModelProto, names: Sequence[str], aside: Collection[str]) -> dict[str, onnx.TypeProto]:
    """Return what ONNX Runtime knows of some values' types, as far as they are tensors of a known rank."""
    if not names:
        return {}
    copy = as_inputs(model, aside)
    outputs = {value.name for value in copy.graph.output}
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in outputs)
    try:
        session = unoptimised(copy.SerializeToString())
    except Exception:  # noqa: BLE001 - then they stay unknown
        return {}
    found = {}
    for value in session.get_outputs():
        element = re.fullmatch(r"tensor\((\w+)\)", value.type)
        if value.name in names and element and value.shape:  # of an unknown rank it says that there are no dimensions
            dims = [dim if isinstance(dim, int) else None for dim in value.shape]
            kind = getattr(onnx.TensorProto, element[1].upper())
            found[value.name] = onnx.helper.make_tensor_type_proto(kind, dims)
    return found


def _is_static(kind: onnx.TypeProto) -> bool:
    shape = kind.tensor_type
    return shape.HasField("shape") and all(dim.HasField("dim_value") for dim in shape.shape.dim)


def _spoilt(optimised: onnx.ModelProto, model: onnx.ModelProto) -> bool:
    """Tell whether the optimiser put in operators of its own, took some apart, or computes half precision in single.
    What it takes apart, because it has no kernel for it, it does last: sizes in there are left to be computed."""
    names = [name for node in optimised.graph.node for name in node.output]
    spoilt = any(name.startswith((_WIDENED, _INLINED)) for name in names)
    return spoilt or not _domains(optimised) <= _domains(model)


def _optimise(model: onnx.ModelProto, path: Path, aside: Mapping[str, bytes]) -> onnx.ModelProto:
    """Return the optimised model; the weights that are set `aside` are inputs to the optimiser."""
    import onnxruntime  # it starts a thread, which a process that is still to be shut in must not have

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = SILENT
    options.add_session_config_entry(*NO_FILES)
    data = _serialised(as_inputs(model, aside), sum(map(len, aside.values())))

    def run(disabled: Collection[str]) -> None:
        # Its fallback would print to standard output and try the same provider again.
        onnxruntime.InferenceSession(
            data, options, providers=["CPUExecutionProvider"], enable_fallback=0, disabled_optimizers=[*disabled]
        )

    try:
        try:
            run(_CHANGING)
        except Exception as error:
            if not any(sign in str(error) for sign in _MISFITS):
                raise
            run((*_CHANGING, "ConstantFolding"))  # it may put a branch in its place whose types it then takes for wrong
    except Exception as error:  # noqa: BLE001 - its exceptions share no base class
        if _UNWRITTEN in str(error):
            path.write_bytes(data)  # where this fails as well it is the disk, and the error says so
            raise ModelError(_TOO_LARGE) from None
        if any(sign in str(error) for sign in _MISFITS):
            raise MisfitError(explain(error), _detail(error)) from None
        raise ModelError(explain(error)) from None
    return as_weights(onnx.load(str(path)), model, aside)


def explain(error: Exception) -> str:
    detail = _detail(error)
    for signs, remark in _REMARKS:
        if any(sign in str(error) for sign in signs):
            return remark.format(detail)
    return f"ONNX Runtime refuses the model: {detail}; check the file with onnx.checker, or export it again"


def _detail(error: Exception) -> str:
    return told_by_onnxruntime(str(error)) or type(error).__name__


def _domains(model: onnx.ModelProto) -> set[str]:
    used = {node.domain for graph in graphs(model.graph) for node in graph.node}
    return (used - STANDARD) | {""}


def _tidy(model: onnx.ModelProto) -> None:
    """Drop what a compiler has no use for: unused operator sets, comments, traces of the exporting machine."""
    used = _domains(model) | {function.domain for function in model.functions}
    kept = {entry.domain: entry.version for entry in model.opset_import if entry.domain in used}
    del model.opset_import[:]
    model.opset_import.extend(onnx.helper.make_opsetid(domain, version) for domain, version in sorted(kept.items()))
    model.ClearField("doc_string")
    del model.metadata_props[:]
    for graph in graphs(model.graph):
        graph.ClearField("doc_string")
        del graph.metadata_props[:], graph.value_info[:], graph.quantization_annotation[:]
        for node in graph.node:
            node.ClearField("doc_string")
            del node.metadata_props[:]
    for value in model.graph.output:
        if any(dim.dim_value <= 0 for dim in value.type.tensor_type.shape.dim):
            value.type.tensor_type.ClearField("shape")


def _check_channels(model: onnx.ModelProto) -> None:
    """Compare convolutions' channels with their weights', which ONNX Runtime does only when it runs them."""
    graph = model.graph
    typed = {value.name: value.type.tensor_type.shape.dim for value in (*graph.input, *graph.value_info)}
    weights = {tensor.name: tensor.dims for tensor in graph.initializer}
    for node in (node for node in graph.node if node.op_type == "Conv"):
        data, weight = typed.get(node.input[0], ()), weights.get(node.input[1], ())
        groups = next((attribute.i for attribute in node.attribute if attribute.name == "group"), 1)
        if len(data) > 1 and len(weight) > 1 and data[1].dim_value not in {0, weight[1] * groups}:
            takes, given = weight[1] * groups, data[1].dim_value
            detail = f"convolution {node.name!r} takes {takes} channels, not the {given} that it is given"
            raise MisfitError(f"the model's {detail}; export the model again", detail)


def _check_outputs(model: onnx.ModelProto) -> None:
    for value in model.graph.output:
        kind = value.type.tensor_type
        if not value.type.HasField("tensor_type") or kind.elem_type == onnx.TensorProto.STRING:
            raise no_numbers(value)
        if any(dim.HasField("dim_value") and dim.dim_value == 0 for dim in kind.shape.dim):
            raise ModelError(f"output {value.name!r} has a dimension of 0 and holds nothing; give other --shape values")
        if not kind.HasField("shape"):
            raise ModelError(
                f"the number of dimensions of output {value.name!r} depends on the data; declare it in the model, "
                "for example by exporting with named output dimensions"
            )
