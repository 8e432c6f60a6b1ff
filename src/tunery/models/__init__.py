"""Any model source becomes one normal form: a static, simplified ONNX file and a `domain.Network` that describes it. No
compiler is imported in this room. `prepare` reads untrusted files with native libraries, so it belongs into an importer
worker, where a crash or a runaway allocation costs one call. What needs the package onnx is imported when it is asked
for: who sends a model to a service may lack it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunery.models import zoo
    from tunery.models._files import check
    from tunery.models._prepare import identify, original_of, prepare, prepare_free
    from tunery.models.onnx._bind import check_shapes

_ALONE = {"check": "_files", "check_shapes": "onnx._bind"}
"""What is told at once: without all that reads models."""
__all__ = ["check", "check_shapes", "identify", "original_of", "prepare", "prepare_free", "zoo"]


def __getattr__(name: str) -> Any:
    if name == "zoo":
        return import_module("tunery.models.zoo")
    if name in __all__:
        return getattr(import_module(f"tunery.models.{_ALONE.get(name, '_prepare')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
