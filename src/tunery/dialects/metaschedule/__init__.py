"""Apache TVM's MetaSchedule as a dialect.

lowering     prepared ONNX file -> fused tensor programs in NHWC
extraction   -> tasks
program      programs and candidates as data
variants     several programs for one workload
place_sums, concatenations, rows: others; tiles: sums of products from register tiles, Winograd's among them
proposer     the search of one program; portfolio: one for each variant
genomes      candidates as decisions alone; breeding: new ones; draft: which of them are worth a replay
limits       what is not worth a build
features     per-store features, and how the search sees our model
specimens    small programs of known kinds, to calibrate a device with
kernel       build, load and run one candidate; splitting: packing of its weights
vector_math  exp and erf without the C library
bundling     a network with what runs it from C; combining: one file of several
compilation  the whole network; parts: kernels that were built before; archive: its file
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from tunery._archive import Archive, ArchiveWriter
from tunery._processor import granted_cores
from tunery.costmodels.columns import STORES, FeatureRows, Layout
from tunery.devices import Device
from tunery.dialects import (
    Built,
    Codegen,
    Compiled,
    CompiledNetwork,
    CrossCompiler,
    Dialect,
    Kernel,
    NetworkCompiler,
    Observation,
    Proposer,
    RecordChecker,
    Space,
    Suggestions,
    TaskSource,
)
from tunery.dialects.metaschedule.doctor import PACKAGES, all_checks
from tunery.domain import Candidate, Check, DeviceDescription, Environment, Network, Target, Task, Workload

if TYPE_CHECKING:
    from tunery.dialects.metaschedule.features.features import FeatureCache


class MetaScheduleDialect(Dialect, TaskSource, Space, Codegen, CrossCompiler, NetworkCompiler, RecordChecker):
    """TVM MetaSchedule for CPUs. Everything of TVM's is imported on first use."""

    name = "metaschedule"
    packages = PACKAGES

    def __init__(self) -> None:
        self._features: dict[str, FeatureCache] = {}

    @cached_property
    @override
    def compiler(self) -> str:
        return f"apache-tvm {version('apache-tvm')} ffi {version('apache-tvm-ffi')} lowering {_LOWERING} build {_BUILD}"

    @override
    def family(self, config: Mapping[str, Any]) -> str:
        from tunery.dialects.metaschedule.families import family

        return family(config)

    @override
    def environment(self) -> Environment:
        return ENVIRONMENT

    @override
    def doctor(self) -> Iterable[Check]:
        return all_checks()

    @override
    def resolve_target(self, spec: str, threads: int) -> Target:
        from tunery.dialects.metaschedule.target import resolve

        return resolve(self.name, spec, threads or granted_cores())

    @override
    def resolve_target_of(self, spec: str, threads: int, device: DeviceDescription) -> Target:
        from tunery.dialects.metaschedule.target import resolve

        return resolve(self.name, spec, threads or len(device.cores), device)

    @override
    def extract(self, network: Network, target: Target) -> list[Task]:
        from tunery.dialects.metaschedule.importing.extraction import tasks_of
        from tunery.dialects.metaschedule.importing.lowering import lower_and_keep

        return tasks_of(lower_and_keep(network, target), target)

    @override
    def elsewhere(self, network: Network, target: Target) -> Mapping[str, str]:
        from tunery.dialects.metaschedule.importing.lowering import take_lowered

        return take_lowered(network, target).elsewhere

    @override
    def open(
        self,
        task: Task,
        history: Sequence[Observation],
        cost_model: str | None,
        seed: int,
        *,
        warm_start: bool = False,
        generic_only_reason: str | None = None,
    ) -> Proposer:
        from tunery.dialects.metaschedule.features.features import FeatureCache
        from tunery.dialects.metaschedule.search.first_look import open_search
        from tunery.dialects.metaschedule.search.proposer import SingleProposer
        from tunery.dialects.metaschedule.variants.program import space_of, variants

        if not space_of(task).tunable:
            return SingleProposer(task, variants(task).found, history, generic_only_reason=generic_only_reason)
        # A task that is opened again has programs that were looked at already.
        features = self._features.setdefault(task.key, FeatureCache())
        return open_search(
            task, history, cost_model, seed, features, warm_start=warm_start, generic_only_reason=generic_only_reason
        )

    @override
    def suggest(
        self,
        task: Task,
        n: int,
        cost_model: str,
        seed: int,
        transfer_states: Sequence[str] = (),
        *,
        several_fallbacks: bool = False,
    ) -> Suggestions:
        from tunery.dialects.metaschedule.features.features import FeatureCache
        from tunery.dialects.metaschedule.search.suggestions import suggest
        from tunery.dialects.metaschedule.variants.program import space_of

        if not space_of(task).tunable:
            only = tuple(self.open(task, (), cost_model, seed).propose(n + 1))
            return Suggestions(only[:1], fallbacks=only[1:])  # no search: the model is not asked which
        features = self._features[task.key] = FeatureCache()
        return suggest(task, n, cost_model, seed, features, several_fallbacks=several_fallbacks)

    @override
    def build(self, task: Task, candidate: Candidate, directory: Path) -> Built:
        from tunery.dialects.metaschedule.codegen.kernel import build

        return build(task, candidate, directory)

    @override
    def build_part(self, task: Task, candidate: Candidate, directory: Path) -> Built | None:
        from tunery.dialects.metaschedule.codegen.kernel import build_part

        return build_part(task, candidate, directory)

    @override
    def load(self, task: Task, built: Built, device: Device) -> Kernel:
        from tunery.dialects.metaschedule.loading.kernel import TvmKernel

        return TvmKernel(task, built, device)

    @override
    def reference(self, task: Task) -> Candidate:
        from tunery.dialects.metaschedule.variants.program import reference

        return reference(task)

    @override
    def baseline(self, task: Task) -> Candidate:
        from tunery.dialects.metaschedule.variants.program import unscheduled

        return unscheduled(task)

    @override
    def peak_flops(self, target: Target) -> float | None:
        from tunery.dialects.metaschedule.codegen.calibration import peak_flops

        return peak_flops(target)

    @override
    def calibration_tasks(self, target: Target) -> Mapping[str, Task]:
        from tunery.dialects.metaschedule.codegen.calibration import calibration_tasks

        return calibration_tasks(target)

    @override
    def layout(self) -> Layout:
        return STORES

    @override
    def features(self, task: Task, candidates: Sequence[Candidate]) -> FeatureRows:
        from tunery.dialects.metaschedule.features.features import candidate_rows

        return FeatureRows(candidate_rows(task, candidates, self._features.get(task.key)), STORES)

    @override
    def reject(self, task: Task, candidate: Candidate) -> str | None:
        from tunery.dialects.metaschedule.families import is_of_this_machine
        from tunery.dialects.metaschedule.search.limits import beyond_cache, cache_share

        cache = self._features.get(task.key)
        row = cache.get(candidate.key) if cache else None
        if row is None or not is_of_this_machine(task.target.config):  # another machine's caches are not known here
            return None
        return beyond_cache(row, cache_share(task.target.threads)) or None

    @override
    def check_workload(self, workload: Workload) -> None:
        from tunery.dialects.metaschedule.importing.extraction import check_workload

        check_workload(workload)

    @override
    def check_body(self, body: str) -> None:
        from tunery.dialects.metaschedule.constructs import check_body

        check_body(body)

    @override
    def identify(self, task: Task, body: str) -> Candidate:
        from tunery.dialects.metaschedule.variants.program import identify

        return identify(task, body)

    @override
    def forget(self, task: Task) -> None:
        self._features.pop(task.key, None)

    @override
    def buffer_store_features(
        self, task: Task, candidates: Sequence[Candidate]
    ) -> list[npt.NDArray[np.float32]] | None:
        from tunery.dialects.metaschedule.features.features import candidate_stores

        return candidate_stores(task, candidates)

    @override
    def compile(
        self,
        network: Network,
        target: Target,
        chosen: Mapping[str, Candidate],
        output: Path,
        parts: Mapping[str, Built] = MappingProxyType({}),
    ) -> Compiled:
        from tunery.dialects.metaschedule.codegen.compilation import compile_network

        return compile_network(network, target, chosen, output, parts)

    @override
    def differing(
        self, network: Network, target: Target, inputs: Sequence[npt.NDArray[np.generic]]
    ) -> Mapping[str, str]:
        from tunery.dialects.metaschedule.codegen.trial import differing

        return differing(network, target, inputs)

    @override
    def load_network(self, archive: Archive, threads: int | None = None) -> CompiledNetwork:
        from tunery.dialects.metaschedule.loading.network import TvmNetwork

        return TvmNetwork(archive, threads)

    @override
    def bundle(self, archive: Archive, directory: Path, runtime: Path | None = None) -> None:
        from tunery.dialects.metaschedule.bundling.bundle import write_bundle

        write_bundle(archive, directory, runtime)

    @override
    def combine(self, parts: Sequence[Archive], writer: ArchiveWriter) -> list[dict[str, Any]]:
        from tunery.dialects.metaschedule.loading.archive import combine

        return combine(parts, writer)


ENVIRONMENT = Environment(
    preload=(
        "lightgbm",  # no thread of it starts before a fork
        "tunery.dialects.metaschedule.codegen.compilation",
        "tunery.dialects.metaschedule.importing.extraction",
        "tunery.dialects.metaschedule.search.proposer",
    ),
    measuring_preload=("tunery.dialects.metaschedule.loading.kernel",),
    variables={"TVM_BIND_THREADS": "0"},  # TVM otherwise moves every process to core 0, whatever its affinity
    thread_variables=("TVM_NUM_THREADS",),
    # Both carry LLVM and crash in one process; TVM imports torch where it can.
    forbidden=("torch",),
    libraries=("tvm", "tvm_ffi"),
)
# Part of every record's provenance: raise them with any change to how candidates become code. The cache of extracted
# tasks knows changes of this package by itself. A model that ships serves its own build only: what changes the
# code of few, as of products of two activations, raises the former.
_LOWERING, _BUILD = 8, 3
