"""A process that the fault tests start, limit and kill: `store_child.py URL write PREFIX COUNT` or `URL own JOB`."""

import sys
import time

from store_samples import record, task

from tunery._errors import StoreError
from tunery.store import Store, open_store


def say(word: object) -> None:
    print(word, flush=True)


def write(store: Store, prefix: str, count: int) -> None:
    conv = task()
    for number in range(count):
        key = f"{prefix}-{number}"
        store.add_record(conv, record(conv, key, context={"padding": [number] * 200}))
        say(key)  # the acknowledgement: from here on the record must survive anything


def own(store: Store, job_id: str) -> None:
    say(store.acquire_job(job_id))
    time.sleep(600)


def main(url: str, verb: str, *arguments: str) -> None:
    try:
        with open_store(url) as store:
            if verb == "write":
                write(store, arguments[0], int(arguments[1]))
            else:
                own(store, arguments[0])
    except StoreError as error:
        say(f"StoreError: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
