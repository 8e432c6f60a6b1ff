"""Asking a service: what it is asked for over HTTP (`_http`), and whole requests of ours with their answers."""

from tunery.reports.data import status_of
from tunery.web.client._http import ServiceClient, urls_in
from tunery.web.client._logins import connect, logged_in, login
from tunery.web.client._requests import There, UnfinishedError, Watcher, fetch, progress_of, submit

__all__ = [
    "ServiceClient", "There", "UnfinishedError", "Watcher", "connect", "fetch", "logged_in", "login", "progress_of",
    "status_of", "submit", "urls_in",
]  # fmt: skip
