"""Every error a user can meet.

TuneryError                what happened, with which value, and what to do next
├── UsageError             the request cannot be right (exit code 2)
│   ├── ModelError         the model file cannot be read, bound or imported
│   ├── TargetError        the target is unknown or incomplete
│   ├── BudgetError        the budget is malformed
│   ├── QuotaError         an account has as much as it may
│   ├── StoreError         the store cannot be opened or written
│   │   └── StoreAwayError its server does not answer
│   ├── BlobError          a host's blobs cannot be read or written
│   └── TemporaryDirectoryError  a host's temporary directory does not take what is to be loaded from it
├── WorkError              the request was right and the work failed (exit code 1)
│   ├── DialectError       the compiler refused a task or a network
│   ├── NothingFoundError  no record answers the query
│   └── BlobNotFoundError  a host does not have a blob; carries its digest
├── GoneDeviceError        what a job measures on cannot be used for long; it keeps what it has
└── EngineError            a worker did not answer
    ├── DeadlineError      it ran past its deadline and was killed
    ├── CrashError         its process ended
    │   └── LostWorkerError  its host was lost with it: no fault of the call, which may be made elsewhere
    │       └── FullHostError  its host has no room for what the call needs
    ├── HostError          a host cannot be used; the message says what is missing there
    └── RemoteError        the method raised; carries the remote type and message
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any


class TuneryError(Exception):
    """Base of all errors tunery raises on purpose; `str()` of it is one sentence for a user."""


class UsageError(TuneryError):
    """The request cannot be right as it stands."""


class ModelError(UsageError):
    """A model cannot be read, bound to shapes, or imported."""


class TargetError(UsageError):
    """A target is unknown or incomplete."""


class BudgetError(UsageError):
    """A budget is malformed."""


class QuotaError(UsageError):
    """An account has as much of something as it may; later it may have more."""


class StoreError(UsageError):
    """The store cannot be opened or written."""


class StoreAwayError(StoreError):
    """The server of the store does not answer, or another process keeps its file locked; it may later."""


class LostJobError(StoreError):
    """A job belongs to another process: this one may not change it."""


class BlobError(UsageError):
    """A host's blobs cannot be read or written."""


class TemporaryDirectoryError(UsageError):
    """A host's temporary directory does not take what is to be loaded from it."""


class WorkError(TuneryError):
    """The request was right, the work failed."""


class DialectError(WorkError):
    """A compiler refused a task or a network."""


class NothingFoundError(WorkError):
    """No record answers the query; the message says why."""


class BlobNotFoundError(WorkError):
    """A host does not have the blob `digest`."""

    def __init__(self, message: str, digest: str = "") -> None:
        super().__init__(message)
        self.digest = digest


class EngineError(TuneryError):
    """A worker did not answer a call; `out_of_memory`: it reached the limit of the memory that it may take."""

    out_of_memory = False


class DeadlineError(EngineError):
    """The worker ran past the call's deadline and was killed."""


class CrashError(EngineError):
    """The worker's process ended during the call; `exitcode` is negative for a signal."""

    def __init__(self, message: str, exitcode: int | None = None, *, out_of_memory: bool = False) -> None:
        super().__init__(message)
        self.exitcode = exitcode
        self.out_of_memory = out_of_memory


class LostWorkerError(CrashError):
    """The worker's host went away during the call, which says nothing of the call: make it again, unless it went
    `for_good`."""

    def __init__(self, message: str, *, for_good: bool = False) -> None:
        super().__init__(message)
        self.for_good = for_good


class FullHostError(LostWorkerError):
    """The worker's host has no room for what the call needs."""


class GoneDeviceError(TuneryError):
    """The device that a job measures on could not be used for long: the job ends, and keeps what it has."""


class HostError(EngineError):
    """A host cannot be used: its command fails, or what answers is no agent of this version."""


