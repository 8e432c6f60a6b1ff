"""What requests hold and answers show, as the API's description has them."""

import json
import re
import socket
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from tunery._settings import cache_directory
from tunery.domain import DEFAULT_KIND, Budget, JobStatus, TaskState
from tunery.domain.request import Progress, QueryOptions, Request, asked, options_in
from tunery.reports.data import plain, sums, task_data
from tunery.service.kinds import KINDS, resumable
from tunery.store import StoredToken

DIGEST = r"^sha256:[0-9a-f]{64}$"
_Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Role = Literal["reader", "user", "developer", "admin"]
if TYPE_CHECKING:
    _Kind = str
else:
    _Kind = Literal[tuple(KINDS)]
_FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]
_Text = Annotated[str, Field(max_length=1 << 18)]  # a bounded text is checked to be Unicode, an unbounded one is not
_Extent = Annotated[int, Field(ge=1, le=2**31 - 1)]
_Shape = Annotated[list[_Extent], Field(max_length=32)]
_Shapes = Annotated[dict[Annotated[str, Field(max_length=1000)], _Shape], Field(max_length=1000)]


_Weights = Annotated[
    dict[Annotated[str, Field(max_length=1000)], Annotated[str, Field(pattern=DIGEST)]],
    Field(max_length=2000, description="`sha256:…` of the files beside the model, by its names for them."),
]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def _asked(cls: type, names: Iterable[str], *, given: bool = True) -> dict[str, Any]:
    """Return fields of a body for options of a class, with their limits; those that are not `given` are null."""
    known = options_in(cls)
    defaults: dict[str, Any] = {field.name: ... if field.default is MISSING else field.default for field in fields(cls)}
    found = dict[str, Any]()
    for name in names:
        typed, option = known[name]
        typed = Literal[option.choices] if option.choices else _TYPES.get(typed, typed)
        empty: dict[Any, Any] = {_Shapes: {}, _Budget: ""}
        default: Any = empty.get(typed, defaults[name]) if given else None
        limits: Any = {} if option.least is None else {"ge": option.least, "le": option.most}
        found[name] = (typed if given else typed | None, Field(default, description=option.help, **limits))
    return found


