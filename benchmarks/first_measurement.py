"""From a command to its first measurement: here, and at a service.

    python benchmarks/first_measurement.py zoo:squeezenet1_1 --rounds 3

Each round runs `tunery tune` twice: here, and at a service that has just begun, each with an empty store and cache.
Prints the seconds from the start of the command to the moment that the first record was stored, and the difference
that the service makes.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from service import serve
from tunery.reports.format import as_text, new_table
from tunery.store import open_store


def first_record_s(store: Path, environment: Mapping[str, str], command: Sequence[str]) -> float:
    """Run a command that tunes, and return the seconds from its start to the first record that is newly stored."""
    began = time.time()
    subprocess.run(
        [sys.executable, "-m", "tunery", "tune", *command], env=dict(environment), check=True, capture_output=True
    )
    with open_store(str(store), create=False) as opened:
        times = [trial.created_at for job in opened.jobs() for trial in opened.trials(job.job_id)]
    return min(at for at in times if at >= began) - began


def one_round(command: Sequence[str]) -> tuple[float, float]:
    """Return the seconds of a cold run here, and of one at a service that has just begun."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        base = os.environ | {"TUNERY_CACHE": str(place / "cache"), "XDG_DATA_HOME": str(place / "data")}
        here_s = first_record_s(place / "here.db", base | {"TUNERY_STORE": str(place / "here.db")}, command)
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        base = os.environ | {"TUNERY_CACHE": str(place / "cache"), "XDG_DATA_HOME": str(place / "data")}
        environment = base | {"TUNERY_STORE": str(place / "there.db")}
        server, told = serve(environment)
        try:
            there = [*command, "--server", told["url"]]
            there_s = first_record_s(place / "there.db", environment | {"TUNERY_TOKEN": told["token"]}, there)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)
    return here_s, there_s


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dialect", default="metaschedule")
    parser.add_argument("--budget", default="8trials")
    asked = parser.parse_args()
    command = [asked.model, "--dialect", asked.dialect, "--threads", "1", "--budget", asked.budget]
    rounds = [one_round(command) for _ in range(asked.rounds)]
    table = new_table("", "#here s", "#there s", "#difference s")
    for number, (here_s, there_s) in enumerate(rounds, 1):
        table.add_row(f"round {number}", f"{here_s:.2f}", f"{there_s:.2f}", f"{there_s - here_s:+.2f}")
    here, there = (median(of) for of in zip(*rounds, strict=True))
    table.add_row("median", f"{here:.2f}", f"{there:.2f}", f"{there - here:+.2f}")
    print(as_text(table, None))


if __name__ == "__main__":
    main()
