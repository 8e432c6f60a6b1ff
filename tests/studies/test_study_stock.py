"""The study against stock MetaSchedule: what is read from outside, what is kept, and what is claimed."""

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from studies._children import Tick, Watched, watch
from studies.stock import Acts, Row, finished, run
from studies.stock_sides import (
    Checkpoint,
    Point,
    Side,
    deliver,
    moments,
    our_side,
    our_store,
    stock_batches,
    stock_curve,
    stock_file,
    stock_records,
)

from studies import Options, stock_sides
from tunery._errors import UsageError, WorkError
from tunery.domain.request import BenchReport, Latency, Request
from tunery.store import open_store

MODEL = "fake:study-stock?tasks=2&space=16x16x16"
CURVE = (Point(100.0, 150.0, 64, None), Point(500.0, 700.0, 128, 1.005e-3), Point(900.0, 1200.0, 192, 1e-3))
STOCK = Side("net", 3, 192, 0, 1e9, 1000.0, 1300.0, 1, CURVE)


def latency(median: float) -> Latency:
    return Latency(median, 0.9 * median, 1.1 * median, 50)


def row(medians: Sequence[float], wrong: tuple[str, ...] = ()) -> Row:
    checkpoints = tuple(Checkpoint(f"{at} s", at, 1.5 * at, 1e-3, 5.0, "f") for at in (10, 20, 40))
    latencies = dict(zip((one.label for one in checkpoints), map(latency, medians), strict=True))
    return Row("zoo:net", 0, STOCK, STOCK, checkpoints, latencies | {"stock": latency(1e-3)}, wrong)


def test_the_time_to_quality_is_that_of_the_first_network_not_slower_than_stocks_last() -> None:
    one = row([3e-3, 1e-3, 0.5e-3])
    assert one.reached is not None
    assert one.reached.label == "20 s"
    assert one.times_wall == pytest.approx(1000 / 25), "with the 5 s that compiling ours takes"
    assert one.times_cpu == pytest.approx(1300 / 30)
    assert replace(one, stock=replace(STOCK, compile_s=50.0)).times_wall == pytest.approx(1050 / 25)
    assert row([3e-3, 2e-3, 1.01e-3]).times_wall is None
    assert STOCK.settled(1.01) == 500.0


def test_the_moments_are_geometric_and_end_with_the_run() -> None:
    assert moments(45.0) == pytest.approx([5, 7.07, 10, 14.14, 20, 28.28, 40, 45], rel=1e-3)
    assert moments(4.0) == [4.0]


STOCKS_LOG = """2026-11-21 20:48:06 [INFO] [task_scheduler.cc:344]
 ID |  Name |   FLOP
2026-11-21 20:48:06 [INFO] [task_scheduler.cc:195] TaskScheduler picks Task #1: "conv"
2026-11-21 20:48:16 [INFO] [task_scheduler.cc:208] Sending 2 sample(s) to builder
2026-11-21 20:48:19 [INFO] [task_scheduler.cc:216] Build errors: 1 sample(s)
2026-11-21 20:48:20 [INFO] [task_scheduler.cc:218] Sending 1 valid sample(s) to runner
2026-11-21 20:48:30 [INFO] [task_scheduler.cc:195] TaskScheduler picks Task #0: "dense"
2026-11-21 20:48:31 [INFO] [task_scheduler.cc:208] Sending 1 sample(s) to builder
2026-11-21 20:48:32 [INFO] [task_scheduler.cc:218] Sending 1 valid sample(s) to runner
2026-11-21 20:48:40 [INFO] [task_scheduler.cc:195] TaskScheduler picks Task #2: "take"
2026-11-21 20:48:40 [INFO] [task_scheduler.cc:208] Sending 1 sample(s) to builder
2026-11-21 20:48:41 [INFO] [task_scheduler.cc:218] Sending 1 valid sample(s) to runner
2026-11-21 20:48:42 [INFO] [task_scheduler.cc:195] TaskScheduler picks Task #0: "dense"
2026-11-21 20:48:43 [INFO] [task_scheduler.cc:208] Sending 1 sample(s) to builder
2026-11-21 20:48:43 [INFO] [task_scheduler.cc:218] Sending 1 valid sample(s) to runner
2026-11-21 20:48:50 [INFO] [task_scheduler.cc:261] [Updated] Task #0: "dense"
"""