_Budget = Annotated[str, Field(max_length=200)]
_TYPES: dict[Any, Any] = {
    str: Annotated[str, Field(max_length=10_000)], Budget: _Budget, Mapping[str, tuple[int, ...]]: _Shapes,
    tuple[str, ...]: Annotated[list[str], Field(max_length=4)],
}  # fmt: skip
_Priority = (int, Field(0, ge=0, le=10, description="Each step doubles the share, up to the account's own priority."))
if TYPE_CHECKING:

    class JobIn(_Body):
        def __init__(self, **values: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

    QuestionIn = JobIn
    MeasurementIn = JobIn
else:
    LocalIn = create_model(
        "LocalIn",
        __doc__="What only the user of this machine may say of a job, on the local socket.",
        __base__=_Body,
        owner=(str, Field("", max_length=128, description="Whose share of the machine it uses; else its own.")),
        weight=(float, Field(1.0, ge=0.01, le=100)),
        options=(dict[str, Any], Field(default_factory=dict, description="What a job of its kind is given.")),
        **_asked(Request, ("prices", "trust", "on")),
    )
    QuestionIn = create_model(
        "QuestionIn",
        __doc__="What an uploaded model is asked about for, or is to be done for it.",
        __base__=_Body,
        weights=(_Weights, Field(default_factory=dict)),
        name=(str, Field("", max_length=200, description="What the model's file is called; else as it was uploaded.")),
        more_shapes=(list[_Shapes], Field(default_factory=list, max_length=15, description="Further ones.")),
        **_asked(Request, sorted({*asked(Request)} - {"model", "budget", "seed"})),
        **_asked(QueryOptions, ("predict",), given=False),
    )
    JobIn = create_model(
        "JobIn",
        __doc__="A job: a model, a target, and what it may cost.",
        __base__=QuestionIn,
        kind=(_Kind, DEFAULT_KIND),
        model=(
            str,
            Field(max_length=4096, description="`sha256:…` of an uploaded model, or `zoo:NAME`; a path if `local`."),
        ),
        priority=_Priority,
        deliver=(bool, Field(False, description="tune: compile the network at the end (`GET /v1/jobs/ID/file`).")),
        local=(LocalIn | None, None),
        **_asked(Request, ("budget", "seed")),
        **{
            name: field
            for kind in KINDS.values()
            for name, field in _asked(kind.options, {*kind.asked} - {"output", "predict"}, given=False).items()
        },
    )


class KernelIn(_Body):
    """A kernel of one's own: the text of its file, and the sources that this names. It needs the role developer."""

    description: str = Field(max_length=1 << 17, description="TOML as in `tunery tune mykernel.toml`, or T1.")
    files: dict[_FileName, _Text] = Field(default_factory=dict, max_length=16)


class _Measurement(_Body):
    model: str = Field("", max_length=4096, description="`sha256:…` of an uploaded model, or `zoo:NAME`.")
    weights: _Weights = Field(default_factory=dict)
    kernel: KernelIn | None = None
    task: str = Field("", pattern="^[0-9a-f]{0,16}$", description="The task's key, or its start; of one task: empty.")
    candidate: dict[str, Any] | list[Any] | _Text = Field(
        "", description='A record\'s candidate; of a kernel `{"parameters": {…}}`. Empty: the default alone.'
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if bool(self.model) == (self.kernel is not None):
            raise ValueError("a measurement is of a model's candidate or of a kernel; give `model` or `kernel`")
        return self


if not TYPE_CHECKING:
    MeasurementIn = create_model(
        "MeasurementIn",
        __doc__="One candidate to verify and to time: of an uploaded model's task, or of a kernel that is sent along.",
        __base__=_Measurement,
        priority=_Priority,
        **_asked(Request, ("shapes", "target", "threads", "dialect")),
    )


class MeasurementOut(BaseModel):
    """A measurement as it stands: `ahead` counts the account's jobs that begin before it.

    `waiting` counts the stages of all jobs that wait for a device. The `result` has a time only where the outcome is
    `ok`.
    """

    id: str
    state: str
    message: str
    ahead: int
    waiting: int
    result: dict[str, Any] | None


class JobChange(_Body):
    """What is to change of a job; what is left out stays."""

    budget: str | None = Field(None, min_length=1, max_length=200, description="In all, with what it has used.")
    priority: int | None = Field(None, ge=0, le=10, description="Up to the account's own priority.")


class NoteIn(_Body):
    """What a person writes beside a job."""

    note: str = Field("", max_length=4000)
    tags: list[Annotated[str, Field(pattern=r"^[^,\s][^,]{0,39}$")]] = Field(default_factory=list, max_length=20)


class JobOut(BaseModel):
    """A job as it stands. Times are seconds, points in time RFC 3339.

    `before_s` and `after_s` are sums of latencies over the tasks that were reached: untuned, and as it stands.
    `problem` is the type that a problem document of the error has that ended it, "" where none has.
    A `resumable` job goes on where it ended, and its `tasks` are its result.
    """

    id: str
    kind: str
    account: str
    network: str
    model: str
    state: str
    message: str
    problem: str
    created_at: datetime
    updated_at: datetime
    spend: dict[str, Any]
    remaining: dict[str, Any]
    outlook: list[dict[str, Any]]
    request: dict[str, Any]
    tasks: list[dict[str, Any]]
    before_s: float | None
    after_s: float | None
    progress: dict[str, Any] | None
    answer: dict[str, Any] | None
    resumable: bool
    note: str
    tags: list[str]


class JobPage(BaseModel):
    """Some jobs, latest first; `next` is the cursor of those that come after."""

    jobs: list[JobOut]
    next: str | None


class BlobOut(BaseModel):
    """An uploaded model."""

    digest: str
    name: str
    size_bytes: int


class AccountIn(_Body):
    """A new account."""

    name: _Name
    role: Role = "user"
    weight: float = Field(1.0, ge=0.01, le=100)
    priority: int = Field(0, ge=0, le=10)
    month_money: float | None = Field(None, ge=0, le=1e9, description="What its jobs may cost in a month.")
    upload_bytes: int | None = Field(
        None, ge=0, le=1 << 50, description="Of uploads and compiled files; null: as all may keep."
    )


class AccountChange(_Body):
    """What is to change of an account."""

    role: Role | None = None
    weight: float | None = Field(None, ge=0.01, le=100)
    priority: int | None = Field(None, ge=0, le=10)
    month_money: float | None = Field(None, ge=0, le=1e9)
    upload_bytes: int | None = Field(None, ge=0, le=1 << 50)
    state: Literal["active", "disabled"] | None = None

    @model_validator(mode="after")
    def _null_only_lifts_the_limit(self) -> Self:
        for name in sorted(self.model_fields_set - {"month_money", "upload_bytes"}):
            if getattr(self, name) is None:
                raise ValueError(f"{name} cannot be null; leave it out to keep it")
        return self


class AuditOut(BaseModel):
    """What an account has done: the call, from which address, and how it was answered."""

    id: int
    at: datetime
    account: str
    source: str
    action: str
    status: int


class TokenIn(_Body):
    """A new token; its role is at most the account's."""

    label: str = Field("", max_length=100, pattern=r"^[^\x00-\x1f]*$")
    role: Role = "user"
    days: float | None = Field(None, gt=0, le=3660, description="How long it holds; for ever if null.")


class TokenOut(BaseModel):
    """A token without its text; `id` is the start of its digest."""

    id: str
    label: str
    role: str
    created_at: datetime
    expires_at: datetime | None

    @classmethod
    def of(cls, token: StoredToken) -> "TokenOut":
        until = None if token.expires_at is None else at(token.expires_at)
        return cls(id=token.digest[:12], label=token.label, role=token.role, created_at=at(token.created_at),
                   expires_at=until)  # fmt: skip


class NewToken(TokenOut):
    """A token with its text, which is shown this once."""

    token: str


class RecordsIn(_Body):
    """A file of records that was uploaded."""

    blob: str = Field(pattern=DIGEST)


class RecordsTaken(BaseModel):
    """What an import brought: hints, which count once they are verified and timed here."""

    added: int
    known: int
    refused: int
    reasons: dict[str, int]


class RecordPage(BaseModel):
    """Some records; `next` is the cursor of those that come after."""

    records: list[dict[str, Any]]
    next: int | None


class UsageOut(BaseModel):
    """What an account's jobs of a month have cost; `worker_s` of all workers."""

    account: str
    month: str
    jobs: int
    trials: int
    worker_s: float
    core_s: float
    joules: float
    money: dict[str, float]


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def job_out(status: JobStatus, progress: Progress | None, answer: dict[str, Any] | None, files: Path | None) -> JobOut:
    request, (before_s, after_s), message = dict(status.request), sums(status.tasks), status.message
    if files is not None:
        request["model"] = shown_model(str(request.get("model", "")))
        for own in ("options", "identity"):
            request.pop(own, None)
        message = without_places(message, files)
        answer = None if answer is None else json.loads(without_places(json.dumps(answer), files))
    return JobOut(
        id=status.job_id,
        kind=status.kind,
        account=str(request.get("queue_owner", "")),
        network=str(request.get("name", "")),
        model=str(request.get("model", "")),
        state=status.state.value,
        message=message,
        problem=status.problem,
        created_at=at(status.created_at),
        updated_at=at(status.updated_at),
        spend=plain(status.spend),
        remaining=plain(status.remaining),
        outlook=plain(status.outlook),
        request=plain(request),
        tasks=[_task_out(task) for task in status.tasks],
        before_s=plain(before_s),
        after_s=plain(after_s),
        progress=plain(progress) if progress else None,
        answer=answer,
        resumable=resumable(status.kind),
        **noted(status),
    )


def noted(status: JobStatus) -> dict[str, Any]:
    tags = str(status.request.get("queue_tags") or "")
    return {"note": str(status.request.get("queue_note") or ""), "tags": tags.split(",") if tags else []}


def _task_out(task: TaskState) -> dict[str, Any]:
    return {**task_data(task), "candidate": task.best_candidate, "untried": task.untried}


def without_places(text: str, files: Path | None) -> str:
    """Return a text, or JSON, without what tells of this machine; as it is where `files` is None, for its own user.

    Of a file its name stays; addresses of databases, servers and users go, and so does the machine's own name.
    """
    return text if files is None else _places(files).sub(_told, text)


def _told(match: re.Match[str]) -> str:
    return {"store": "the store", "address": "a server", "path": ""}[match.lastgroup or "path"]


@cache
def _places(files: Path) -> re.Pattern[str]:
    """Return what finds addresses, and where files lie: the service's own, and all below this machine's directories."""
    known = {str(path) for path in Path("/").iterdir()} | {str(files), str(cache_directory()), tempfile.gettempdir()}
    longest_first = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    node = re.escape(socket.gethostname())
    own = rf"|(?<![\w.-]){node}(?![\w-])" if re.search(r"[\d.-]", node) else ""  # a plain word may be any word
    number = r"\d{1,3}"
    return re.compile(
        rf"(?P<store>(?:the store )?(?:postgres\w*|sqlite)(?:\+\w+)?://[^\s'\"\\,;)]+)"
        rf"|(?P<address>\bserver at \\?\"[^\"\\]*\\?\"(?: \([^)]*\))?(?:, port \d+)?"
        rf"|\b{number}(?:\.{number}){{3}}(?::\d+)?\b|\b[\w.-]+@[\w.-]+\b(?::\d+)?|\b(?:ssh|tcp)://[^\s'\"]+{own})"
        rf"|(?P<path>(?<![\w/.:])(?:{longest_first})/(?:[^\s'\"/]+/)*)"
    )


def shown_model(model: str) -> str:
    return model if model.startswith("zoo:") else model.rpartition("/")[2]
