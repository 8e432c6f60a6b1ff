"""Requests as the store keeps them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from tunery.domain import DEFAULT_KIND, Budget, JobStatus
from tunery.domain.keys import canonical_json
from tunery.domain.request import Request, ShareRequest, Trimming
from tunery.runtime.importing import ImportedModel
from tunery.runtime.preparing import absolute
from tunery.service.kinds import identity

_QUEUE = "queue"  # the store does not take what begins so for a part of the job's identity

Plain = dict[str, str | int | float | bool | None]


def request_data(request: Request, imported: ImportedModel | None = None, claim: ShareRequest | None = None) -> Plain:
    """Return the request as plain data, as stored: what `jobs resume` needs to go on.

    Before it was imported a model goes by its path; a request with a claim is one of a queue.
    """
    model = absolute(request.model)
    queued = {} if claim is None else {f"{_QUEUE}_{key}": value for key, value in asdict(claim).items()}
    other: Plain = {} if request.kind == DEFAULT_KIND else {"kind": request.kind}
    if request.options or request.kind != DEFAULT_KIND:
        other["options"] = canonical_json(dict(request.options))
    if kept := identity(request):
        other["identity"] = canonical_json(kept)
    trusted: Plain = {"trust": True} if request.trust else {}
    if request.trimming != Trimming():
        other["trimming"] = canonical_json(asdict(request.trimming))
    return {
        "model": model,
        "network": imported.network.digest if imported else "",
        "name": imported.network.name if imported else Path(model).stem,
        "shapes": json.dumps({name: list(shape) for name, shape in sorted(request.shapes.items())}),
        "target": request.target,
        "target_key": imported.target.key if imported and len(request.dialects) == 1 else "",
        "dialect": request.dialect,
        "threads": request.threads,
        "effort": request.effort,
        **budget_data(request.budget),
        "budget_prices": request.prices,
        "budget_latency_target_s": request.latency_target_s,
        "seed": request.seed,
        "pretrained": request.pretrained,
        **other,
        **trusted,
        **({"on": request.on} if request.on else {}),
        **({"more_shapes": _shapes_text(request.more_shapes)} if request.more_shapes else {}),
        **queued,
    }


def budget_data(budget: Budget) -> Plain:
    return {
        "budget_s": budget.seconds,
        "budget_trials": budget.trials,
        "budget_money": budget.money,
        "budget_currency": budget.currency,
        "budget_joules": budget.joules,
    }


def _shapes_text(several: Sequence[Mapping[str, tuple[int, ...]]]) -> str:
    return json.dumps([{name: list(shape) for name, shape in sorted(shapes.items())} for shapes in several])


def request_of(status: JobStatus, store: str) -> Request:
    """Return the request a stored job was submitted with."""
    data: Mapping[str, Any] = status.request
    return Request(
        model=data["model"],
        shapes={name: tuple(shape) for name, shape in json.loads(data["shapes"]).items()},
        target=data["target"],
        dialect=data["dialect"],
        threads=data["threads"],
        budget=Budget(
            data["budget_s"],
            data["budget_trials"],
            data.get("budget_money"),
            data.get("budget_currency", ""),
            data.get("budget_joules"),
        ),
        prices=data.get("budget_prices", ""),
        latency_target_s=data.get("budget_latency_target_s"),
        effort=data["effort"],
        store=store,
        seed=data["seed"],
        pretrained=data.get("pretrained", True),  # jobs of earlier versions do not say
        kind=status.kind,
        options=json.loads(data.get("options", "{}")),
        trust=data.get("trust", False),
        trimming=Trimming(**json.loads(data.get("trimming", "{}"))),
        on=data.get("on", ""),
        more_shapes=tuple(
            {name: tuple(shape) for name, shape in one.items()} for one in json.loads(data.get("more_shapes", "[]"))
        ),
    )


def claim_of(status: JobStatus) -> ShareRequest | None:
    found: dict[str, Any] = {f.name: status.request.get(f"{_QUEUE}_{f.name}") for f in fields(ShareRequest)}
    return None if None in found.values() else ShareRequest(**found)
