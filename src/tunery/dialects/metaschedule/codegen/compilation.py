"""Compiling a whole network with chosen candidates, and running the result."""

import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tunery._errors import DialectError, UsageError
from tunery._outputs import replacing
from tunery.dialects import Built, Compiled
from tunery.dialects.metaschedule._tvm import relax, tvm
from tunery.dialects.metaschedule.codegen import vector_math  # noqa: F401 - its rules for exp and erf
from tunery.dialects.metaschedule.codegen.exact import exact
from tunery.dialects.metaschedule.codegen.linking import link
from tunery.dialects.metaschedule.codegen.parts import (
    CompiledPart,
    Transforms,
    constant_everywhere,
    read_part,
    take_over,
    transform_arguments,
    usable,
)
from tunery.dialects.metaschedule.codegen.regions import estimate_regions
from tunery.dialects.metaschedule.importing.lowering import Lowered, take_lowered
from tunery.dialects.metaschedule.loading.archive import LIBRARY, manifest_of, write_archive
from tunery.dialects.metaschedule.loading.weights import Weight
from tunery.dialects.metaschedule.reasons import reason_of
from tunery.dialects.metaschedule.target import instructions
from tunery.dialects.metaschedule.variants.program import UNSCHEDULED, check_key, open_variant, replay, tvm_target
from tunery.dialects.metaschedule.variants.variant import Variant, read_body, read_left_out, variants_of
from tunery.domain import WHOLE, Candidate, Network, Target

_log = logging.getLogger(__name__)


def compile_network(
    network: Network,
    target: Target,
    chosen: Mapping[str, Candidate],
    output: Path,
    parts: Mapping[str, Built] = MappingProxyType({}),
) -> Compiled:
    """Build the network and write one file: a zip of the shared object, its weights and a JSON manifest. `parts` holds,
    by workload key, chosen candidates as object files, which are linked as they are."""
    if parts:
        try:
            return _compile(network, target, chosen, output, parts)
        except DialectError as error:  # whatever it is, it costs the time that parts were to save, no more
            _log.warning("%s is compiled without what was built before: %s", network.name, error)
    return _compile(network, target, chosen, output, {})


def _compile(
    network: Network, target: Target, chosen: Mapping[str, Candidate], output: Path, parts: Mapping[str, Built]
) -> Compiled:
    lowered = take_lowered(network, target)
    found = _parts(lowered, chosen, parts)
    module, coverage = _schedule(lowered, target, chosen, found)
    try:
        whole, weights = take_over(_prepacked(module, target), found)
        whole = estimate_regions(exact(whole))
        executable = tvm.compile(whole, tvm_target(target), relax_pipeline=_finish())
    except Exception as error:
        raise DialectError(f"TVM cannot compile {network.name}: {reason_of(error)}") from error
    objects = sorted({part.path for part in found.values()})
    kernels = {name: key for name, (_, key) in lowered.functions.items() if lowered.calls.get(name)}
    manifest = manifest_of(network, target, coverage, kernels)
    manifest["instructions"] = sorted(instructions(target.config))
    linking = _linking(target.config)
    segments = [segment.model for segment in lowered.segments]
    digest = _write(executable, linking, objects, weights, segments, manifest, output)
    left_out = {WHOLE: lowered.left_out} if lowered.left_out else dict[str, Mapping[str, str]]()
    left_out |= _left_out(lowered, chosen, found)
    return Compiled(str(output), coverage, left_out, lowered.elsewhere, digest, lowered.not_kept)


def _left_out(
    lowered: Lowered, chosen: Mapping[str, Candidate], parts: Mapping[str, CompiledPart]
) -> dict[str, Mapping[str, str]]:
    """Return, by workload, what the searches of what was chosen did without; parts know also what did not apply."""
    known = {key: parts[name].left_out for name, (_, key) in lowered.functions.items() if name in parts}
    return {key: why for key, one in chosen.items() if (why := known.get(key) or read_left_out(one.body))}


def _parts(lowered: Lowered, chosen: Mapping[str, Candidate], built: Mapping[str, Built]) -> dict[str, CompiledPart]:
    found = {}
    for name, (_, key) in lowered.functions.items():
        part = read_part(built[key], key, chosen[key]) if key in chosen and key in built else None
        if part is not None and usable(lowered.module, name, part):
            found[name] = part
    return found


