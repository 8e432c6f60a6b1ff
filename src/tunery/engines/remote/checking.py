"""Whether a host can be used, in plain words."""

import platform
from collections.abc import Iterator
from concurrent.futures import TimeoutError as Late
from importlib.metadata import version

from tunery._errors import EngineError, HostError
from tunery.blobs import Blobs
from tunery.dialects import CrossCompiler, get_dialect, installed_dialects
from tunery.domain import Check, CheckState, HostFacts
from tunery.engines.remote._link import Timing
from tunery.engines.remote.engine import AgentEngine

CLOCK_OFF_S = 5.0
"""A host's clock may be so far from ours before it is said."""
_GREETING_S, _CHECKS_S, _PONG_S = 60.0, 300.0, 20.0
# What commands say that fail, and what to do: the first sign that is found counts.
_ADVICE = (
    ("cannot run", "its first word has to be a command of this machine, such as ssh"),
    (
        "Permission denied",
        "give this user's key to the host (ssh-copy-id), or name another user in the connect command",
    ),
    ("Host key verification failed", "connect to the host once by hand, and compare its key"),
    ("Could not resolve", "check the host's name in the connect command"),
    ("AgentConnection refused", "start the host's SSH server, or check the port"),
    ("timed out", "check that the host is on and can be reached"),
    ("No module named tunery", "install tunery {version} in that Python, or name the one in which it is"),
    ("No module named", "install tunery {version} there with all that it requires"),
    ("not found", "install tunery {version} there, or give its whole path in the connect command"),
    ("No such file", "install tunery {version} there, or give its whole path in the connect command"),
    ("same build", "copy the installed package from here: its number alone does not tell the two apart"),
    ("install tunery", "the two versions must be the same"),
)


def check_host(name: str, connect: str, blobs: Blobs) -> Iterator[Check]:
    """Connect to a host and look at what it has, one after the other; where it cannot be reached only that is said."""
    try:
        with AgentEngine(name, connect, blobs, timing=Timing(greeting_s=_GREETING_S)) as engine:
            facts = _first_answer(engine)
            yield Check("agent", CheckState.OK, f"tunery {facts.version}, Python {facts.python} on {facts.node}")
            yield _machine(facts)
            yield _clock(engine)
            measuring = facts.machine != platform.machine()
            if measuring:
                yield from _packages(facts)
            yield from _workplace(engine, measuring=measuring)
    except HostError as error:
        advice = next((advice for sign, advice in _ADVICE if sign in str(error)), "try the connect command by hand")
        yield Check("agent", CheckState.FAIL, str(error), advice.format(version=version("tunery")))


def _first_answer(engine: AgentEngine) -> HostFacts:
    return engine.wait(_GREETING_S + 1.0, tries=1)


def _machine(facts: HostFacts) -> Check:
    found = f"{facts.machine}, {facts.granted} cores, {facts.memory_bytes / (1 << 30):.1f} GiB"
    if facts.machine != platform.machine():
        return Check("machine", CheckState.OK, found, f"it measures, but does not build for {platform.machine()}")
    return Check("machine", CheckState.OK, found)


def _clock(engine: AgentEngine) -> Check:
    off_s = engine.clock_off_s(_PONG_S)
    if off_s is None:
        return Check("clock", CheckState.WARN, "it does not answer", "check the connection")
    found = f"{abs(off_s):.1f} s {'ahead of' if off_s > 0 else 'behind'} ours"
    if abs(off_s) > CLOCK_OFF_S:
        return Check(
            "clock", CheckState.WARN, found, "set the host's clock (timedatectl set-ntp true): its logs mislead"
        )
    return Check("clock", CheckState.OK, found)


def _packages(facts: HostFacts) -> Iterator[Check]:
    for name in installed_dialects():
        dialect = get_dialect(name)
        wanted = {package: version(package) for package in dialect.packages}
        if not isinstance(dialect, CrossCompiler) or not wanted:
            continue
        found = ", ".join(f"{package} {facts.packages.get(package, 'missing')}" for package in wanted)
        if all(facts.packages.get(package) == number for package, number in wanted.items()):
            yield Check("versions", CheckState.OK, found)
        else:
            pins = " ".join(f"{package}=={number}" for package, number in wanted.items())
            yield Check("versions", CheckState.FAIL, found, f"install there what compiles here: pip install {pins}")


def _workplace(engine: AgentEngine, *, measuring: bool) -> Iterator[Check]:
    try:
        yield from engine.checks(measuring=measuring).result(_CHECKS_S)
    except (EngineError, Late) as error:
        yield Check("workers", CheckState.FAIL, str(error) or "the host does not answer", "try again")
