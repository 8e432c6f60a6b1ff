"""Networks through IREE: its default, its best flags, tuned by us, and ONNX Runtime; same threads, in turns.

    python benchmarks/iree_networks.py [--budget 10min] [--networks squeezenet1_1,bert-tiny] [--threads 1]

It needs `tunery dialects install iree`. Without --networks it takes six that were drawn from 49 convolutional ones, by
`random.Random(35).sample`, before the rules were made, and not looked at for them. Each row is added to --json as a
line when it is known, with the load of the machine (runnable processes for each core) before and after; --table prints
the table of that file alone.
"""

import argparse
import json
import math
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rows import Kept, Row

from tunery._archive import Archive
from tunery.dialects import NetworkCompiler, get_dialect
from tunery.dialects.iree.tools import FLAGS
from tunery.domain import Budget, Network
from tunery.domain.request import Request
from tunery.measuring.inputs import make_inputs
from tunery.models import prepare
from tunery.service.session import query, tune

NETWORKS = "resnetv2_50,mnasnet1_0,efficientnet_b2,vgg11,efficientnet_es,inception_v3"
ROUNDS = 9
LEAST_S = 0.1


def main() -> None:
    """Read what is asked for, and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="10min")
    parser.add_argument("--networks", default=NETWORKS)
    parser.add_argument("--store", default="out/iree.db")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", default="out/iree_networks.jsonl")
    parser.add_argument("--table", action="store_true", help="print the table of what is known, and measure nothing")
    options = parser.parse_args()
    file = Path(options.json)
    if not options.table:
        kept = Kept(file, __file__, budget=options.budget, threads=options.threads)
        for name in options.networks.split(","):
            request = Request(
                f"zoo:{name}", dialect="iree", threads=options.threads, store=options.store,
                budget=Budget.parse(options.budget),
            )  # fmt: skip
            kept.add(measure(name, request))
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    print(table([json.loads(line) for line in lines]) if lines else f"{file} has no rows; run it without --table")


def measure(name: str, request: Request) -> Row:
    """Tune one network, and time what IREE and ONNX Runtime make of it."""
    before = os.getloadavg()[0] / (os.cpu_count() or 1)
    report = tune(request)
    answer = query(request)
    dialect = get_dialect("iree")
    compiler = NetworkCompiler.of(dialect)
    chosen = {
        task.workload.key: choice.candidate
        for task, choice in zip(answer.tasks, answer.choices, strict=True)
        if choice.candidate is not None
    }
    with tempfile.TemporaryDirectory(prefix="tunery-iree-bench-") as scratch:
        network = prepare(request.model, {}, Path(scratch))
        file = Path(scratch) / "network.tunery"
        compiled = compiler.compile(network, dialect.resolve_target("native", request.threads), chosen, file)
        with Archive(file) as archive:
            manifest, loaded = archive.manifest, compiler.load_network(archive, request.threads)
        inputs = make_inputs(network.inputs, 0)
        session = onnxruntime_session(network, request.threads)
        feed = {spec.name: one for spec, one in zip(network.inputs, inputs, strict=True)}
        theirs = session.run(None, feed)
        error = max(
            float(np.max(np.abs(one.astype(float) - other.astype(float)), initial=0))
            for one, other in zip(loaded(*inputs), theirs, strict=True)
        )
        times = in_turns({"delivered": lambda: loaded(*inputs), "onnxruntime": lambda: session.run(None, feed)})
    flags = {way: found for way, found in manifest["latencies_s"].items() if way in FLAGS}
    return {
        "network": name, "latencies_s": manifest["latencies_s"], "best_flags": min(flags, key=lambda way: flags[way]),
        "delivered_way": manifest["flags"], "covered": sum(one is not None for one in compiled.coverage.values()),
        "tasks": len(answer.tasks), "trials": report.job.spend.trials, "in_turns_s": times, "max_abs_error": error,
        "load_per_core": [round(before, 1), round(os.getloadavg()[0] / (os.cpu_count() or 1), 1)],
    }  # fmt: skip


def onnxruntime_session(network: Network, threads: int) -> Any:
    """Return the network in ONNX Runtime, whose threads do not spin beside ours."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(network.path, options, providers=["CPUExecutionProvider"])


def in_turns(ways: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the seconds of the fastest call of each, called in turns: other load only adds to it."""

    def seconds(call: Callable[[], object]) -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    calls = {name: max(2, round(LEAST_S / seconds(call))) for name, call in ways.items()}
    samples = [
        {name: min(seconds(call) for _ in range(calls[name])) for name, call in ways.items()} for _ in range(ROUNDS)
    ]
    return {name: min(one[name] for one in samples) for name in ways}


def table(rows: list[Row]) -> str:
    """Return the rows as a table in Markdown: milliseconds."""
    lines = [
        "| network | threads | IREE default | its best flags | tuned | gain | ONNX Runtime | load per core |",
        "| --- | ---: | ---: | --- | --- | ---: | ---: | ---: |",
    ]
    gains = []
    for row in rows:
        found = {way: seconds * 1e3 for way, seconds in row["latencies_s"].items()}
        best = found[row["best_flags"]]
        way = min((way for way in found if way not in FLAGS), key=lambda way: found[way], default=row["best_flags"])
        tuned, gain = found[way], best / min(found[way], best)
        gains.append(gain)
        # What ONNX Runtime takes, on the scale of the others: the two were measured in turns.
        theirs = found[row["delivered_way"]] * row["in_turns_s"]["onnxruntime"] / row["in_turns_s"]["delivered"]
        lines.append(
            f"| {row['network']} | {row['threads']} | {found['default']:.2f} | {best:.2f} ({row['best_flags']}) | "
            f"{tuned:.2f} ({way}) | {gain:.2f}x | {theirs:.2f} | "
            f"{max(row['load_per_core']):.1f} |"
        )
    mean = math.exp(sum(map(math.log, gains)) / len(gains))
    return "\n".join([*lines, f"| geometric mean |  |  |  |  | {mean:.2f}x |  |  |"])


if __name__ == "__main__":
    main()