def _schedule(
    lowered: Lowered, target: Target, chosen: Mapping[str, Candidate], parts: Mapping[str, CompiledPart]
) -> tuple[Any, dict[str, str | None]]:
    """Put each chosen candidate's program in place of the unscheduled one, where it has no part in `parts`. Return the
    module and the candidate by workload key. A candidate that does not replay to the program its key names is not used:
    its coverage is None."""
    coverage: dict[str, str | None] = {}
    transforms: dict[str, Transforms] = {}
    for name in lowered.module.get_global_vars():
        if name.name_hint not in lowered.functions or not lowered.calls.get(name.name_hint):
            continue
        key = lowered.functions[name.name_hint][1]
        candidate = chosen.get(key)
        coverage[key] = candidate.key if candidate else None
        if candidate is None or candidate.body == UNSCHEDULED or name.name_hint in parts:
            continue
        try:
            variant = _variant(lowered, name.name_hint, target, candidate)
            scheduled = replay(open_variant(variant, tvm_target(target)), candidate.body).mod
            check_key(scheduled, candidate)
        except DialectError:
            coverage[key] = None  # a record that does not hold any more costs its operator only
            continue
        if variant.transforms:
            transforms[name.name_hint] = variant.transforms
        function = scheduled["main"]
        original = lowered.module[name]
        function = function.with_attr("tirx.is_scheduled", True)
        if original.attrs and "global_symbol" in original.attrs:
            function = function.with_attr("global_symbol", original.attrs["global_symbol"])
        else:
            function = function.without_attr("global_symbol")
        lowered.module.update_func(name, function)
    return transform_arguments(lowered.module, transforms), coverage


def _variant(lowered: Lowered, function: str, target: Target, candidate: Candidate) -> Variant:
    name, _ = read_body(candidate.body)
    found = variants_of(lowered.functions[function][0], tvm_target(target)).found
    if name not in found:
        raise DialectError(f"this workload has no variant {name}")
    if not constant_everywhere(lowered.module, function, found[name].transforms):
        raise DialectError(f"variant {name} needs constants that this network does not have")
    return found[name]


def _prepacked(module: Any, target: Target) -> Any:
    """Split weight packing from the kernels and evaluate it now, on the constants. The pass that splits fails on
    programs with several loop nests, so it sees only those whose weights may be packed."""
    others = {
        name: function
        for name, function in module.functions_items()
        if isinstance(function, tvm.tirx.PrimFunc) and "layout_free_buffers" not in (function.attrs or {})
    }
    packing = tvm.IRModule(
        {name: function for name, function in module.functions_items() if name not in others}, attrs=module.attrs
    )
    with tvm_target(target):
        packed = relax.transform.SplitLayoutRewritePreproc()(packing)
        for name, function in others.items():
            packed.update_func(name, function)
        return tvm.transform.Sequential([relax.transform.FoldConstant(), relax.transform.DeadCodeElimination()])(packed)


def _finish() -> Any:
    """Return Relax's lowering to the virtual machine for a module that is legalised and scheduled already."""
    return tvm.transform.Sequential(
        [
            relax.transform.RewriteDataflowReshape(),
            relax.transform.ToNonDataflow(),
            relax.transform.RemovePurityChecking(),
            relax.transform.CallTIRRewrite(),
            relax.transform.StaticPlanBlockMemory(),
            relax.transform.LowerAllocTensor(),
            relax.transform.KillAfterLastUse(),
            relax.transform.LowerRuntimeBuiltin(),
            relax.transform.ComputePrimValue(),
            relax.transform.VMShapeLower(),
            relax.transform.AttachGlobalSymbol(),
        ]
    )


def _write(  # noqa: PLR0917 - what a file holds
    executable: Any,
    linking: Any,
    objects: Sequence[Path],
    weights: Sequence[Weight],
    segments: Sequence[bytes],
    manifest: Mapping[str, Any],
    output: Path,
) -> str:
    """Write a network's file, and return its SHA-256."""
    try:
        with tempfile.TemporaryDirectory(prefix="tunery-") as scratch, replacing(output) as part:
            library = Path(scratch, LIBRARY)
            executable.export_library(str(library), fcompile=linking, addons=[str(path) for path in objects])
            return write_archive(part, manifest, library, weights, segments)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}; name another file") from error


def _linking(config: Mapping[str, Any]) -> Any:
    def link_all(output: str, objects: Sequence[str] | str, **_: Any) -> None:
        link([Path(o) for o in ([objects] if isinstance(objects, str) else objects)], Path(output), config)

    link_all.output_format = "so"  # type: ignore[attr-defined]  # read by export_library
    return link_all
