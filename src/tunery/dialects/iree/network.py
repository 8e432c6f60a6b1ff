"""Whole networks: compiled with several sets of flags and the tuning spec, of which the fastest one is delivered.
IREE's own best flags are among them and may win: a tuned network is never slower than these, as far as this machine's
noise can tell."""

import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from filecmp import cmp
from pathlib import Path

import numpy as np
from typing_extensions import override

from tunery._archive import Archive, ArchiveError, new_archive
from tunery._errors import DialectError, UsageError
from tunery._outputs import replacing
from tunery.dialects import Array, CompiledNetwork
from tunery.dialects._loaded import thread_count
from tunery.dialects.iree.kernel import Module, numpy_dtype
from tunery.dialects.iree.tools import (
    FLAGS,
    NAME,
    OPSET,
    REWRITINGS,
    REWRITTEN,
    SEARCHED,
    TUNED,
    VERSION,
    compile_module,
    cpu_flags,
    import_onnx,
)
from tunery.domain import Network, Target, TensorSpec
from tunery.domain.turns import Turn, in_turns

_FORMAT = "iree-1"
MODULE, SPEC, README, MODEL = "network.vmfb", "tuning.mlir", "README.md", "rewritten.onnx"
_ROUNDS = 9
_LEAST_S = 0.02
_TOLERANCE = 1e-2
TUNED_NAME = "tuned"


@dataclass(frozen=True)
class _Way:
    """Flags for the module `source`, which was made of the rewritten network `model`; None: of that as it is."""

    source: Path
    flags: tuple[str, ...]
    model: Path | None = None


@dataclass(frozen=True)
class Made:
    """A network compiled in the way called `name`; `model` is the rewritten network that it was made of, if any."""

    name: str
    flags: tuple[str, ...]
    function: str
    path: Path
    latencies_s: Mapping[str, float]
    model: Path | None = None


def fastest(network: Network, source: Path, target: Target, spec: str, directory: Path) -> Made:
    function, ways = function_of(source), _ways(network, source, spec, directory)
    if "mtriple" in target.config:
        return _fastest_elsewhere(network, function, ways, target, directory)
    times = _times(network, function, ways, target, directory)
    best = min(times, key=lambda name: times[name])
    return Made(best, ways[best].flags, function, directory / f"{best}.vmfb", times, ways[best].model)


def _fastest_elsewhere(network: Network, function: str, ways: dict[str, _Way], target: Target, directory: Path) -> Made:
    """What a spec gains on a machine of another kind cannot be seen here: it is used where its flags alone are the
    fastest way on this one."""
    here, refused = replace(target, config={"mcpu": "host"}), ""
    times = _times(network, function, {name: way for name, way in ways.items() if name != TUNED_NAME}, here, directory)
    for name in sorted(times, key=lambda one: times[one]):
        made = TUNED_NAME if TUNED_NAME in ways and ways[name].flags == TUNED else name
        path = directory / f"{made}.vmfb"
        try:
            compile_module(ways[made].source, [*cpu_flags(target.config), *ways[made].flags], path)
        except DialectError as error:
            refused = str(error)
        else:
            return Made(made, ways[made].flags, function, path, {}, ways[made].model)
    raise DialectError(refused)


def _ways(network: Network, source: Path, spec: str, directory: Path) -> dict[str, _Way]:
    from tunery.dialects.iree.rewriting import rewrite  # it needs onnx, which whoever runs a file need not have

    ways = {name: _Way(source, flags) for name, flags in {**FLAGS, **SEARCHED}.items()}
    if spec:
        (directory / SPEC).write_text(spec)
        ways[TUNED_NAME] = _Way(source, (*TUNED, f"--iree-codegen-tuning-spec-path={directory / SPEC}"))
    models: list[Path] = []
    for name, winograd in REWRITINGS.items():
        model, module = directory / f"{name}.onnx", directory / f"{name}.mlir"
        if not rewrite(Path(network.path), model, winograd=winograd):
            continue
        if all(not cmp(model, other, shallow=False) for other in models):
            models.append(model)
            import_onnx(model, module)
            ways[name] = _Way(module, REWRITTEN, model)
    return ways


def _times(
    network: Network, function: str, ways: Mapping[str, _Way], target: Target, directory: Path
) -> dict[str, float]:
    modules: dict[str, Module] = {}
    refused: dict[str, str] = {}
    for name, way in ways.items():
        path = directory / f"{name}.vmfb"
        try:
            compile_module(way.source, [*cpu_flags(target.config), *way.flags], path)
            modules[name] = Module(path.read_bytes(), function, target.threads)
        except DialectError as error:
            refused[name] = str(error)
    refused |= _wrong(network, modules)
    if len(refused) == len(ways):
        raise DialectError(next(iter(refused.values())))
    return _timed({name: module for name, module in modules.items() if name not in refused})


def function_of(source: Path) -> str:
    with source.open(encoding="utf-8", errors="replace") as file:
        found = re.search(r"func\.func @([\w$.-]+|\"[^\"]+\")\(", file.read(1 << 16))
    if found is None:
        raise DialectError("IREE's importer has written no function")
    return re.sub(r"(?:\\[0-9A-F]{2})+", _decoded, found[1].strip('"'))


def _decoded(found: re.Match[str]) -> str:
    return bytes.fromhex(found[0].replace("\\", "")).decode(errors="replace")


