"""Networks, and the cache of the tasks that were extracted from them."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tunery._errors import NothingFoundError
from tunery.domain import Network, Target, Task
from tunery.store.database import schema
from tunery.store.database.codec import decode, encode, pack
from tunery.store.database.connection import Database, batched, insert_new, upsert
from tunery.store.records.records import insert_tasks
from tunery.store.records.rows import to_task

_EMPTY = pack("")


class Networks(Database):
    """The store's networks."""

    def save_tasks(
        self,
        network: Network,
        tasks: Sequence[Task],
        *,
        target: Target,
        compiler: str,
        elsewhere: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Remember a network and what `compiler` (an extractor) makes of it for `target`."""
        row = {"digest": network.digest, "document": encode(network)}
        place = {"network": network.digest, "target_key": target.key, "compiler": compiler}
        listed = [_listing(task) for task in tasks]

        def insert(connection: Connection) -> None:
            insert_tasks(connection, tasks)
            upsert(connection, schema.networks, row, replaced=["document"])
            found = {**place, "document": listed, "elsewhere": dict(elsewhere)}
            upsert(connection, schema.extractions, found, replaced=["document", "elsewhere"])

        self.write(insert)

    def load_tasks(self, digest: str, target_key: str, compiler: str, *, programs: bool = True) -> list[Task] | None:
        """Return what was extracted from the network; None if that was never done, or where a program of it came by an
        import: the network itself gives it. Without `programs` every workload's program is "": enough for counting, and
        read in a fraction of the time."""
        place = {"network": digest, "target_key": target_key, "compiler": compiler}
        query = sa.select(schema.extractions.c.document).filter_by(**place)

        def ask(connection: Connection) -> tuple[list[dict[str, Any]] | None, dict[str, bytes]]:
            listed = connection.execute(query).scalar()
            keys = [entry["workload"]["key"] for entry in listed or ()] if programs else []
            return listed, _programs(connection, keys)

        listed, found = self.read(ask)
        if listed is None:
            return None
        if programs and any(entry["workload"]["key"] not in found for entry in listed):
            return None
        return [
            to_task(
                e["workload"],
                found[e["workload"]["key"]] if programs else _EMPTY,
                e["target"],
                e["tunable"],
                e["weight"],
            )
            for e in listed
        ]

    def load_elsewhere(self, digest: str, target_key: str, compiler: str) -> dict[str, str]:
        place = {"network": digest, "target_key": target_key, "compiler": compiler}
        query = sa.select(schema.extractions.c.elsewhere).filter_by(**place)
        return dict(self.read(lambda connection: connection.execute(query).scalar()) or {})

    def owners(self) -> dict[str, tuple[str, ...]]:
        return {key: tuple(sorted(set(found.values()))) for key, found in self.read(holders).items()}

    def networks_with(self, workload_key: str, account: str | None) -> dict[str, str]:
        """Return the networks that hold a workload, names by digest; with `account`, those of its jobs."""

        def ask(connection: Connection) -> dict[str, str]:
            held = holders(connection).get(workload_key, {})
            if account is None:
                return held
            requests = connection.execute(sa.select(schema.jobs.c.request).filter_by(account=account)).scalars()
            own = {request.get("network") for request in requests}
            return {digest: name for digest, name in held.items() if digest in own}

        return self.read(ask)

    def network(self, digest: str) -> Network:
        """Return a network that `save_tasks` has seen; of one that is known by an import there is only the name."""
        query = sa.select(schema.networks.c.document).where(schema.networks.c.digest == digest)
        document = self.read(lambda connection: connection.execute(query).scalar())
        if document is None:
            raise NothingFoundError(f"the store {self.place} knows no network {digest}; extract it first")
        return decode(Network, document)


def _programs(connection: Connection, keys: Sequence[str]) -> dict[str, bytes]:
    table = schema.workloads
    found: dict[str, bytes] = {}
    for some in batched(keys):
        wanted = sa.select(table.c.key, table.c.program).where(table.c.key.in_(some), sa.not_(table.c.imported))
        found.update((row[0], row[1]) for row in connection.execute(wanted))
    return found


def holders(connection: Connection) -> dict[str, dict[str, str]]:
    extractions, networks = schema.extractions.c, schema.networks.c
    names = sa.select(networks.digest, networks.document)
    named = {digest: decode(Network, document).name for digest, document in connection.execute(names)}
    found: dict[str, dict[str, str]] = {}
    query = sa.select(extractions.network, extractions.document).order_by(extractions.network)
    for digest, listed in connection.execute(query):
        for entry in listed:
            found.setdefault(entry["workload"]["key"], {})[digest] = named[digest]
    return found


def insert_holders(connection: Connection, found: Mapping[str, Mapping[str, str]]) -> None:
    """Remember which networks hold some workloads, as another store knew them. They are listed for no target and no
    compiler: what `load_tasks` is asked for is all that a network holds."""
    names = {digest: name for networks in found.values() for digest, name in networks.items()}
    stubs = (Network(name, "", digest, "", (), (), 0) for digest, name in names.items())
    insert_new(connection, schema.networks, [{"digest": stub.digest, "document": encode(stub)} for stub in stubs])
    table = schema.extractions
    for digest in names:
        place = {"network": digest, "target_key": "", "compiler": ""}
        before = connection.execute(sa.select(table.c.document).filter_by(**place)).scalar() or []
        keys = {key for key, networks in found.items() if digest in networks}
        keys |= {entry["workload"]["key"] for entry in before}
        connection.execute(sa.delete(table).filter_by(**place))
        listed = [{"workload": {"key": key}} for key in sorted(keys)]
        connection.execute(sa.insert(table).values(document=listed, **place))


def _listing(task: Task) -> dict[str, Any]:
    """Return the task without its program: names and weights are the network's, the program is stored once."""
    document: dict[str, Any] = encode(task)
    del document["workload"]["program"]
    return document