class RemoteError(EngineError):
    """The called method raised; `kind` is the remote exception's class name, `usage` whether it was a UsageError."""

    def __init__(self, message: str, kind: str = "Exception", trace: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.trace = trace
        self.out_of_memory = kind == "MemoryError" or tells_of_memory(message)


_PROBLEM = "urn:tunery:problem:"
# The first that fits counts: a subclass comes before its class.
_PROBLEMS: tuple[tuple[type[TuneryError], str], ...] = (
    (NothingFoundError, "not-found"),
    (LostJobError, "lost-job"),
    (StoreAwayError, "store-away"),
    (StoreError, "store"),
    (ModelError, "model"),
    (TargetError, "target"),
    (BudgetError, "budget"),
    (QuotaError, "quota"),
    (UsageError, "request"),
    (WorkError, "work"),
    (TuneryError, "work"),
)


def problem_type(error: BaseException | str) -> str:
    """Return the type (RFC 9457) of the problem that an error is, or of the kind that is named."""
    kinds = (kind for of, kind in _PROBLEMS if isinstance(error, of))
    return _PROBLEM + (error if isinstance(error, str) else next(kinds, "internal"))


def error_of(problem: str, sentence: str) -> TuneryError:
    """Return the error that a problem of this type is here; a WorkError where there is no such one."""
    return next((of for of, kind in _PROBLEMS if problem == _PROBLEM + kind), WorkError)(sentence)


class DeviceLostError(BaseException):
    """A kernel broke the device for this process, which gets nothing more from it and has to end.

    No exception that may be taken for the failure of one kernel alone: a worker ends with it, as in a crash.
    """


_OUT_OF_MEMORY = (
    "MemoryError", "bad_alloc", "bad allocation", "out of memory", "Cannot allocate memory",
    "Failed to allocate memory",
)  # fmt: skip


def tells_of_memory(text: str) -> bool:
    """Tell whether what a library, or a process that has ended, said means that it could have no more memory."""
    return any(sign in text for sign in _OUT_OF_MEMORY)


def lacks_memory(error: TuneryError) -> bool:
    """Tell whether a call failed since it could have no more memory."""
    return (isinstance(error, EngineError) and error.out_of_memory) or tells_of_memory(str(error))


_NOISE = re.compile(
    r"[\w.-]+ raised \w+: |\[ONNXRuntimeError\] : \d+ : \w+ : |Non-zero status code returned while running "
    r"|Status Message: |(?<!\S)\S*?/onnxruntime/\S++ "
    r"|((virtual|void) )?onnxruntime::[\w:<>~ ]+\([^()]*\)( const)?( \[with [^]]*\])? |\w+\.(cc|h):\d+ \w+ "  # places
    r"|(Failed to )?[Ll]oad model (from .*? )?(failed|with error):? ?"
)
_LOOKED_AT, _TOLD = 4000, 300


def told_by_onnxruntime(text: str) -> str:
    """Return what ONNX Runtime has against a model, without where in its code that was found; in a line of some length.

    >>> told_by_onnxruntime("[ONNXRuntimeError] : 1 : FAIL : /src/onnxruntime/a.cc:7 void onnxruntime::A::B(int) No.")
    'No'
    """
    start = " ".join(text[:_LOOKED_AT].split())  # the name of an operator may have millions of characters
    return _NOISE.sub("", start).strip()[:_TOLD].rstrip(" .;")


def brief(error: object, most: int = 200) -> str:
    """Return an error's text in one line of about so many characters: cut between words, and never inside a path.

    >>> brief("cannot read /a/b/c", 16), brief("cannot read", 16)
    ('cannot read …', 'cannot read')
    """
    text = " ".join(str(error).split())
    if len(text) <= most:
        return text
    end = text.rfind(" ", 0, most + 1)
    return f"{text[:end] if end > 0 else text.split()[0]} …"


_SHOWN = 60
_WANTED = {
    "bool": "true or false", "int": "a whole number", "float": "a number", "finite_number": "a finite number",
    "string": "text", "path": "a path", "list": "a list", "tuple": "a list", "set": "a list", "dict": "an object",
    "mapping": "an object", "dataclass": "an object", "model": "an object",
}  # fmt: skip
"""What should be there, by how pydantic's kinds of errors begin: `int_parsing`, `int_type`, ..."""


def misfit(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the first of pydantic's `errors()` in words of ours: what it is about, what is there, and what should be.

    Such as `budget.trials is 'many', but should be a whole number`.
    """
    first = found[0]
    where, kind = ".".join(str(part) for part in first["loc"]) or "whole", str(first["type"])
    if kind in {"missing", "missing_argument"}:
        return f"{where} is missing"
    if kind in {"extra_forbidden", "unexpected_keyword_argument"}:
        return f"{where} is not known here"
    value = repr(first["input"])
    shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."
    said = str(first["msg"]).removeprefix("Value error, ")
    of_its_kind = kind.endswith(("_too_long", "_too_short", "_mismatch"))
    wanted = "" if of_its_kind else next((words for name, words in _WANTED.items() if kind.startswith(name)), "")
    if not wanted and said.startswith("Input should be "):
        wanted = said.removeprefix("Input should be ")
    return (
        f"{where} is {shown}, but should be {wanted}" if wanted else f"{where} is {shown}: {said[:1].lower()}{said[1:]}"
    )