def _wrong(network: Network, modules: Mapping[str, Module]) -> dict[str, str]:
    """Run each on the same inputs; return which ones compute something else than the first, the compiler's default."""
    rng = np.random.default_rng(0)
    inputs = [_random(spec, rng) for spec in network.inputs]
    expected: list[Array] = []
    wrong = {}
    for name, module in modules.items():
        module.give(inputs)
        try:
            module.call()
            found = module.results(network.outputs)
        except DialectError as error:
            wrong[name] = str(error)
            continue
        if not expected:
            expected = found
        elif not all(_close(one, other) for one, other in zip(found, expected, strict=True)):
            wrong[name] = "it computes something else than IREE's default"
    return wrong


def _close(found: Array, expected: Array) -> bool:
    if found.shape != expected.shape:
        return False
    if found.dtype.kind in "biu":
        return bool(np.array_equal(found, expected))
    left, right = found.astype(np.float64), expected.astype(np.float64)
    return bool(
        np.allclose(left, right, _TOLERANCE, _TOLERANCE * max(1e-6, float(np.nanmax(np.abs(right), initial=0))))
    )


def _random(spec: TensorSpec, rng: np.random.Generator) -> Array:
    dtype = numpy_dtype(spec.dtype)
    if dtype.kind in "biu":
        return rng.integers(0, 2, spec.shape).astype(dtype)
    return rng.standard_normal(spec.shape).astype(dtype)


def _timed(modules: Mapping[str, Module]) -> dict[str, float]:
    """Return the seconds of the fastest call of each, called in turns: other load only adds to it."""
    if not modules:
        raise DialectError("IREE computes nothing of this network")
    calls = {name: max(1, min(50, round(_LEAST_S / module.call()))) for name, module in modules.items()}
    turns: list[Turn[str, float]] = []
    for turn, name in in_turns(turns, lambda: list(modules), lambda turns: len(turns) == _ROUNDS):
        turn.taken[name] = min(modules[name].call() for _ in range(calls[name]))
    return {name: min(turn.taken[name] for turn in turns) for name in modules}


def commands(network: Network, target: Target, flags: Sequence[str], *, spec: bool, rewritten: bool = False) -> str:
    told = [f"--iree-codegen-tuning-spec-path={SPEC}"] if spec else []
    plain = [flag for flag in flags if "tuning-spec-path" not in flag]
    make = ["iree-compile", "network.mlir", *cpu_flags(target.config), *plain, *told, "-o", MODULE]
    model = MODEL if rewritten else shlex.quote(f"{network.name}.onnx")
    return f"iree-import-onnx {model} -o network.mlir --opset-version {OPSET}\n{shlex.join(make)}\n"


def explained(spec: str, network: Network, target: Target) -> str:
    lines = commands(network, target, TUNED, spec=True).splitlines()
    return "".join(f"// {line}\n" for line in (f"made by tunery for {network.name} and IREE {VERSION}:", *lines)) + spec


def write(output: Path, network: Network, target: Target, made: Made, spec: str) -> None:
    readme = (
        f"# {network.name}, tuned\n\n`{MODULE}` runs with IREE {VERSION}'s runtime, by `--function={made.function}`.\n"
        "It was made by\n\n```\n"
        f"{commands(network, target, made.flags, spec=made.name == TUNED_NAME, rewritten=made.model is not None)}```\n"
    )
    with replacing(output) as part, new_archive(part) as archive:
        archive.add(MODULE, made.path)
        if made.model is not None:
            archive.add(MODEL, made.model)
        for name, text in ((SPEC, spec and explained(spec, network, target)), (README, readme)):
            if text:
                with archive.member(name) as member:
                    member.write(text.encode())
        archive.finish({
            "dialect": NAME, "format": _FORMAT, "network": network.name, "digest": network.digest,
            "machine": str(target.config.get("mtriple") or platform.machine()).partition("-")[0],
            "threads": target.threads, "iree": VERSION, "flags": made.name, "function": made.function,
            "latencies_s": {name: round(found, 9) for name, found in made.latencies_s.items()},
            "inputs": [[one.name, list(one.shape), one.dtype] for one in network.inputs],
            "outputs": [[one.name, list(one.shape), one.dtype] for one in network.outputs],
        })  # fmt: skip


def members(archive: Archive) -> dict[str, bytes]:
    return {name: archive.read(name) for name in (MODULE, SPEC, README, MODEL) if name in archive.members}


class IreeNetwork(CompiledNetwork):
    """A whole network in IREE's runtime."""

    def __init__(self, archive: Archive, threads: int | None = None) -> None:
        manifest, binary = archive.manifest, archive.read(MODULE)
        if manifest["format"] != _FORMAT or manifest["iree"] != VERSION:
            raise ArchiveError(f"it is of IREE {manifest['iree']!r:.20}, not {VERSION}")
        machine = str(manifest.get("machine", platform.machine()))
        if machine != platform.machine():
            raise UsageError(f"{archive.path} was compiled for {machine}, and this machine is {platform.machine()}")
        self.threads = thread_count(threads, manifest["threads"])
        self.inputs = tuple(TensorSpec(name, tuple(shape), dtype) for name, shape, dtype in manifest["inputs"])
        self.outputs = tuple(TensorSpec(name, tuple(shape), dtype) for name, shape, dtype in manifest["outputs"])
        self._module = Module(binary, str(manifest["function"]), self.threads)

    @override
    def _run(self, arrays: Sequence[Array]) -> list[Array]:
        self._module.give(arrays)
        self._module.call()
        return self._module.results(self.outputs)

    @override
    def time(self, arrays: Sequence[Array], calls: int) -> float:
        self._module.give(self.checked(arrays))
        return self._module.call(calls)
