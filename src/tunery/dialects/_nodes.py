"""What the nodes of an ONNX graph are called, in what people are told and between processes."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def labels(nodes: Sequence[Any]) -> list[str]:
    """Return the operator and the name of each node; of one without a name of its own that of its first output."""
    taken = Counter(node.name for node in nodes)
    return [f"{node.op_type} {_name(node, taken)}".strip() for node in nodes]


def node_labels(path: Path) -> list[str]:
    """Return the labels of the nodes in a file."""
    import onnx

    return labels(onnx.load(path, load_external_data=False).graph.node)


def _name(node: Any, taken: Counter[str]) -> str:
    if node.name and taken[node.name] == 1:
        return str(node.name)
    return next((str(name) for name in node.output if name), "")
