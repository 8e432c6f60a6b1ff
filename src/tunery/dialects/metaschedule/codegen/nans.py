"""Bounds that keep NaN, as ONNX Runtime's do: a ReLU of NaN is NaN.

TVM's `max(a, b)` is an instruction that gives `b` where either is NaN, so a constant comes first: at no cost, and where
code is made, for programs are known by how they are imported. What takes the largest of many numbers stays as it is;
there ONNX Runtime itself loses a NaN, or not, by its place.
"""

import json
from typing import Any

import tvm_ffi

from tunery.dialects.metaschedule._tvm import tvm

_BOUNDS = ("prim.Max", "prim.Min")


def keep_nans(module: Any) -> Any:
    """Return the module with the constants of such bounds first in its tensor programs."""
    programs = {name: one for name, one in module.functions_items() if isinstance(one, tvm.tirx.PrimFunc)}
    text = tvm_ffi.serialization.to_json_graph_str(list(programs.values()))
    if not any(f'"{kind}"' in text for kind in _BOUNDS):
        return module
    graph = json.loads(text)
    nodes = graph["nodes"]
    for node in nodes:
        if node["type"] in _BOUNDS and nodes[node["data"]["b"]]["type"] == "ir.FloatImm":
            node["data"]["a"], node["data"]["b"] = node["data"]["b"], node["data"]["a"]
    kept = module.clone()
    for name, program in zip(programs, tvm_ffi.serialization.from_json_graph_str(json.dumps(graph)), strict=True):
        kept.update_func(name, program)
    return kept
