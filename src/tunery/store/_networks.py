"""Networks, and the cache of the tasks that were extracted from them."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from tunery._errors import NothingFoundError
from tunery.domain import Network, Target, Task
from tunery.store import _schema
from tunery.store._codec import decode, encode, pack
from tunery.store._database import Database
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
        table = _schema.extractions
        query = sa.select(_schema.networks.c.document, table.c.document).join_from(
            table, _schema.networks, table.c.network == _schema.networks.c.digest
        )
        found: dict[str, set[str]] = {}
        with self._read() as connection:
            for network, listed in connection.execute(query):
                for entry in listed:
                    found.setdefault(entry["workload"]["key"], set()).add(decode(Network, network).name)
        return {key: tuple(sorted(names)) for key, names in found.items()}

    def network(self, digest: str) -> Network:
        """Return a network that `save_tasks` has seen.

        Raises:
            NothingFoundError: it has not.
        """
        query = sa.select(_schema.networks.c.document).where(_schema.networks.c.digest == digest)
        with self._read() as connection:
            document = connection.execute(query).scalar()
        if document is None:
            raise NothingFoundError(f"the store {self.place} knows no network {digest}; extract it first")
        return decode(Network, document)


def _listing(task: Task) -> dict[str, Any]:
    """Return the task without its program: names and weights are the network's, the program is stored once."""
    document: dict[str, Any] = encode(task)
    del document["workload"]["program"]
    return document
