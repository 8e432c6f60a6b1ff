"""The checks that every engine must pass; a subclass named Test… that makes the engine runs them under pytest.

Example:
    class TestMyEngine(EngineContract):
        def make(self, on_usage):
            return MyEngine(on_usage=on_usage)
"""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path

import pytest

from tunery._errors import (
    BlobNotFoundError,
    CrashError,
    DeadlineError,
    DialectError,
    EngineError,
    ModelError,
    RemoteError,
    TargetError,
)
from tunery.engines._base import Engine, OnUsage, Role, WorkerSpec
from tunery.testing.engine_probe import Colour, Parcel

PROBE = WorkerSpec(Role.BUILDER, "tunery.testing.engine_probe:Probe")
STILLBORN = WorkerSpec(Role.BUILDER, "tunery.testing.engine_probe:Stillborn")
PATIENCE_S = 120.0
"""How long a check waits for what must happen; nothing passes or fails by being quick."""


class EngineContract(ABC):
    """What `Engine` promises, as tests. `make` returns a new engine; the suite closes it.

    One engine serves all checks, each with workers of its own.
    """

    usage: list[tuple[str, str, float, float]]

    @abstractmethod
    def make(self, on_usage: OnUsage) -> Engine:
        """Return a new engine that reports to `on_usage`."""

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> Iterator[Engine]:
        """Give an engine that all checks share, and close it."""
        cls.usage = []
        with cls().make(lambda *entry: cls.usage.append(entry)) as engine:
            yield engine

    def test_plain_data_survives_the_border(self, engine: Engine) -> None:
        worker = engine.start(PROBE)
        loose = {"text": "ü", "list": [1, 2.5, None], "inf": math.inf, "deep": {"yes": True}}
        parcel = Parcel(
            Colour.BLUE, bytes(range(256)), Path("/a/b"), (0.1, math.inf, -math.inf), {"a": (1, 2)}, 3.0, loose
        )
        assert engine.call(worker, "echo", parcel, deadline_s=PATIENCE_S).result(PATIENCE_S) == parcel
        many = engine.call(worker, "echo_many", [parcel], Colour.RED, deadline_s=PATIENCE_S)
        assert many.result(PATIENCE_S) == ([parcel], Colour.RED)
        assert math.isnan(engine.call(worker, "echo_float", math.nan, deadline_s=PATIENCE_S).result(PATIENCE_S))
        exact = engine.call(worker, "echo_float", 0.1 + 0.2, deadline_s=PATIENCE_S)
        assert exact.result(PATIENCE_S) == 0.1 + 0.2

    def test_large_payload_survives(self, engine: Engine) -> None:
        worker = engine.start(PROBE)
        data = bytes(range(256)) * 200_000
        assert engine.call(worker, "echo_bytes", data, deadline_s=PATIENCE_S).result(PATIENCE_S) == data

    def test_settings_reach_the_constructor_by_their_annotations(self, engine: Engine) -> None:
        spec = WorkerSpec(Role.MEASURER, PROBE.service, {"first": 40, "home": Path("/somewhere")})
        worker = engine.start(spec)
        assert engine.call(worker, "count", deadline_s=PATIENCE_S).result(PATIENCE_S) == 41
        assert engine.call(worker, "home", deadline_s=PATIENCE_S).result(PATIENCE_S) == Path("/somewhere")

    def test_files_cross_as_blobs(self, engine: Engine) -> None:
        worker = engine.start(PROBE)
        given = engine.blobs.put(b"stressed", temporary=True)
        made = engine.call(worker, "reverse", given, deadline_s=PATIENCE_S).result(PATIENCE_S)
        assert engine.blobs.get(made).read_bytes() == b"desserts"
        engine.blobs.release(given)
        with pytest.raises(BlobNotFoundError) as caught:
            engine.call(worker, "reverse", given, deadline_s=PATIENCE_S).result(PATIENCE_S)
        assert caught.value.digest == given

    def test_calls_of_one_worker_run_in_order_on_one_state(self, engine: Engine) -> None:
        worker = engine.start(PROBE)
        futures = [engine.call(worker, "count", deadline_s=PATIENCE_S) for _ in range(30)]
        assert [future.result(PATIENCE_S) for future in futures] == list(range(1, 31))
        assert engine.generation(worker) == 1

    def test_two_workers_run_at_the_same_time(self, engine: Engine, tmp_path: Path) -> None:
        one, two = engine.start(PROBE), engine.start(PROBE)
        assert one != two
        first = engine.call(one, "meet", tmp_path / "1", tmp_path / "2", deadline_s=PATIENCE_S)
        second = engine.call(two, "meet", tmp_path / "2", tmp_path / "1", deadline_s=PATIENCE_S)
        assert first.result(PATIENCE_S)
        assert second.result(PATIENCE_S)

    @pytest.mark.parametrize(
        ("kind", "cls"), [("model", ModelError), ("target", TargetError), ("dialect", DialectError)]
    )
    def test_own_errors_come_out_as_themselves(self, engine: Engine, kind: str, cls: type[Exception]) -> None:
        worker = engine.start(PROBE)
        with pytest.raises(cls) as caught:
            engine.call(worker, "fail", kind, "the very words", deadline_s=PATIENCE_S).result(PATIENCE_S)
        assert type(caught.value) is cls
        assert str(caught.value) == "the very words"

    def test_other_errors_are_remote_errors_and_keep_the_worker(self, engine: Engine) -> None:
        worker = engine.start(PROBE)
        engine.call(worker, "count", deadline_s=PATIENCE_S).result(PATIENCE_S)
        with pytest.raises(RemoteError, match="the reason") as caught:
            engine.call(worker, "fail", "other", "the reason", deadline_s=PATIENCE_S).result(PATIENCE_S)
        assert caught.value.kind == "ValueError"
        assert "in fail" in caught.value.trace
        assert engine.call(worker, "count", deadline_s=PATIENCE_S).result(PATIENCE_S) == 2

    def test_a_result_against_its_annotation_is_an_error(self, engine: Engine) -> None:
        worker = engine.start(PROBE)
        with pytest.raises(RemoteError) as caught:
            engine.call(worker, "lie", deadline_s=PATIENCE_S).result(PATIENCE_S)
        assert caught.value.kind == "TypeError"

    def test_a_failing_constructor_fails_each_call_once(self, engine: Engine) -> None:
        worker = engine.start(STILLBORN)
        futures = [engine.call(worker, "count", deadline_s=PATIENCE_S) for _ in range(2)]
        for future in futures:
            with pytest.raises(RemoteError, match="nothing to start from") as caught:
                future.result(PATIENCE_S)
            assert caught.value.kind == "KeyError"

    def test_a_passed_deadline_fails_the_call_and_renews_the_state(self, engine: Engine) -> None:
        worker = engine.start(PROBE)
        engine.call(worker, "count", deadline_s=PATIENCE_S).result(PATIENCE_S)
        with pytest.raises(DeadlineError, match="sleep"):
            engine.call(worker, "sleep", 30.0, deadline_s=0.1).result(PATIENCE_S)
        assert engine.call(worker, "count", deadline_s=PATIENCE_S).result(PATIENCE_S) == 1
        assert engine.generation(worker) == 2

    def test_waiting_does_not_count_against_a_deadline(self, engine: Engine) -> None:
        worker = engine.start(PROBE)
        first = engine.call(worker, "sleep", 1.5, deadline_s=math.inf)
        second = engine.call(worker, "count", deadline_s=1.0)
        assert first.result(PATIENCE_S) == 1.5
        assert second.result(PATIENCE_S) == 1

    def test_kill_fails_the_call_in_flight_and_spares_those_that_wait(self, engine: Engine, tmp_path: Path) -> None:
        worker = engine.start(PROBE)
        flying = engine.call(worker, "meet", tmp_path / "here", tmp_path / "never", deadline_s=PATIENCE_S)
        waiting = engine.call(worker, "count", deadline_s=PATIENCE_S)
        _until_exists(tmp_path / "here")
        engine.kill(worker)
        with pytest.raises(CrashError):
            flying.result(PATIENCE_S)
        assert waiting.result(PATIENCE_S) == 1
        assert engine.generation(worker) == 2

    def test_kill_of_an_idle_worker_loses_its_state(self, engine: Engine) -> None:
        worker = engine.start(PROBE)
        engine.call(worker, "count", deadline_s=PATIENCE_S).result(PATIENCE_S)
        engine.kill(worker)
        engine.kill(worker)
        assert engine.call(worker, "count", deadline_s=PATIENCE_S).result(PATIENCE_S) == 1
        assert engine.generation(worker) == 2

    def test_a_place_may_be_given_before_during_and_after_a_life(self, engine: Engine) -> None:
        worker = engine.start(PROBE)
        if engine.cpu_s(worker) is None:
            pytest.skip("this engine knows no processes")
        cores = tuple(sorted(os.sched_getaffinity(0)))
        engine.place(worker, cores[:1])
        engine.call(worker, "count", deadline_s=PATIENCE_S).result(PATIENCE_S)
        engine.place(worker, cores[-1:])
        engine.kill(worker)
        engine.place(worker, cores)
        assert engine.call(worker, "count", deadline_s=PATIENCE_S).result(PATIENCE_S) == 1
        with pytest.raises(EngineError, match="nobody"):
            engine.place("nobody", cores)

    def test_control_knows_a_worker_s_process(self, engine: Engine) -> None:
        worker = engine.start(PROBE)
        if engine.cpu_s(worker) is None:
            pytest.skip("this engine knows no processes")
        process, _ = engine.call(worker, "where", deadline_s=PATIENCE_S).result(PATIENCE_S)
        assert engine.pid(worker) == process
        engine.kill(worker)
        assert engine.pid(worker) is None
        for ask in (engine.pid, engine.cpu_s):
            with pytest.raises(EngineError, match="nobody"):
                ask("nobody")

    def test_a_cancelled_call_is_never_made(self, engine: Engine, tmp_path: Path) -> None:
        worker = engine.start(PROBE)
        engine.call(worker, "meet", tmp_path / "here", tmp_path / "go", deadline_s=PATIENCE_S)
        withdrawn = engine.call(worker, "count", deadline_s=PATIENCE_S)
        last = engine.call(worker, "count", deadline_s=PATIENCE_S)
        _until_exists(tmp_path / "here")
        assert withdrawn.cancel()
        (tmp_path / "go").touch()
        assert last.result(PATIENCE_S) == 1
        with pytest.raises(CancelledError):
            withdrawn.result(PATIENCE_S)

    def test_a_wrong_call_is_refused_at_once(self, engine: Engine) -> None:
        worker = engine.start(PROBE)
        for method, args in [
            ("nowhere", ()),
            ("_count", ()),
            ("count", (1,)),
            ("echo", ("no parcel",)),
            ("fail", ("a",)),
        ]:
            with pytest.raises(TypeError):
                engine.call(worker, method, *args, deadline_s=1.0)
        for deadline_s in (0.0, -1.0, math.nan):
            with pytest.raises(ValueError, match="deadline"):
                engine.call(worker, "count", deadline_s=deadline_s)
        with pytest.raises(EngineError, match="nobody"):
            engine.call("nobody", "count", deadline_s=1.0)
        assert engine.call(worker, "count", deadline_s=PATIENCE_S).result(PATIENCE_S) == 1

    def test_a_wrong_spec_is_refused_at_once(self, engine: Engine) -> None:
        with pytest.raises(EngineError, match="importable"):
            engine.start(WorkerSpec(Role.BUILDER, "tunery.engines.nowhere:Nothing"))
        with pytest.raises(EngineError, match="importable"):
            engine.start(WorkerSpec(Role.BUILDER, "tunery.testing.engine_probe:Nothing"))
        with pytest.raises(TypeError, match="second"):
            engine.start(WorkerSpec(Role.BUILDER, PROBE.service, {"second": 1}))
        with pytest.raises(EngineError, match="nowhere"):
            engine.start(replace(PROBE, host="nowhere"))

    def test_a_worker_is_started_on_each_host(self, engine: Engine) -> None:
        assert len(set(engine.hosts)) == len(engine.hosts) > 0
        for host in engine.hosts:
            worker = engine.start(replace(PROBE, host=host))
            given = engine.blobs.put(host.encode(), temporary=True)
            made = engine.call(worker, "reverse", given, deadline_s=PATIENCE_S).result(PATIENCE_S)
            assert engine.blobs.has(made)
            assert engine.blobs.get(made).read_bytes() == host.encode()[::-1]
            engine.blobs.release(made)
            assert not engine.blobs.has(made)

    def test_usage_is_reported_before_the_result_is_there(self, engine: Engine) -> None:
        worker = engine.start(PROBE)
        engine.call(worker, "burn", 0.2, deadline_s=PATIENCE_S).result(PATIENCE_S)
        with pytest.raises(DeadlineError):
            engine.call(worker, "sleep", 30.0, deadline_s=0.1).result(PATIENCE_S)
        entries = {method: (wall_s, cpu_s) for name, method, wall_s, cpu_s in self.usage if name == worker}
        assert {"__init__", "burn", "sleep"} <= set(entries)
        assert entries["burn"][0] >= 0.2
        assert entries["burn"][1] >= 0.19
        assert entries["sleep"][0] >= 0.1

    def test_cpu_seconds_outlive_a_process(self, engine: Engine) -> None:
        worker = engine.start(PROBE)
        if engine.cpu_s(worker) is None:
            pytest.skip("this engine knows no processes")
        engine.call(worker, "burn", 0.2, deadline_s=PATIENCE_S).result(PATIENCE_S)
        assert (engine.cpu_s(worker) or 0.0) >= 0.19
        engine.kill(worker)
        engine.call(worker, "burn", 0.2, deadline_s=PATIENCE_S).result(PATIENCE_S)
        assert (engine.cpu_s(worker) or 0.0) >= 0.38
        assert engine.own_cpu_s() >= 0
        assert engine.obstacle() == ""

    def test_close_answers_every_call(self, tmp_path: Path) -> None:
        engine = self.make(lambda *_: None)
        worker = engine.start(PROBE)
        flying = engine.call(worker, "meet", tmp_path / "here", tmp_path / "never", deadline_s=PATIENCE_S)
        waiting = engine.call(worker, "count", deadline_s=PATIENCE_S)
        _until_exists(tmp_path / "here")
        engine.close()
        engine.close()
        for future in (flying, waiting):
            assert isinstance(future.exception(0), CrashError)
        with pytest.raises(EngineError, match="closed"):
            engine.call(worker, "count", deadline_s=1.0)
        with pytest.raises(EngineError, match="closed"):
            engine.start(PROBE)


def _until_exists(path: Path) -> None:
    import time

    for _ in range(int(PATIENCE_S * 100)):
        if path.exists():
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} never appeared")
