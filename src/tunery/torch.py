"""Compiled networks as torch's modules, and tunery as a backend of `torch.compile`; both run on the CPU, for inference.

import tunery.torch

tuned = tunery.load(model.eval(), (image,)).on("native").within("10min").tune()
module = tunery.torch.wrap("resnet18.tunery")
scores = module(image)

fast = torch.compile(model.eval(), backend="tunery")
with torch.inference_mode():
    scores = fast(image)
"""

import hashlib
import importlib.util
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunery._errors import TuneryError, UsageError, brief
from tunery._extras import pip_install

try:
    import torch
    import torch._dynamo
    from torch.fx.experimental.proxy_tensor import get_proxy_mode
except ModuleNotFoundError as error:
    raise UsageError(f"tunery.torch needs {error.name}, which is not installed: {pip_install('torch')}") from None

from tunery._settings import cache_directory
from tunery.delivery.files.loading import Trusted, load_compiled

if TYPE_CHECKING:
    from tunery.dialects import CompiledNetwork

__all__ = ["CompiledModule", "compile_graph", "export", "wrap"]

Run = Callable[..., Any]
_SCRATCH, _MOST_BYTES = ".new-", 4 << 30
"""Of exported programs in the cache."""


class CompiledModule(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    """A compiled network as a module: tensors in, in the order of its inputs; a tensor out, or a tuple of several.

    Tensors are shared with the network, not copied. It has no parameters and computes no gradients. It works in torch's
    eager mode and within what `torch.compile` makes; what records a model (`torch.jit`, `torch.export`) cannot hold it.
    """

    def __init__(self, network: "CompiledNetwork") -> None:
        super().__init__()
        self.network = network

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # it is compiled already
    def forward(self, *tensors: Any) -> Any:
        """Run the network.

        Raises:
            UsageError: wrong number, shape or dtype of tensors, one that requires a gradient or is not on the CPU, or
                torch records what it runs.
        """
        if torch.jit.is_tracing() or get_proxy_mode() or torch._C._functorch.peek_interpreter_stack():
            raise UsageError(
                "what traces or transforms a model (torch.jit.trace, torch.onnx.export, torch.func) cannot look into a "
                "compiled network; call the module as it is or under torch.compile, or take the model it was made of"
            )
        outputs = tuple(torch.from_numpy(one) for one in self.network(*tensors))
        return outputs[0] if len(outputs) == 1 else outputs

    def extra_repr(self) -> str:
        """Return what it takes and gives."""
        return repr(self.network)


def wrap(path: str | Path, threads: int | None = None, *, trusted: Trusted | None = None) -> CompiledModule:
    """Return a compiled file as a module; the arguments are those of `tunery.load_compiled`.

    Raises:
        UsageError: as `tunery.load_compiled`.
    """
    return CompiledModule(load_compiled(path, threads, trusted=trusted))


def export(module: Any, example_inputs: Any, dynamic_shapes: Any = None) -> Path:
    """Export a module to a `.pt2` file in the user's cache directory, named by its class, and return that.

    `example_inputs` is a tuple of its arguments, or a dictionary of them by name; one tensor is the only argument.
    `dynamic_shapes` is as for `torch.export.export`.

    Raises:
        UsageError: it is no module, or in training mode, torch cannot export it, or the exporter to ONNX is missing.
    """
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"a {type(module).__name__} is neither the name of a model nor a module of torch; give one")
    name = type(module).__name__
    if any(one.training for one in module.modules()):
        raise UsageError(f"{name} is in training mode, in which it computes something else; call its eval() first")
    if importlib.util.find_spec("onnxscript") is None:
        raise UsageError(f"torch needs onnxscript to convert {name}; {pip_install('torch')}")
    inputs = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else example_inputs
    if not isinstance(inputs, tuple | list | Mapping) or not inputs:
        raise UsageError(f"{name} needs example inputs: a tuple of its arguments, or a dictionary of them by name")
    args, named = ((), dict(inputs)) if isinstance(inputs, Mapping) else (tuple(inputs), {})
    place = cache_directory() / "torch"
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=place) as scratch:
            made = Path(scratch, f"{name}.pt2")
            try:
                with torch.no_grad():
                    program = torch.export.export(module, args, named, dynamic_shapes=dynamic_shapes)
                torch.export.save(program, made)
            except Exception as error:  # of many kinds: an operator that is no function, a branch on values
                reason = brief(error, 300)
                raise UsageError(
                    f"torch cannot export {name}: {reason}; change that part, or export it to ONNX"
                ) from error
            with made.open("rb") as file:
                kept = place / hashlib.file_digest(file, "sha256").hexdigest()[:32] / made.name
            kept.parent.mkdir(exist_ok=True)
            made.replace(kept)
        _bound(place, kept.parent)
    except OSError as error:
        raise UsageError(f"{name} cannot be kept in {place}: {error.strerror}; set TUNERY_CACHE to another") from error
    return kept


def _bound(place: Path, latest: Path) -> None:
    """Remove the programs that were exported longest ago, beyond what they may take; never the latest."""
    with suppress(OSError):  # another process may do the same
        latest.touch()
        whole = [one for one in place.iterdir() if not one.name.startswith(_SCRATCH)]
        room = _MOST_BYTES
        for one in sorted(whole, key=lambda one: one.stat().st_mtime, reverse=True):
            room -= sum(file.stat().st_size for file in one.iterdir())
            if room < 0 and one != latest:
                shutil.rmtree(one, ignore_errors=True)


