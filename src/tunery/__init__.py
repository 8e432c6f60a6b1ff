"""tunery: a model in, tuned and verified kernels out.

import tunery

tuned = tunery.load("resnet18.onnx").on("native").within("10min").tune()
print(tuned.report())
print(tuned.compile("resnet18.tunery").benchmark(against=["onnxruntime"]))
network = tunery.load_compiled("resnet18.tunery")
outputs = network(image)

`tunery.connect(url).load("resnet18.onnx")` begins the same chain at a service.

Nothing heavy is imported before it is used. Everything that is not named here is private.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tunery._api import Benchmark, CompiledModel, Model, Placed, Planned, Tuned, load
from tunery._errors import (
    BudgetError,
    CrashError,
    DeadlineError,
    DialectError,
    EngineError,
    ModelError,
    NothingFoundError,
    RemoteError,
    StoreError,
    TargetError,
    TuneryError,
    UsageError,
    WorkError,
)

if TYPE_CHECKING:
    from tunery.delivery.files.combining import bundle, combine
    from tunery.delivery.files.inference_session import InferenceSession
    from tunery.delivery.files.loading import load_compiled
    from tunery.web.client import ServiceClient, connect

    __version__: str

__all__ = [
    "Benchmark", "BudgetError", "CompiledModel", "CrashError", "DeadlineError", "DialectError", "EngineError",
    "InferenceSession", "Model", "ModelError", "NothingFoundError", "Placed", "Planned", "RemoteError",
    "ServiceClient", "StoreError", "TargetError", "Tuned", "TuneryError", "UsageError", "WorkError", "__version__",
    "bundle", "combine", "connect", "load", "load_compiled",
]  # fmt: skip


_ELSEWHERE = {
    "InferenceSession": "tunery.delivery.files.inference_session",
    "ServiceClient": "tunery.web.client",
    "bundle": "tunery.delivery.files.combining",
    "combine": "tunery.delivery.files.combining",
    "connect": "tunery.web.client",
    "load_compiled": "tunery.delivery.files.loading",
}


def __getattr__(name: str) -> object:
    if name == "torch":
        return import_module("tunery.torch")
    if name in _ELSEWHERE:
        found: object = getattr(import_module(_ELSEWHERE[name]), name)
        return found
    if name == "__version__":
        from importlib.metadata import version

        return version("tunery")
    raise AttributeError(f"module 'tunery' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
