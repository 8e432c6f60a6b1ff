"""ONNX Runtime's sessions, opened again in a forked process: of the parent's there are no threads in it."""

import ctypes
import os
from collections.abc import Sequence
from typing import Any

_SILENT = 4
_BESIDE = "session.model_external_initializers_file_folder_path"


class OnnxRuntimeSession:
    """A model in ONNX Runtime on the CPU; `spinning` threads wait busily for the next operator.

    Raises:
        Exception: of many kinds, where the model is refused.
    """

    def __init__(self, model: bytes, threads: int, *, spinning: bool, optimised: bool = True) -> None:
        import onnxruntime

        self._options = onnxruntime.SessionOptions()
        self._options.intra_op_num_threads, self._options.inter_op_num_threads = threads, 1
        self._options.log_severity_level = _SILENT
        if not optimised:
            self._options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._options.add_session_config_entry(_BESIDE, os.devnull)  # no model of ours reads files
        if not spinning:
            self._options.add_session_config_entry("session.intra_op.allow_spinning", "0")
            self._options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        self._model = model
        self._open()

    def _open(self) -> None:
        import onnxruntime

        def opened(disabled: Sequence[str]) -> Any:
            return onnxruntime.InferenceSession(
                self._model, self._options, providers=["CPUExecutionProvider"], enable_fallback=0,
                disabled_optimizers=[*disabled],
            )  # fmt: skip

        self._process = os.getpid()
        try:
            self._session = opened(())
        except Exception:  # noqa: BLE001 - of many kinds
            self._session = opened(("ConstantFolding",))  # it may take a branch that it puts in its place for wrong

    def get(self) -> Any:
        if self._process != os.getpid():
            # The parent's is never freed here: that would wait for its threads.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._session))
            self._open()
        return self._session
