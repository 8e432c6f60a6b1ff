"""Building candidates to shared objects, and running them. A candidate that rewrites a weight's layout is split:
packing turns weights into their packed form once, `main` is what runs at each call. The artifact's JSON manifest says
how the arguments connect, and how weights are packed."""

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tunery._errors import DialectError
from tunery._outputs import replacing
from tunery.dialects import Built
from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.codegen import vector_math  # noqa: F401 - its rules for exp and erf
from tunery.dialects.metaschedule.codegen.exact import exact
from tunery.dialects.metaschedule.codegen.linking import link
from tunery.dialects.metaschedule.codegen.regions import estimate_regions
from tunery.dialects.metaschedule.codegen.splitting import split_prepack
from tunery.dialects.metaschedule.reasons import reason_of
from tunery.dialects.metaschedule.variants.program import REORDERED, scheduled_module, tvm_target, variants
from tunery.dialects.metaschedule.variants.variant import read_body, read_left_out
from tunery.domain import Candidate, Origin, Task

_UNFIT = re.compile(r"\W")  # for a symbol
# The compiler's own elimination of common subexpressions repeats what LLVM does (10 % of a build), and the argument
# checks of a kernel that only we call are code to compile for nothing.
_BUILD_OPTIONS = {"tirx.disable_cse_tir": True, "tirx.disable_assert": True}
# Above this, three runs of unoptimised code cost more than what not optimising it spares (docs/decisions/010).
_UNOPTIMISED_FLOP = 1e7
_ROUNDING = re.compile(r'"\w+\.(round|floor|ceil|trunc|nearbyint)"')
"""Operators after which a difference in a sum's last bit may become one of a whole number."""


def build(task: Task, candidate: Candidate, directory: Path) -> Built:
    """Compile a candidate to `directory/<candidate key>-<target key>.so`. The reference of a small task is not
    optimised, for nobody times it: it lies apart, its name ends in `-plain`."""
    path = _object_path(directory, candidate, task).with_suffix(".so")
    optimise = not _is_plain(task, candidate)
    if not optimise:
        path = path.with_stem(f"{path.stem}-plain")
    if not path.exists() or not path.with_suffix(".json").exists():
        _make(task, candidate, path, keep_object=False, optimise=optimise)
    return _built(candidate, path)


def build_part(task: Task, candidate: Candidate, directory: Path) -> Built:
    path = _object_path(directory, candidate, task)
    if not path.exists() or not path.with_suffix(".json").exists():
        _make(task, candidate, path, keep_object=True)
    return _built(candidate, path)


def _object_path(directory: Path, candidate: Candidate, task: Task) -> Path:
    """Return where a candidate's object file lies, if it was kept; the suffix of its manifest is `.json`."""
    return directory / f"{candidate.key}-{task.target.key}.o"


def _built(candidate: Candidate, path: Path) -> Built:
    return Built(candidate.key, path, path.with_suffix(".json").read_text())


def _is_plain(task: Task, candidate: Candidate) -> bool:
    """Whether a candidate only says what is right: as a baseline the same program is timed, and may be delivered."""
    workload = task.workload
    return (
        candidate.body == REORDERED
        and candidate.origin is not Origin.BASELINE
        and workload.flop <= _UNOPTIMISED_FLOP
        and all(spec.dtype.startswith("float") for spec in workload.output_specs)
        and not _ROUNDING.search(workload.program)
    )


def _make(task: Task, candidate: Candidate, path: Path, *, keep_object: bool, optimise: bool = True) -> None:
    """Write `path` and its manifest in one step each, and the object file on the way if it is to be kept."""
    kept, described = path.with_suffix(".o"), path.with_suffix(".json")
    with ExitStack() as stack:
        source = kept
        if not (kept.exists() and described.exists()):
            source = stack.enter_context(_object(kept, keep=keep_object))
            manifest = _generate(task, candidate, source, optimise=optimise)
            with replacing(described) as part:
                part.write_text(json.dumps(manifest))
        if not keep_object:
            link([source], stack.enter_context(replacing(path)), task.target.config)


@contextmanager
def _object(kept: Path, *, keep: bool) -> Iterator[Path]:
    if keep:
        with replacing(kept) as part:
            yield part
    else:
        with tempfile.TemporaryDirectory(prefix=".", dir=kept.parent) as scratch:
            yield Path(scratch, kept.name)


def _generate(task: Task, candidate: Candidate, destination: Path, *, optimise: bool) -> dict[str, Any]:
    entry = f"{_UNFIT.sub('_', task.workload.name)}_{candidate.key}"
    split = split_prepack(scheduled_module(task, candidate), task, entry)
    target = task.target if optimise else replace(task.target, config={**task.target.config, "opt-level": 0})
    try:
        with tvm.transform.PassContext(opt_level=3, config=_BUILD_OPTIONS):
            module = estimate_regions(exact(split.module))
            library = tvm.tirx.build(module, target=tvm_target(target))
        library.write_to_file(str(destination), "o")
    except Exception as error:
        raise DialectError(f"code generation failed: {reason_of(error)}") from error
    return {
        "workload": task.workload.key,
        "entry": entry,
        "prepack_inputs": split.prepack_inputs,
        "packed": split.packed,
        "call": split.call,
        "outputs": task.workload.outputs,
        "packing": split.packing,
        "weights": split.weights,
        **_variant(task, candidate),
    }


def _variant(task: Task, candidate: Candidate) -> dict[str, Any]:
    known = variants(task)
    left_out = {**known.left_out, **read_left_out(candidate.body)}
    variant = known.found[read_body(candidate.body)[0]]
    return {
        "transforms": list(variant.transforms.items()),
        "slack": variant.slack,
        "traits": {"expression": variant.name, "left_out": left_out},
    }