def test_stocks_curve_is_read_from_its_log_and_its_database(tmp_path: Path) -> None:
    measured = [(1, [1e10]), (1, [1e-3]), (0, [2e-3, 4e-3]), (2, [1e10]), (0, [1e-3])]
    lines = [json.dumps([workload, [[], run_secs, {}, []]]) for workload, run_secs in measured]
    (tmp_path / "database_tuning_record.json").write_text("\n".join(lines) + "\n")
    (tmp_path / "database_workload.json").write_text('["11", "code"]\n["22", "code"]\n["33", "code"]\n')
    (tmp_path / "tune.log").write_text(STOCKS_LOG)
    records = stock_records(tmp_path)
    assert [latency_s for _, latency_s in records] == [None, 1e-3, pytest.approx(3e-3), None, 1e-3]
    began = time.mktime((2026, 11, 21, 20, 48, 0, 0, 0, -1))
    ticks = tuple(Tick(float(at), 2.0 * at) for at in range(0, 60, 10))
    tasks = [{"hash": "11", "weight": 2}, {"hash": "22", "weight": 1}, {"hash": "33", "weight": 5}]
    points = list(stock_curve(records, stock_batches(tmp_path), tasks, Watched(began, 55, 110, ticks)))
    assert points == [
        Point(30, 60, 2, None),
        Point(40, 80, 3, pytest.approx(7e-3)),
        Point(42, 100, 4, pytest.approx(7e-3)),  # its embedding never ran
        Point(50, 100, 5, pytest.approx(3e-3)),
    ]


def test_a_contestant_is_watched_with_all_it_starts(tmp_path: Path) -> None:
    spin = "import time\nwhile time.process_time() < 0.3: pass\n"
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {spin!r}])\nprint('done')"
    seen = watch(["-c", code], tmp_path / "log", every_s=0.1)
    assert seen.cpu_s >= 0.3
    assert seen.wall_s == seen.ticks[-1].wall_s
    assert seen.cpu_at(seen.wall_s + 1) == seen.cpu_s
    assert (tmp_path / "log").read_text() == "done\n"
    with pytest.raises(WorkError, match="no such thing"):
        watch(["-c", "raise SystemExit('no such thing')"], tmp_path / "log")


def test_a_contestant_that_hangs_is_ended_at_its_limit(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match=r"did not end within 1 s: began"):
        watch(["-c", "import time\nprint('began', flush=True)\ntime.sleep(200)"], tmp_path / "log", limit_s=1.0)


@pytest.mark.jobs
def test_a_contestant_ends_with_its_watcher(tmp_path: Path) -> None:
    code = "import sys, time\nfrom studies._children import end_with_parent\nend_with_parent()\n"
    inner = code + f"open({str(tmp_path / 'up')!r}, 'w').close()\ntime.sleep(200)"
    outer = f"from pathlib import Path\nfrom studies._children import watch\nwatch(['-c', {inner!r}], "
    outer += f"Path({str(tmp_path / 'log')!r}))"
    import psutil

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    watcher = psutil.Popen([sys.executable, "-c", outer], env=environment)
    while not (tmp_path / "up").exists():
        assert watcher.poll() is None
        time.sleep(0.02)
    [child] = watcher.children()
    watcher.kill()
    watcher.wait()
    _, left = psutil.wait_procs([child], timeout=60)
    assert not left


