"""The services that this user has logged in to: their URLs and tokens, in a file that nobody else reads."""

import json
import stat
from contextlib import suppress
from typing import Any

from tunery._errors import UsageError, WorkError
from tunery._outputs import replacing
from tunery._settings import login_file, settings
from tunery.web.client._http import ServiceClient, urls_in


def login(url: str, token: str) -> tuple[dict[str, Any], list[str]]:
    """Check a token and keep it for the service; return the account, and which of its URLs do not answer now.

    The URLs of several coordinators are joined by commas. Other services' tokens stay.
    """
    urls, account, silent = urls_in(url), dict[str, Any](), list[str]()
    for one in urls:
        try:
            with ServiceClient(one, token) as service:
                account = service.me()
        except WorkError:
            silent.append(one)
            if silent == urls:
                raise
    others = [kept for kept in _kept() if not {*kept["urls"]} & {*urls}]
    path = login_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        part.touch(mode=stat.S_IRUSR | stat.S_IWUSR)
        part.chmod(stat.S_IRUSR | stat.S_IWUSR)
        part.write_text(json.dumps([{"urls": urls, "token": token}, *others]))
    return account, silent


def connect(url: str = "", token: str = "") -> ServiceClient:
    """Return the service at `url`, else at TUNERY_SERVER, else of the latest login; its token is found likewise.

    A URL stands for all that it was logged in with, and comes first.
    """
    kept, given = _kept(), url or settings().server
    urls = urls_in(given) if given else kept[0]["urls"] if kept else []
    nobody: dict[str, Any] = {"urls": [], "token": ""}
    found = next((one for one in kept if {*one["urls"]} & {*urls}), nobody)
    token = token or settings().token or found["token"]
    if not urls or not token:
        raise UsageError(
            f"nobody has logged in{f' at {given}' * bool(urls)}; log in with `tunery login {given or 'URL'}`"
        )
    return ServiceClient(",".join(dict.fromkeys([*urls, *found["urls"]])), token)


def logged_in() -> str:
    return next((str(login["urls"][0]) for login in _kept()), "")


def _kept() -> list[dict[str, Any]]:
    """Return the logins, the latest first."""
    with suppress(OSError, ValueError):
        return list(json.loads(login_file().read_text()))
    return []
