"""Requests as the store keeps them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from tunery.domain import DEFAULT_KIND, Budget, JobStatus
from tunery.domain.keys import canonical_json
from tunery.domain.request import Request, ShareRequest, Trimming
from tunery.runtime.importing import ImportedModel, absolute
from tunery.service.kinds import identity

_QUEUE = "queue"  # the store does not take what begins so for a part of the job's identity

_SELDOM = ("trust", "on")
_STORED = {
    **{name: name for name in ("target", "dialect", "threads", "effort", "seed", "pretrained")},
    "prices": "budget_prices", "latency_target_s": "budget_latency_target_s",
}  # fmt: skip
"""Fields of a request by the names under which the store has them; of `_SELDOM` ones those that are set."""

Shapes = Mapping[str, tuple[int, ...]]
Plain = dict[str, str | int | float | bool | None]


def request_data(request: Request, imported: ImportedModel | None = None, claim: ShareRequest | None = None) -> Plain:
    """Return the request as plain data, as stored: what `jobs resume` needs to go on.

    Before it was imported a model goes by its path; a request with a claim is one of a queue.
    """
    model = absolute(request.model)
    data: Plain = {
        "model": model,
        "network": imported.network.digest if imported else "",
        "name": imported.network.name if imported else Path(model).stem,
        "shapes": json.dumps(_listed(request.shapes)),
        "target_key": imported.target.key if imported and len(request.dialects) == 1 else "",
        **budget_data(request.budget),
        **{stored: getattr(request, name) for name, stored in _STORED.items()},
        **{name: value for name in _SELDOM if (value := getattr(request, name))},
        **({} if claim is None else {f"{_QUEUE}_{key}": value for key, value in asdict(claim).items()}),
    }
    if request.kind != DEFAULT_KIND:
        data["kind"] = request.kind
    if request.options or request.kind != DEFAULT_KIND:
        data["options"] = canonical_json(dict(request.options))
    if kept := identity(request):
        data["identity"] = canonical_json(kept)
    if request.trimming != Trimming():
        data["trimming"] = canonical_json(asdict(request.trimming))
    if request.more_shapes:
        data["more_shapes"] = json.dumps([*map(_listed, request.more_shapes)])
    return data


def budget_data(budget: Budget) -> Plain:
    return {
        "budget_s": budget.seconds,
        "budget_trials": budget.trials,
        "budget_money": budget.money,
        "budget_currency": budget.currency,
        "budget_joules": budget.joules,
    }


def _listed(shapes: Shapes) -> dict[str, list[int]]:
    return {name: list(shape) for name, shape in sorted(shapes.items())}


def _read(shapes: Mapping[str, list[int]]) -> Shapes:
    return {name: tuple(shape) for name, shape in shapes.items()}


def request_of(status: JobStatus, store: str) -> Request:
    data: Mapping[str, Any] = status.request
    budget = Budget(*(data[name] for name in budget_data(Budget())))
    return Request(
        model=data["model"], shapes=_read(json.loads(data["shapes"])), budget=budget, store=store, kind=status.kind,
        options=json.loads(data.get("options", "{}")), trimming=Trimming(**json.loads(data.get("trimming", "{}"))),
        more_shapes=tuple(map(_read, json.loads(data.get("more_shapes", "[]")))),
        **{name: data[stored] for name, stored in _STORED.items()},
        **{name: data[name] for name in _SELDOM if name in data},
    )  # fmt: skip


def claim_of(status: JobStatus) -> ShareRequest | None:
    found: dict[str, Any] = {f.name: status.request.get(f"{_QUEUE}_{f.name}") for f in fields(ShareRequest)}
    return None if None in found.values() else ShareRequest(**found)
