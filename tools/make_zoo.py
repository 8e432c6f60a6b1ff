"""Write the weightless zoo graphs: `python tools/make_zoo.py [NAME ... | --missing]`.

Runs in its own environment, never at tunery's run time: torch==2.13.0, onnxscript, transformers==5.23.0, and without
their dependencies torchvision==0.28.0 (plus pillow) and timm==1.0.31. Each network is exported with a dynamic batch,
and every big weight is replaced by its shape and a rule (`fill:LOW:HIGH`), from which tunery makes numbers again.
"""

import gzip
import json
import math
import sys
import time
import traceback
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from zoo_models import RECIPES, Recipe

OPSET = 18
GRAPHS = Path(__file__).parents[1] / "src" / "tunery" / "models" / "zoo_graphs"
KEPT_ELEMENTS = 4096


def export(recipe: Recipe) -> tuple[onnx.ModelProto, int]:
    """Return the exported model and its number of parameters."""
    torch.manual_seed(0)
    module = recipe.build().eval()
    _roughen(module)
    inputs = recipe.inputs()
    batch = torch.export.Dim("batch", min=1, max=1024)
    shapes = tuple({0: batch} for _ in inputs)
    program = torch.onnx.export(
        module,
        tuple(inputs.values()),
        dynamo=True,
        opset_version=OPSET,
        input_names=list(inputs),
        output_names=["output"],
        dynamic_shapes=(shapes,) if _variadic(module) else shapes,
        verbose=False,
    )
    return program.model_proto, sum(parameter.numel() for parameter in module.parameters())


def _roughen(module: torch.nn.Module) -> None:
    """Move scales, biases and statistics off their initial ones and zeros.

    A trained network has no zero bias, and the exporter drops those: operators would fuse differently.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1 and parameter.is_floating_point():
                parameter.add_(0.05 * torch.randn_like(parameter))
        for name, buffer in module.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.add_(0.2 * torch.rand_like(buffer))


def _variadic(module: torch.nn.Module) -> bool:
    return type(module).__name__ == "First"


def fill_rule(tensor: onnx.TensorProto, uses: list[tuple[onnx.NodeProto, int]], gain: float) -> str | None:
    """Return the rule that stands for a weight, or None where its values matter and are kept.

    Products keep the variance of what goes in (He et al., 2015: a uniform range of sqrt(6 / fan-in) before a ReLU), so
    activations neither vanish nor overflow; scales lie around one and variances are positive.
    """
    shape = tuple(tensor.dims)
    if tensor.data_type != onnx.TensorProto.FLOAT or math.prod(shape) < 16:
        return None
    for node, position in uses:
        rule = _rule_by_use(node, position, shape, gain)
        if rule:
            return rule
    values = numpy_helper.to_array(tensor)
    bias = max(shape) == math.prod(shape) >= 64 and float(values.std()) > 0
    if math.prod(shape) <= KEPT_ELEMENTS and not bias:
        return None
    middle, spread = float(values.mean()), max(float(values.std()), 1e-3) * math.sqrt(3)
    return _rule(middle - spread, middle + spread)


def _rule_by_use(node: onnx.NodeProto, position: int, shape: tuple[int, ...], gain: float) -> str | None:
    operator = node.op_type
    if operator in ("Conv", "ConvTranspose", "Gemm", "MatMul") and len(shape) > 1:
        own = gain if operator in ("Conv", "ConvTranspose") else 3.0
        bound = math.sqrt(own / _fan_in(node, shape))
        return _rule(-bound, bound)
    if operator == "Gather" and position == 0 and len(shape) == 2:
        return _rule(-1.0, 1.0)
    if operator == "BatchNormalization":
        return (None, _rule(0.8, 1.2), _rule(-0.1, 0.1), _rule(-0.1, 0.1), _rule(0.5, 1.5))[position]
    if operator == "LayerNormalization":
        return (None, _rule(0.8, 1.2), _rule(-0.1, 0.1))[position]
    if operator in ("Conv", "ConvTranspose", "Gemm"):
        return _rule(-0.05, 0.05)
    return None


def _fan_in(node: onnx.NodeProto, shape: tuple[int, ...]) -> int:
    if node.op_type == "Conv":
        return math.prod(shape[1:])
    if node.op_type == "ConvTranspose":
        return max(1, math.prod((shape[0], *shape[2:])) // 4)
    transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    return shape[-1] if transposed else shape[-2]


def _rule(low: float, high: float) -> str:
    return f"fill:{np.float32(low):.6g}:{np.float32(high):.6g}"


def strip(model: onnx.ModelProto, gain: float) -> None:
    """Replace big weights by rules and drop everything that tells of the exporting machine."""
    uses: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
        for position, name in enumerate(node.input):
            uses.setdefault(name, []).append((node, position))
            if node.op_type == "Transpose":  # a weight that is transposed before a product: its fan-in is the last axis
                uses[name] += [(_gemm(user), at) for user, at in _users(model, node.output[0])]
    for tensor in model.graph.initializer:
        tensor.doc_string = ""
        del tensor.metadata_props[:]
        rule = fill_rule(tensor, uses.get(tensor.name, []), gain)
        if rule is not None:
            tensor.raw_data = b""
            del tensor.float_data[:]
            tensor.doc_string = rule
    del model.graph.value_info[:], model.graph.metadata_props[:], model.metadata_props[:]
    for value in (*model.graph.input, *model.graph.output):
        del value.metadata_props[:]
    model.doc_string = model.graph.doc_string = ""


def _gemm(user: onnx.NodeProto) -> onnx.NodeProto:
    return onnx.helper.make_node("Gemm", [], [], transB=1) if user.op_type == "MatMul" else user


def _users(model: onnx.ModelProto, name: str) -> list[tuple[onnx.NodeProto, int]]:
    return [(node, at) for node in model.graph.node for at, given in enumerate(node.input) if given == name]


def main(names: list[str]) -> int:
    """Export the named networks (all without names) and refresh the index; return the number that failed."""
    GRAPHS.mkdir(parents=True, exist_ok=True)
    index_path = GRAPHS / "index.json"
    failed = 0
    torch.set_num_threads(1)
    if names == ["--missing"]:
        names = [name for name in RECIPES if not (GRAPHS / f"{name}.onnx.gz").exists()]
    for name in names or list(RECIPES):
        started = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model, parameters = export(RECIPES[name])
            nodes = len(model.graph.node)
            strip(model, RECIPES[name].gain)
        except Exception:  # noqa: BLE001 - one network that cannot be exported must not cost the others
            traceback.print_exc(limit=-3)
            print(f"FAILED {name}", flush=True)
            failed += 1
            continue
        data = gzip.compress(model.SerializeToString(deterministic=True), 9, mtime=0)
        (GRAPHS / f"{name}.onnx.gz").write_bytes(data)
        index = json.loads(index_path.read_text()) if index_path.exists() else {}
        index[name] = {"kind": RECIPES[name].kind, "parameters": parameters}
        index_path.write_text(json.dumps(dict(sorted(index.items())), indent=1) + "\n")
        print(f"{name}: {nodes} nodes, {len(data) / 1024:.0f} KB, {time.perf_counter() - started:.1f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
