"""Asking a service: what it is asked for over HTTP (`_http`), and whole requests of ours with their answers."""

from tunery.web.client._http import ServiceClient, status_of, urls_in
from tunery.web.client._logins import connect, logged_in, login
from tunery.web.client._requests import Watcher, compile_there, fetch, progress_of, run_there, submit

__all__ = [
    "ServiceClient", "Watcher", "compile_there", "connect", "fetch", "logged_in", "login", "progress_of", "run_there",
    "status_of", "submit", "urls_in",
]  # fmt: skip
