"""Networks, and the cache of the tasks that were extracted from them."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from tunery._errors import NothingFoundError
from tunery.domain import Network, Target, Task
from tunery.store import _schema
from tunery.store._codec import decode, encode, pack
from tunery.store._database import Database, insert_new
from tunery.store._records import insert_tasks
from tunery.store._rows import to_task

_EMPTY = pack("")


class Networks(Database):
    """The store's networks."""

    def save_tasks(self, network: Network, tasks: Sequence[Task], *, target: Target, compiler: str) -> None:
        """Remember a network and what `compiler` extracts from it for `target`, in place of an earlier answer."""
        listed = [_listing(task) for task in tasks]
        with self._write() as connection:
            insert_tasks(connection, tasks)
            insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
            document = {"document": encode(network)}
            upsert = insert(_schema.networks).values(digest=network.digest, **document)
            connection.execute(upsert.on_conflict_do_update(index_elements=["digest"], set_=document))
            place = {"network": network.digest, "target_key": target.key, "compiler": compiler}
            connection.execute(sa.delete(_schema.extractions).filter_by(**place))
            connection.execute(sa.insert(_schema.extractions).values(document=listed, **place))

    def load_tasks(self, digest: str, target_key: str, compiler: str, *, programs: bool = True) -> list[Task] | None:
        """Return what was extracted from the network with this digest, None if that was never done.

        An empty list says that it was done and there is nothing to tune. Without `programs` every workload's program is
        "": enough for counting, and read in a fraction of the time.
        """
        place = {"network": digest, "target_key": target_key, "compiler": compiler}
        query = sa.select(_schema.extractions.c.document).filter_by(**place)
        with self._read() as connection:
            listed = connection.execute(query).scalar()
            if listed is None:
                return None
            keys = [entry["workload"]["key"] for entry in listed] if programs else []
            table = _schema.workloads
            wanted = sa.select(table.c.key, table.c.program).where(table.c.key.in_(keys))
            found: dict[str, bytes] = {row[0]: row[1] for row in connection.execute(wanted)}
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

    def owners(self) -> dict[str, tuple[str, ...]]:
        """Return, by workload key, the sorted names of all networks that hold the workload, on whatever target."""
        with self._read() as connection:
            return {key: tuple(sorted(set(found.values()))) for key, found in holders(connection).items()}

    def network(self, digest: str) -> Network:
        """Return a network that `save_tasks` has seen; of one that is known by an import there is only the name.

        Raises:
            NothingFoundError: neither knows it.
        """
        query = sa.select(_schema.networks.c.document).where(_schema.networks.c.digest == digest)
        with self._read() as connection:
            document = connection.execute(query).scalar()
        if document is None:
            raise NothingFoundError(f"the store {self.place} knows no network {digest}; extract it first")
        return decode(Network, document)


def holders(connection: Connection) -> dict[str, dict[str, str]]:
    """Return, by workload key, the names of all networks that hold the workload, by their digests."""
    extractions, networks = _schema.extractions.c, _schema.networks.c
    names = sa.select(networks.digest, networks.document)
    named = {digest: decode(Network, document).name for digest, document in connection.execute(names)}
    found: dict[str, dict[str, str]] = {}
    query = sa.select(extractions.network, extractions.document).order_by(extractions.network)
    for digest, listed in connection.execute(query):
        for entry in listed:
            found.setdefault(entry["workload"]["key"], {})[digest] = named[digest]
    return found


def insert_holders(connection: Connection, found: Mapping[str, Mapping[str, str]]) -> None:
    """Remember which networks hold some workloads: `holders` as another store knew them.

    They are listed for no target and no compiler: what `load_tasks` is asked for is all that a network holds.
    """
    names = {digest: name for networks in found.values() for digest, name in networks.items()}
    stubs = (Network(name, "", digest, "", (), (), 0) for digest, name in names.items())
    insert_new(connection, _schema.networks, [{"digest": stub.digest, "document": encode(stub)} for stub in stubs])
    table = _schema.extractions
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
