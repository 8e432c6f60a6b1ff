"""A process that the fault tests start, limit and kill: `store_child.py URL VERB ARGUMENTS`.

The verbs are `write PREFIX COUNT`, `write-many JOB` and `own JOB`.
"""

import asyncio
import itertools
import sys
import time

from store_samples import record, task

from tunery._errors import StoreError
from tunery.store import AsyncStore, Charge, Store, open_store


def say(word: object) -> None:
    print(word, flush=True)


def write(store: Store, prefix: str, count: int) -> None:
    conv = task()
    for number in range(count):
        key = f"{prefix}-{number}"
        store.add_record(conv, record(conv, key, context={"padding": [number] * 200}))
        say(key)  # the acknowledgement: from here on the record must survive anything


async def write_many(store: Store, job_id: str) -> None:
    """Have 16 coroutines store record after record, each with its charge, until the end."""
    conv, numbers = task(), itertools.count()
    with AsyncStore(store) as calls:

        async def work() -> None:
            for number in numbers:
                key = f"m-{number}"
                await calls.add_records(
                    conv, [record(conv, key)], [Charge(job_id, key, "measure", "ok", 1.0, 1.0, 1.0)]
                )
                say(key)

        await asyncio.gather(*(work() for _ in range(16)))


def own(store: Store, job_id: str) -> None:
    say(store.acquire_job(job_id))
    time.sleep(600)


def main(url: str, verb: str, *arguments: str) -> None:
    try:
        with open_store(url) as store:
            if verb == "write":
                write(store, arguments[0], int(arguments[1]))
            elif verb == "write-many":
                asyncio.run(write_many(store, arguments[0]))
            else:
                own(store, arguments[0])
    except StoreError as error:
        say(f"StoreError: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
