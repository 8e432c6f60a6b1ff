"""Stock MetaSchedule in a process of its own: `python -m studies._stock_child tune|compile DIRECTORY`.

Nothing of tunery's compiler room is imported here: neither its cheaper start, nor its settings, nor its code for exp.
The steps are those of TVM's own `static_shape_tuning_pipeline` and `compile_relax`, all settings at their defaults.
With `channels_last` in the plan the imported network's convolutions are laid out so first, no default of TVM's.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from studies._children import end_with_parent

PLAN, TASKS, LIBRARY = "plan.json", "tasks.json", "network.so"
DATABASE, WORKLOADS = "database_tuning_record.json", "database_workload.json"

_BATCH = 64
"""Its default; with fewer trials for a task its first task would get all of them."""


def main(verb: str, directory: str) -> None:
    """Tune, or compile from what the tuning found; `directory` holds the plan and gets what is made."""
    end_with_parent()
    work = Path(directory)
    plan = json.loads((work / PLAN).read_text(encoding="utf-8"))
    # As its documentation has it: all cores of the kernel, by the one setting it reads.
    os.environ["TVM_NUM_THREADS"] = str(plan["threads"])
    {"tune": tune, "compile": compile_network}[verb](work, plan)


def tune(work: Path, plan: dict[str, Any]) -> None:
    """Tune all tasks at once with MetaSchedule's own task scheduler, `plan["trials"]` for each in the mean."""
    import tvm
    from tvm import relax
    from tvm.s_tir import meta_schedule
    from tvm_ffi import structural_hash

    target = tvm.target.Target(plan["target"])
    with target:
        lowered = relax.get_pipeline("zero")(_imported(plan))
    extracted = meta_schedule.relax_integration.extract_tasks(lowered, target)
    contexts, weights = meta_schedule.relax_integration.extracted_tasks_to_tune_contexts(
        extracted, str(work), seed=plan["seed"]
    )
    tasks = [
        {"name": str(context.task_name), "hash": str(structural_hash(context.mod)), "weight": int(weight)}
        for context, weight in zip(contexts, weights, strict=True)
    ]
    (work / TASKS).write_text(json.dumps(tasks), encoding="utf-8")
    meta_schedule.tune.tune_tasks(
        tasks=contexts, task_weights=weights, work_dir=str(work), max_trials_global=plan["trials"] * len(tasks),
        num_trials_per_iter=min(plan["trials"], _BATCH),
    )  # fmt: skip


def compile_network(work: Path, plan: dict[str, Any]) -> None:
    """Build the network from the database, TVM's default where a task has no valid record, as a shared object."""
    import tvm
    from tvm.s_tir import meta_schedule

    database = meta_schedule.database.JSONDatabase(work_dir=str(work))
    target = tvm.target.Target(plan["target"])
    executable = meta_schedule.relax_integration.compile_relax(database, _imported(plan), target, None)
    executable.export_library(str(work / LIBRARY))


def _imported(plan: dict[str, Any]) -> Any:
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    passes = [relax.transform.DecomposeOpsForInference(), relax.transform.CanonicalizeBindings()]
    if plan.get("channels_last"):
        passes += [relax.transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "HWIO"]}), relax.transform.Normalize()]
    with tvm.target.Target(plan["target"]):
        return tvm.transform.Sequential(passes)(from_onnx(onnx.load(plan["model"])))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
