"""What was measured on the same type of processor, elsewhere or by another version of the compiler.

It is the rung below this device's own records.
"""

from collections.abc import Sequence
from dataclasses import replace

from tunery.delivery.ladder import KnownTask
from tunery.domain import Choice, Provenance, Rung
from tunery.store import Offer, Store
from tunery.tuning.work import Work

OFFERS = 2
"""How many candidates of a task each compatible device may offer, of each version of the compiler."""


async def offers_for(work: Work, provenance: Provenance, known: Sequence[KnownTask]) -> dict[str, list[Offer]]:
    """Return by task what is offered for those that are open, the fastest there first."""
    keys = [each.task.key for each in known if each.open and each.task.tunable]
    device = await work.runtime.device()

    def ask(store: Store) -> dict[str, list[Offer]]:
        return store.offers(keys, provenance, store.devices.of_type(device.fingerprint, device.as_facts()), OFFERS)

    return await work.store.read(ask) if keys else {}


def offered(each: KnownTask, offers: Sequence[Offer]) -> KnownTask:
    if not offers:
        return each
    candidate, latency_s = offers[0].record.candidate, offers[0].record.measurement.latency_s
    choice = Choice(each.task.key, Rung.COMPATIBLE, candidate, latency_s, source=offers[0].source)
    return replace(each, choice=choice, untried=False, refused="")
