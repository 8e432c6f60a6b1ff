"""Writes the winners that ship with tunery, from stores in which networks were tuned.

python tools/ship_winners.py STORE.db [STORE.db ...]

Workloads of the networks that `tunery study zero-shot` holds out are left out, whoever tuned them. All must have been
tuned on devices with vectors of one length; what is written says for which.
"""

import argparse
from collections import Counter
from contextlib import closing
from pathlib import Path

from ship_model import HELD_OUT, hidden_workloads
from tunery.dialects.metaschedule.search.winners import Winner, dumps, winners_of

from tunery.dialects.metaschedule.variants.program import space_of, tvm_target
from tunery.dialects.metaschedule.variants.vectors import lanes_of
from tunery.domain import Mode, Outcome, Task
from tunery.store import Store, open_store

_MEASURED = {Outcome.OK, Outcome.ABANDONED}


def main() -> None:
    """Collect, print what there is, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stores", type=Path, nargs="+")
    chosen = parser.parse_args()
    hidden = hidden_workloads()
    found: dict[str, list[Winner]] = {}
    networks: set[str] = set()
    lanes = set()
    for path in chosen.stores:
        with closing(open_store(str(path))) as store:
            owners = store.owners()
            for task in store.tasks():
                held = set(owners.get(task.workload.key, ()))
                if not task.tunable or task.workload.key in hidden or held & set(HELD_OUT):
                    continue
                won = winners_of(task, _measured(store, task)) if space_of(task).tunable else []
                if won:
                    found[task.key] = won
                    networks |= held
                    lanes.add(lanes_of(tvm_target(task.target)))
    if len(lanes) != 1:
        raise SystemExit(f"winners are for vectors of one length, and here there are {len(lanes)}")
    winners = [winner for won in found.values() for winner in won]
    name = f"winners-{32 * lanes.pop()}.json.gz"
    file = Path(__file__).parent.parent / "src/tunery/dialects/metaschedule/data" / name
    card = {"tasks": len(found), "networks": sorted(networks), "held_out": HELD_OUT}
    file.write_bytes(dumps(winners, card))
    print(f"{len(winners)} winners of {len(found)} tasks of {len(networks)} networks: {file}")
    print(Counter(winner.expression for winner in winners if winner.behind == 1.0))


def _measured(store: Store, task: Task) -> list[tuple[str, float]]:
    """Return the bodies of a task's candidates with their latencies in seconds, of finals as far as there are any.

    Of others, those of their races, in the ratio of the two that the fastest final had.
    """
    latest: dict[Mode, dict[str, float]] = {mode: {} for mode in Mode}
    bodies = {}
    for record in store.records(task.key, outcomes=_MEASURED):
        if record.measurement.latency_s:
            latest[record.measurement.mode][record.candidate.key] = record.measurement.latency_s
            bodies[record.candidate.key] = record.candidate.body
    finals, races = latest[Mode.FINAL], latest[Mode.RACE]
    both = [finals[key] / races[key] for key in sorted(finals, key=lambda key: finals[key]) if key in races]
    ratio = both[0] if both else 1.0
    latencies = {key: ratio * latency_s for key, latency_s in races.items()} | finals
    return [(bodies[key], latency_s) for key, latency_s in latencies.items()]


if __name__ == "__main__":
    main()
