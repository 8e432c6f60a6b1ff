"""Services that misbehave in every way a real one might."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tunery._errors import CrashError, DialectError, ModelError
from tunery.domain import Measurement, Outcome, Task


class Rogue:
    def surroundings(self, name: str) -> str:
        return f"{os.environ.get(name)} in {Path.cwd()}"

    def pid(self) -> int:
        return os.getpid()

    def segfault(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def read_null(self) -> None:
        ctypes.string_at(0)

    def leave(self, code: int) -> None:
        os._exit(code)

    def sys_exit(self) -> None:
        sys.exit(3)

    def sleep(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def hold_gil(self) -> None:
        ctypes.PyDLL(None).sleep(1000)

    def hold_gil_after(self, marker: Path) -> None:
        marker.write_text(str(os.getpid()))
        ctypes.PyDLL(None).sleep(1000)

    def allocate(self, size: int) -> int:
        return len(bytearray(size))

    def oom_score(self) -> int:
        return int(Path("/proc/self/oom_score_adj").read_text())

    def burn(self, seconds: float) -> float:
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass
        return seconds

    def burn_in_child(self, seconds: float) -> None:
        code = f"import time\nwhile time.process_time() < {seconds}: pass"
        subprocess.run([sys.executable, "-c", code], check=True)

    def write_to_sockets(self, text: str) -> None:
        for link in Path("/proc/self/fd").iterdir():
            if link.is_socket():
                os.write(int(link.name), text.encode())
        time.sleep(1000)

    def spawn_sleeper_in_a_session(self) -> int:
        return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid

    def spawn_sleeper(self) -> int:
        return subprocess.Popen(["sleep", "1000"]).pid

    def spawn_escaped_sleeper(self) -> int:
        return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid

    def spawn_and_hang(self, marker: Path) -> None:
        marker.write_text(f"{os.getpid()} {self.spawn_sleeper()}")
        time.sleep(1000)

    def flood(self, lines: int) -> int:
        for number in range(lines):
            print("noise", number, "x" * 100)
            print("more noise", number, file=sys.stderr)
        os.write(1, b"\x00\xff raw bytes\n")
        return lines

    def last_words(self) -> None:
        print("the matter was this")
        os._exit(7)

    def model_error(self) -> None:
        raise ModelError("this model has no name")

    def dialect_error(self) -> None:
        raise DialectError("refused")

    def own_crash_error(self) -> None:
        raise CrashError("a worker of mine is gone")

    def odd_message(self) -> None:
        raise ValueError("not utf-8: \udcff")

    def environment(self, names: list[str]) -> dict[str, str | None]:
        return {name: os.environ.get(name) for name in names}

    def place(self) -> tuple[tuple[int, ...], int]:
        return tuple(sorted(os.sched_getaffinity(0))), os.nice(0)

    def imports(self, name: str) -> bool:
        try:
            __import__(name)
        except ImportError:
            return False
        return True

    def loaded(self, name: str) -> bool:
        return sys.modules.get(name) is not None

    def tvm_threads(self) -> int:
        import tvm

        return int(tvm.runtime.num_threads())


class Broken:
    def __init__(self) -> None:
        raise RuntimeError("cannot be made")

    def pid(self) -> int:
        return os.getpid()


class Refused:
    def __init__(self) -> None:
        raise ModelError("no such model")

    def pid(self) -> int:
        return os.getpid()


class CrashesAtStart:
    def __init__(self) -> None:
        print("about to fall")
        os.kill(os.getpid(), signal.SIGSEGV)

    def pid(self) -> int:
        return os.getpid()


class SlowStart:
    def __init__(self, seconds: float) -> None:
        time.sleep(seconds)

    def pid(self) -> int:
        return os.getpid()


@dataclass
class Configured:
    path: Path
    blob: bytes
    limit: float

    def settings(self) -> tuple[Path, bytes, float]:
        return self.path, self.blob, self.limit


class FalseMeasurer:
    """Says that work was done sooner than it can be."""

    def race(self, _task: Task) -> Measurement:
        return Measurement(Outcome.OK, (1e-9,))