class _FallBackError(Exception):
    """Torch runs the graph, for a reason."""


def compile_graph(graph: Any, inputs: Sequence[Any]) -> Run:
    """Compile a graph of `torch.compile`: its backend `tunery`.

    Parameters and buffers become constants of the network. What cannot be compiled, or must not be since a gradient is
    wanted, runs as it is in torch, and a warning says why.
    """
    try:
        return _compiled(graph, inputs)
    except (_FallBackError, TuneryError) as reason:
        _warn(f"{reason}")
    run: Run = graph.forward
    return run


def _warn(reason: str) -> None:
    warnings.warn(f"torch runs this graph, not tunery: {reason}", stacklevel=3)


def _compiled(graph: Any, inputs: Sequence[Any]) -> Run:
    from tunery.domain.request import CompileOptions, Request
    from tunery.service.session import compile_model

    _check(graph, inputs)
    constants = {at: inputs[at] for at, node in enumerate(_placeholders(graph)) if _is_constant(node, inputs[at])}
    program = _exported(graph, inputs, constants)
    with tempfile.TemporaryDirectory(prefix="tunery-") as place:
        source, file = Path(place, "graph.pt2"), Path(place, "graph.tunery")
        torch.export.save(program, source)
        request = Request(str(source), threads=torch.get_num_threads(), trust=True)
        compile_model(request, file, CompileOptions(predict=True))
        network = load_compiled(file)
    if len(network.inputs) != len(inputs) - len(constants):
        raise _FallBackError("not all of its inputs are used")
    return _Constant(graph, CompiledModule(network), constants)


def _check(graph: Any, inputs: Sequence[Any]) -> None:
    """Raise `_FallBackError` for a graph that is not a function of tensors of the CPU to tensors, without gradients."""
    if torch.is_grad_enabled() and any(isinstance(one, torch.Tensor) and one.requires_grad for one in inputs):
        raise _FallBackError("it is to have gradients; call it under torch.inference_mode() or torch.no_grad()")
    if not inputs or not all(isinstance(one, torch.Tensor) for one in inputs):
        raise _FallBackError("it has a size that is not fixed, or no tensors; use torch.compile(..., dynamic=False)")
    if not all(one.device.type == "cpu" and one.layout == torch.strided for one in inputs):
        raise _FallBackError("it has tensors that are not dense ones of the CPU")
    outputs = graph.graph.output_node().args[0]
    if not all(isinstance(getattr(one, "meta", {}).get("example_value"), torch.Tensor) for one in outputs):
        raise _FallBackError("it gives something else than tensors")


def _placeholders(graph: Any) -> list[Any]:
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def _is_constant(node: Any, value: Any) -> bool:
    """Whether an input is a parameter or a buffer of a module, as torch marks them."""
    marked = node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type")
    return bool(marked) or isinstance(value, torch.nn.Parameter)


def _exported(graph: Any, inputs: Sequence[Any], constants: Mapping[int, Any]) -> Any:
    try:
        program = torch.export.export(
            _Frozen(graph, len(inputs), constants),
            tuple(one for at, one in enumerate(inputs) if at not in constants),
        )
        signature = program.run_decompositions({}).graph_signature  # it shows what operators write inside
    except Exception as error:  # of many kinds: an operator that is no function, a branch on values
        raise _FallBackError(f"torch cannot export it ({brief(error)})") from error
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        raise _FallBackError("it writes to its inputs or buffers; is the model in eval() mode?")
    return program


class _Frozen(torch.nn.Module):  # type: ignore[misc]
    """A graph some of whose inputs are constants."""

    def __init__(self, graph: Any, count: int, constants: Mapping[int, Any]) -> None:
        super().__init__()
        self._graph, self._count, self._at = graph, count, tuple(constants)
        for at, value in constants.items():
            self.register_buffer(f"constant{at}", value.detach())

    def forward(self, *given: Any) -> Any:
        rest = iter(given)
        return self._graph(
            *(getattr(self, f"constant{at}") if at in self._at else next(rest) for at in range(self._count))
        )


class _Constant:
    """Calls a network in whose place torch runs the graph once a parameter or buffer is another one, or was written."""

    def __init__(self, graph: Any, module: CompiledModule, constants: Mapping[int, Any]) -> None:
        self._graph, self._module = graph, module
        self._constants = [(at, one, _version(one)) for at, one in constants.items()]
        self._given: list[int] = [at for at in range(len(_placeholders(graph))) if at not in constants]
        self._stale = False

    def __call__(self, *inputs: Any) -> Any:
        if self._stale:
            return self._graph(*inputs)
        if not all(inputs[at] is one and _version(one) == version for at, one, version in self._constants):
            self._stale = True
            _warn("its weights have changed since; call torch.compiler.reset() to have it compiled again")
            return self._graph(*inputs)
        found = self._module(*(inputs[at] for at in self._given))
        return found if isinstance(found, tuple) else (found,)


def _version(tensor: Any) -> int:
    return -1 if tensor.is_inference() else int(tensor._version)


if "tunery" not in torch._dynamo.list_backends(exclude_tags=()):
    torch._dynamo.register_backend(compile_graph, "tunery")
