"""Asking a service: of this machine's user over its socket, or over the network as an account."""

import hashlib
import json
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlencode

import httpx

from tunery._errors import NothingFoundError, UsageError, WorkError
from tunery._outputs import replacing
from tunery.reports.data import status_of

if TYPE_CHECKING:
    from tunery._api import Model, Shapes
    from tunery.domain import JobStatus

_TIMEOUT_S, _AGAIN_S, _PATIENCE_S, _CONNECT_S = 60.0, 0.5, 120.0, 10.0
_SILENT_S = 20.0  # a stream of events says every 5 s that it is there
_REPEATABLE = {"GET", "HEAD"}
_IMPORT_S = 3600.0  # a compiler checks each candidate
_CHUNK, _PAGE, _AT_ONCE = 1 << 20, 500, 100
_NO_CALL, _NO_PROBLEM_OF_OURS = (404, 405), "urn:tunery:problem:http"
_OWN = "start one of your own with `tunery serve --socket FILE`, and name FILE in TUNERY_SOCKET"
_REST = {"done", "failed", "cancelled", "paused"}


class ServiceClient:
    """A service at a URL, as one account sees it, or this user's own on its socket; a context manager.

    Several coordinators of one service have their URLs joined by commas: one that does not answer is left for the next.
    Every call raises UsageError where the service refuses, NothingFoundError where it has no such thing, and WorkError
    where it does not answer.
    """

    def __init__(self, url: str, token: str = "", own: Path | None = None) -> None:
        self._urls, self._token, self._own = urls_in(url), token, own
        more: dict[str, Any] = {"transport": httpx.HTTPTransport(uds=str(own))} if own else {}
        self._http = httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_S), follow_redirects=False, trust_env=own is None,
            **more,
        )  # fmt: skip

    @property
    def url(self) -> str:
        """The address that is asked: the one that has answered last."""
        return self._urls[0]

    files: Sequence[Path] = ()
    """What of this machine no output may replace."""

    @property
    def is_local(self) -> bool:
        """Whether it is this user's own."""
        return self._own is not None

    @property
    def name(self) -> str:
        """What `--server` takes to reach it again; "" for this user's own."""
        return "" if self.is_local else ",".join(self._urls)

    @classmethod
    def local(cls, path: Path) -> Self:
        """Return the service that this user runs, which listens on the socket `path`."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_CONNECT_S)
            try:
                connection.connect(str(path))
            except PermissionError:
                raise UsageError(f"the service at {path} is another user's; {_OWN}") from None
            except OSError:
                raise UsageError("no service is running; start one with `tunery serve`") from None
            # Before it hears anything: another user's would learn what we ask, and could lie.
            told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            if struct.unpack("3i", told)[1] not in {0, os.geteuid()}:
                raise UsageError(f"the service at {path} is another user's; {_OWN}")
        return cls("http://local", own=path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def load(self, model: str | os.PathLike[str], shapes: "Shapes | None" = None) -> "Model":
        """Name a model that this service shall tune: the first step of the chain that `tunery.load` begins here.

        Example:
            tunery.connect().load("bert.onnx").on("native").within("10min").tune().compile("bert.tunery")
        """
        from tunery._api import load

        return load(model, shapes, service=self)

    def me(self) -> dict[str, Any]:
        """Return the account."""
        return self._json("GET", "/v1/me")

    def about(self) -> dict[str, Any]:
        """Return the service's version, and the URL of its store if it is this user's own."""
        return self._json("GET", "/v1/service")

    def upload(self, path: Path) -> str:
        """Upload a model to every coordinator that answers and has it not, and return its digest."""
        if len(self._urls) == 1:
            return self._upload(path)
        digest, silent = "", None
        for url in tuple(self._urls):
            try:
                with ServiceClient(url, self._token) as one:
                    digest = one._upload(path)
            except WorkError as error:
                silent = error
        if silent is not None and not digest:
            raise silent
        return digest

    def _upload(self, path: Path) -> str:
        try:
            with path.open("rb") as file:
                digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
                if self._answer("HEAD", f"/v1/blobs/{digest}").status_code == httpx.codes.OK:
                    return digest
                file.seek(0)
                chunks = iter(lambda: file.read(_CHUNK), b"")
                self._json("PUT", f"/v1/blobs/{digest}", params={"name": path.name}, content=chunks)
        except OSError as error:
            raise UsageError(
                f"{str(path)!r} cannot be read: {error.strerror}; check its name and permissions"
            ) from None
        return digest

    def submit(self, job: Mapping[str, Any], key: str = "") -> dict[str, Any]:
        """Submit a job (`POST /v1/jobs`); with a `key`, however often this is done, it is one job."""
        return self._json("POST", "/v1/jobs", json=dict(job), headers={"Idempotency-Key": key} if key else {})

    def answer(self, digest: str, question: Mapping[str, Any]) -> dict[str, Any]:
        """Ask what is known of an uploaded model (`POST /v1/networks/DIGEST/answer`); return the job that answers."""
        job = self._json("POST", f"/v1/networks/{digest}/answer", json=dict(question))
        return job if job["state"] in _REST else self.follow(job["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        """Return how a job stands."""
        return self._json("GET", _place(job_id))

    def jobs(self, limit: int = 50) -> list[dict[str, Any]]:
        """Return the account's latest jobs."""
        found: list[dict[str, Any]] = []
        cursor: str | None = ""
        while cursor is not None and len(found) < limit:
            page = self._json("GET", "/v1/jobs", params={"limit": min(limit - len(found), _PAGE), "cursor": cursor})
            found += page["jobs"]
            cursor = page["next"]
        return found

    def statuses(self, limit: int) -> "list[JobStatus]":
        """Return the account's latest jobs as a store of this machine would."""
        return [status_of(job) for job in self.jobs(limit)]

    def status(self, job_id: str) -> "tuple[JobStatus, dict[str, Any] | None]":
        """Return how a job stands, and what it has answered."""
        job = self.job(job_id)
        return status_of(job), job["answer"]

    def log(self, job_id: str) -> Iterator[dict[str, Any]]:
        """Yield what has happened to a job so far."""
        with self._streamed(f"{_place(job_id)}/events", {"Accept": "application/jsonl"}) as answer:
            for line in answer.iter_lines():
                yield json.loads(line)

    def failures(self, job_id: str) -> list[dict[str, Any]]:
        """Return the latest candidates of a job that failed, and why."""
        found: Any = self._json("GET", f"{_place(job_id)}/failures")
        return list(found)

    def act(self, job_id: str, what: str) -> dict[str, Any]:
        """Cancel, pause or resume a job."""
        return self._json("POST", f"{_place(job_id)}:{what}")

    def follow(self, job_id: str, on_event: Callable[[str, dict[str, Any]], None] = lambda *_: None) -> dict[str, Any]:
        """Follow a job to its end and return it; where the service goes away, wait for it and go on."""
        last = ""
        silent_since: float | None = None
        while True:
            try:
                for number, kind, data in self._events(job_id, last):
                    last, silent_since = number or last, None
                    on_event(kind, data)
                found, silent_since = self.job(job_id), None
                if found["state"] in _REST:
                    return found
            except WorkError:
                silent_since = silent_since or time.monotonic()
                if time.monotonic() > silent_since + _PATIENCE_S:
                    raise
            time.sleep(_AGAIN_S)

    def download(self, job_id: str, path: Path) -> None:
        """Write a job's compiled network to a file."""
        self._fetch(f"{_place(job_id)}/file", path)

    def report(self, job_id: str, path: Path) -> dict[str, Any]:
        """Write a job's page to a file, and return what it shows."""
        shown = self._json("GET", f"{_place(job_id)}/report", headers={"Accept": "application/json"})
        self._fetch(f"{_place(job_id)}/report", path)
        return shown

    def export_records(self, path: Path, network: str = "", account: str = "") -> int:
        """Write the records that the account's jobs have made, of one network or of all, to a file; return how many."""
        if account:
            raise UsageError("a service gives an account its own records; leave out --account")
        return int(self._fetch(f"/v1/records/export?{urlencode({'network': network})}", path)["X-Records"])

    def import_records(self, path: Path) -> dict[str, Any]:
        """Send a file of records for the service to take in as hints; return what that brought."""
        digest = self.upload(path)
        return self._json("POST", "/v1/records/import", json={"blob": digest}, timeout=_IMPORT_S)

    def _fetch(self, place: str, path: Path) -> httpx.Headers:
        """Write what is at a place of the service to a file, of which one coordinator may have what another has not."""
        for left in reversed(range(len(self._urls))):
            try:
                with self._streamed(place, {}) as answer, replacing(path) as part, part.open("wb") as file:
                    for chunk in answer.iter_bytes(_CHUNK):
                        file.write(chunk)
                    return answer.headers
            except NothingFoundError:
                if not left:
                    raise
                self._ask_next()
        raise AssertionError

    def accounts(self) -> list[dict[str, Any]]:
        """Return all accounts; for administrators."""
        found: Any = self._json("GET", "/v1/accounts")
        return list(found)

    def create_account(self, account: Mapping[str, Any]) -> dict[str, Any]:
        """Create an account; for administrators."""
        return self._json("POST", "/v1/accounts", json=dict(account))

    def change_account(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Change an account; for administrators."""
        return self._json("PATCH", f"/v1/accounts/{quote(name, safe='')}", json=dict(values))

    def delete_account(self, name: str) -> None:
        """Delete an account; for administrators."""
        self._done("DELETE", f"/v1/accounts/{quote(name, safe='')}")

    def audit(self, limit: int) -> list[dict[str, Any]]:
        """Return what accounts have done, latest first; for administrators."""
        found: Any = self._json("GET", "/v1/audit", params={"limit": limit})
        return list(found)

    def create_token(self, account: str, token: Mapping[str, Any]) -> dict[str, Any]:
        """Make a token of an account; its text is in what is returned, and nowhere else."""
        return self._json("POST", f"/v1/accounts/{quote(account, safe='')}/tokens", json=dict(token))

    def tokens(self, account: str) -> list[dict[str, Any]]:
        """Return an account's tokens, without their texts."""
        found: Any = self._json("GET", f"/v1/accounts/{quote(account, safe='')}/tokens")
        return list(found)

    def end_token(self, account: str, token: str) -> None:
        """End a token, by its id."""
        self._done("DELETE", f"/v1/accounts/{quote(account, safe='')}/tokens/{quote(token, safe='')}")

    def spend(self, job_id: str = "", prices: str = "") -> dict[str, Any]:
        """Return what a job has spent, or all of the account's."""
        if prices:
            raise UsageError("--prices is for this machine's store; leave it out, or leave out --server")
        return self._json("GET", "/v1/spend", params={"job": job_id} if job_id else {})

    def records(self, key: str) -> list[dict[str, Any]]:
        """Return the best records of a task or workload, by the start of its key."""
        found: list[dict[str, Any]] = []
        cursor: int | None = 0
        while cursor is not None:
            page = self._json("GET", "/v1/records", params={"task": key, "cursor": cursor})
            found += page["records"]
            cursor = page["next"]
        return found

    def operators(self, operator: str = "", workloads: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Return what is known of operators: by a key, parts of one or its start, or of some workloads' operators."""
        found: list[dict[str, Any]] = []
        for some in [workloads[i : i + _AT_ONCE] for i in range(0, len(workloads), _AT_ONCE)] or [()]:
            cursor: str | None = ""
            while cursor is not None:
                asked = {"operator": operator, "workload": list(some), "cursor": cursor}
                page = self._json("GET", "/v1/operators", params=asked)
                found += [one for one in page["operators"] if one not in found]
                cursor = page["next"]
        return found

    def record_counts(self) -> dict[str, Any]:
        """Count what the service's store holds."""
        return {**self._json("GET", "/v1/records/stats"), "place": self.url}

    def devices(self) -> list[dict[str, Any]]:
        """Return the devices on which something was measured."""
        found: Any = self._json("GET", "/v1/devices")
        return list(found)

    def hosts(self) -> list[dict[str, Any]]:
        """Return the service's hosts, with what they have to do."""
        found: Any = self._json("GET", "/v1/hosts")
        return list(found)

    def _events(self, job_id: str, last: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
        headers = {"Last-Event-ID": last} if last else {}
        number, kind = "", ""
        with self._streamed(f"{_place(job_id)}/events", headers, _SILENT_S) as answer:
            for line in answer.iter_lines():
                name, _, value = line.partition(": ")
                if name == "id":
                    number = value
                elif name == "event":
                    kind = value
                elif name == "data":
                    yield number, kind, json.loads(value)
                    number = ""

    @contextmanager
    def _streamed(
        self, place: str, headers: Mapping[str, str], silent_s: float = _TIMEOUT_S
    ) -> Iterator[httpx.Response]:
        timeout = httpx.Timeout(silent_s, connect=_CONNECT_S)

        def ask() -> httpx.Response:
            request = self._http.build_request("GET", place, headers=dict(headers), timeout=timeout)
            return self._http.send(request, stream=True)

        with closing(self._first_answer("GET", ask)) as answer:
            try:
                if answer.is_error:
                    answer.read()
                    raise _error(answer)
                yield answer
            except httpx.HTTPError as error:
                self._ask_next()
                raise self._silent(error) from None

    def _json(self, method: str, place: str, **more: Any) -> dict[str, Any]:
        found: dict[str, Any] = self._done(method, place, **more).json()
        return found

    def _done(self, method: str, place: str, **more: Any) -> httpx.Response:
        answer = self._answer(method, place, **more)
        if answer.is_error:
            raise _error(answer)
        return answer

    def _answer(self, method: str, place: str, **more: Any) -> httpx.Response:
        return self._first_answer(method, lambda: self._http.request(method, place, **more))

    def _first_answer(self, method: str, ask: Callable[[], httpx.Response]) -> httpx.Response:
        """Ask one address after the other until one answers; what may have been done already is not asked again."""
        for left in reversed(range(len(self._urls))):
            try:
                return ask()
            except httpx.InvalidURL as error:
                raise UsageError(f"{self.url!r} is no URL ({error}); write for example http://127.0.0.1:7433") from None
            except httpx.HTTPError as error:
                said, unsent = self._silent(error), isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                self._ask_next()
                if not left or not (unsent or method in _REPEATABLE):
                    raise said from None
        raise AssertionError

    def _ask_next(self) -> None:
        """Ask the next address from now on."""
        self._urls.append(self._urls.pop(0))
        self._http.base_url = httpx.URL(self.url)

    def _silent(self, error: httpx.HTTPError) -> WorkError:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            advice = "if it is the service's own, let SSL_CERT_FILE name the certificate's file"
            return WorkError(f"the certificate of {self.url} is not trusted here ({error}); {advice}")
        running = " (`tunery serve`)?" if self._own else ", and is the URL right?"
        return WorkError(f"the service at {self._own or self.url} does not answer ({error}); is it running{running}")


def urls_in(text: str) -> list[str]:
    """Return the URLs that a text joins by commas."""
    urls = [url.strip().rstrip("/") for url in text.split(",")]
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"{url!r:.200} is no URL; write http:// or https:// before it")
        try:
            httpx.URL(url)
        except (httpx.InvalidURL, ValueError):
            raise UsageError(f"{url!r:.200} is no URL; write it as https://HOST:PORT") from None
    return urls


def _place(job_id: str) -> str:
    if not re.fullmatch("[0-9a-f]{12}", job_id):
        raise NothingFoundError(f"there is no job {job_id!r:.60}; `tunery jobs list` shows those there are")
    return f"/v1/jobs/{job_id}"


def _error(answer: httpx.Response) -> UsageError | WorkError | NothingFoundError:
    try:
        found = answer.json()
        said = str(found["detail"])
        if answer.status_code in _NO_CALL and found.get("type") == _NO_PROBLEM_OF_OURS:
            return UsageError(f"the service at {answer.url.host} cannot do that: it is of an older version of tunery")
    except (ValueError, KeyError, TypeError, AttributeError):
        said = f"the service answers {answer.status_code}; is {answer.url.host} a service of tunery?"
    if answer.status_code == httpx.codes.NOT_FOUND:
        return NothingFoundError(said)
    return UsageError(said) if answer.is_client_error else WorkError(said)
