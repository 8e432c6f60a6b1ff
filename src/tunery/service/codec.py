"""Requests as the store keeps them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from tunery.domain import Budget, JobStatus
from tunery.domain.keys import canonical_json
from tunery.domain.request import Request, ShareRequest, decoded
from tunery.reports.data import plain
from tunery.runtime.importing import ImportedModel, absolute
from tunery.service.kinds import identity

_QUEUE = "queue"  # the store does not take what begins so for a part of the job's identity
_SELDOM = ("kind", "options", "trimming", "more_shapes", "trust", "on")
"""Fields of a request that are stored where they are not the default; others always."""
_STORED = {
    field.name: {"prices": "budget_prices", "latency_target_s": "budget_latency_target_s"}.get(field.name, field.name)
    for field in fields(Request)
    if field.name not in {"model", "budget", "store"}
}
Plain = dict[str, str | int | float | bool | None]


def request_data(request: Request, imported: ImportedModel | None = None, claim: ShareRequest | None = None) -> Plain:
    """Return the request as plain data, as stored: what `jobs resume` needs to go on. Before it was imported a model
    goes by its path; a request with a claim is one of a queue."""
    model, usual = absolute(request.model), Request("")
    data: Plain = {
        "model": model,
        "network": imported.network.digest if imported else "",
        "name": imported.network.name if imported else Path(model).stem,
        "target_key": imported.target.key if imported and len(request.dialects) == 1 else "",
        **budget_data(request.budget),
        **({} if claim is None else {f"{_QUEUE}_{key}": value for key, value in asdict(claim).items()}),
    }
    for name, stored in _STORED.items():
        if name not in _SELDOM or (value := getattr(request, name)) != getattr(usual, name):
            value = getattr(request, name)
            data[stored] = (
                value if value is None or isinstance(value, str | int | float) else canonical_json(plain(value))
            )
    if kept := identity(request):
        data["identity"] = canonical_json(kept)
    return data


def budget_data(budget: Budget) -> Plain:
    return {
        "budget_s": budget.seconds,
        "budget_trials": budget.trials,
        "budget_money": budget.money,
        "budget_currency": budget.currency,
        "budget_joules": budget.joules,
    }


def request_of(status: JobStatus, store: str) -> Request:
    data: Mapping[str, Any] = status.request
    found = {name: data[stored] for name, stored in _STORED.items() if stored in data}
    for name in ("shapes", "more_shapes", "options", "trimming"):
        if name in found:
            found[name] = decoded(name, json.loads(found[name]))
    return Request(data["model"], budget=Budget(*(data[name] for name in budget_data(Budget()))), store=store, **found)


def claim_of(status: JobStatus) -> ShareRequest | None:
    found: dict[str, Any] = {f.name: status.request.get(f"{_QUEUE}_{f.name}") for f in fields(ShareRequest)}
    return None if None in found.values() else ShareRequest(**found)