class Rivals:
    """Stock and the stop-watch, by a script; what they were asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def stock(self, request: Request, trials: int, work: Path, *, channels_last: bool) -> Side:
        self.asked.append(f"stock {trials}{' channels last' if channels_last else ''}")
        if "fails" in request.model:
            raise WorkError("stock cannot tune it")
        work.mkdir(parents=True)
        stock_file(work).touch()
        return STOCK

    def bench(
        self, request: Request, against: Sequence[str], seconds: float, compiled: Path, *, others: Mapping[str, Path]
    ) -> BenchReport:
        assert compiled.exists()
        assert all(file.exists() for file in others.values())
        self.asked.append("bench")
        times = {"tunery": latency(0.5e-3), "onnxruntime": latency(0.8e-3), "stock": latency(1e-3)}
        times |= {label: latency(2e-3) for label in others if label != "stock"}
        return BenchReport("net", 1, times, 0.0, wrong=("stock",))


@pytest.mark.jobs
@pytest.mark.slow
def test_the_whole_study_on_the_fake_dialect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(stock_sides, "moments", lambda wall_s: [0.7 * wall_s, wall_s])
    rivals, said = Rivals(), []
    acts = Acts(stock=rivals.stock, bench=rivals.bench)
    report = run(Options(say=said.append, repeats=1), [MODEL], 64, 8.0, "fake", 1, acts)
    assert rivals.asked == ["stock 64", "bench"]
    [found] = report.data["rows"]
    [*_, last] = found["checkpoints"]
    assert found["times_less_wall"] == pytest.approx(1000 / (found["ours"]["wall_s"] + last["compile_s"]))
    assert found["stock_settled_s"] == 500.0
    assert report.claims == {
        f"{MODEL}: as fast a network as stock's last in 10 x less wall time, both compiled": found["times_less_wall"]
        >= 10,
        f"{MODEL}: stock's network computes what ONNX Runtime computes": False,
    }
    curve = [point["latency_s"] for point in found["ours"]["curve"] if point["latency_s"]]
    assert curve[-1] <= curve[0]
    assert "never" not in report.text
    assert finished(MODEL, 1) is not None
    assert finished(MODEL, 2) is None, "of another number of threads"
    again = run(Options(repeats=1), [MODEL], 64, 8.0, "fake", 1, acts)
    assert rivals.asked == ["stock 64", "bench", "bench"], "stock's side outlives the study"
    assert again.data["rows"][0]["ours"]["began"] > found["ours"]["began"], "ours does not"


def test_what_was_finished_before_an_interruption_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    rivals, tuned = Rivals(), []

    def ours(request: Request, budget_s: float, work: Path) -> Side:
        tuned.append(budget_s)
        return replace(STOCK, wall_s=20.0)

    def cut_off(request: Request, side: Side, work: Path) -> Sequence[Checkpoint]:
        raise KeyboardInterrupt

    acts = Acts(rivals.stock, ours, cut_off, rivals.bench)
    with pytest.raises(KeyboardInterrupt):
        run(Options(repeats=1), [MODEL], 64, None, "fake", 1, acts)
    file = tmp_path / "net.tunery"
    file.touch()
    done = replace(acts, deliver=lambda *_: [Checkpoint("20 s", 20.0, 30.0, 1e-3, 1.0, str(file))])
    report = run(Options(repeats=1), [MODEL], 64, None, "fake", 1, done)
    assert tuned == [100.0], "a tenth of stock's time, once"
    assert rivals.asked == ["stock 64", "bench"]
    assert report.data["rows"][0]["times_less_wall"] == pytest.approx(1000 / 21)


def test_stock_with_channels_last_is_a_side_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "net.tunery"
    file.touch()
    rivals = Rivals()
    acts = Acts(rivals.stock, lambda *_: STOCK, lambda *_: [Checkpoint("20 s", 20.0, 30.0, 1e-3, 1.0, str(file))],
                rivals.bench)  # fmt: skip
    report = run(Options(repeats=1), [MODEL], 64, 8.0, "fake", 1, acts, channels_last=True)
    assert "channels last (NHWC), which is no default" in report.text
    assert finished(MODEL, 1) is None, "a suite has stock's defaults beside it"
    run(Options(repeats=1), [MODEL], 64, 8.0, "fake", 1, acts)
    run(Options(repeats=1, seed=1), [MODEL], 64, 8.0, "fake", 1, acts)
    assert [asked for asked in rivals.asked if asked != "bench"] == ["stock 64 channels last", "stock 64", "stock 64"]
    assert finished(MODEL, 1) is not None


def test_a_stock_side_of_few_trials_stands_beside_no_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "net.tunery"
    file.touch()
    rivals = Rivals()

    def few(request: Request, trials: int, work: Path, *, channels_last: bool) -> Side:
        return replace(rivals.stock(request, trials, work, channels_last=channels_last), trials=30)

    acts = Acts(few, lambda *_: STOCK, lambda *_: [Checkpoint("20 s", 20.0, 30.0, 1e-3, 1.0, str(file))], rivals.bench)
    run(Options(repeats=1), [MODEL], 10, 8.0, "fake", 1, acts)
    assert finished(MODEL, 1) is None


def test_a_network_that_fails_costs_itself_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "net.tunery"
    file.touch()
    rivals, said = Rivals(), list[str]()
    acts = Acts(rivals.stock, lambda *_: STOCK, lambda *_: [Checkpoint("20 s", 20.0, 30.0, 1e-3, 1.0, str(file))],
                rivals.bench)  # fmt: skip
    odd = "fake:fails?tasks=2&space=16x16x16"
    report = run(Options(repeats=1, say=said.append), [odd, MODEL], 64, 8.0, "fake", 1, acts)
    assert [row["model"] for row in report.data["rows"]] == [MODEL]
    assert report.claims[f"{odd}: studied to its end"] is False
    assert any("stock cannot tune it" in line for line in said)
    with pytest.raises(WorkError, match="stock cannot tune it"):
        run(Options(repeats=1), [odd], 64, 8.0, "fake", 1, acts)


@pytest.mark.jobs
def test_a_checkpoint_is_compiled_from_what_was_known_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    request = Request(MODEL, dialect="fake", threads=1)
    side = our_side(request, 4.0, tmp_path / "ours")
    shutil.copytree(tmp_path / "ours", tmp_path / "never")
    first = next(point for point in side.curve if point.latency_s is not None)
    monkeypatch.setattr(stock_sides, "moments", lambda wall_s: [0.0, first.wall_s, wall_s])
    early, last = deliver(request, side, tmp_path / "ours")
    assert (early.wall_s, last.wall_s) == (first.wall_s, side.wall_s)
    assert early.sum_s == first.latency_s
    assert last.sum_s is not None
    assert last.sum_s <= first.latency_s
    assert Path(early.file).exists()
    assert deliver(request, side, tmp_path / "ours") == [early, last]
    with open_store(our_store(tmp_path / "ours")) as store:
        assert store.stats().records < side.trials
    assert asdict(side)["tasks"] == 2

    # A task that never has a latency leaves no moment out.
    never = replace(side, curve=tuple(replace(point, latency_s=None) for point in side.curve))
    monkeypatch.setattr(stock_sides, "moments", lambda wall_s: [wall_s])
    [last] = deliver(request, never, tmp_path / "never")
    assert last.sum_s is None
    assert Path(last.file).exists()


def test_a_budget_that_is_no_time_is_refused() -> None:
    from study import stock

    with pytest.raises(UsageError, match="not a time"):
        stock(budget="500trials")
