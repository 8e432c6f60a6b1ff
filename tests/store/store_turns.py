"""Writers of one store that are stopped and continued while its files are moved, deleted and replaced, in random order:
`store_turns.py FOLDER FIRST_SEED COUNT` prints a line for all that was lost or spoilt, and then how many were tried.

What is taken away goes to a folder of its own and is looked into as well: only what no file holds is lost, or what an
error says is in a file that does not have it."""

import os
import random
import re
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from store_child import write
from store_samples import record, task

from tunery._errors import StoreError
from tunery.store import open_store

_WRITES, _MOST_WRITERS = 300, 4


class Attack:
    def __init__(self, folder: Path, seed: int) -> None:
        self._random, self._folder = random.Random(seed), folder
        self._path, self._grave = folder / "store" / "store.db", folder / "grave"
        self._writers: dict[int, Path] = {}
        self._names = 0
        self._put: set[str] = set()
        self._moved: list[Path] = []
        self.turns: list[str] = []
        self._path.parent.mkdir(parents=True)
        self._grave.mkdir()

    def faults(self) -> Iterator[str]:
        self.open()
        (said,) = self._writers.values()
        while not said.exists() or not said.stat().st_size:
            time.sleep(0.01)
        for _ in range(self._random.randint(6, 16)):
            turn = self._random.choice(_TURNS)
            self.turns.append(turn.__name__)
            with suppress(FileNotFoundError):
                turn(self)
            time.sleep(self._random.choice((0.0, 0.001, 0.01, 0.05)))
        for writer in self._writers:
            os.kill(writer, signal.SIGCONT)
        for writer in self._writers:
            os.waitpid(writer, 0)
        yield from self._lost()

    def stop(self) -> None:
        os.kill(self._random.choice([*self._writers]), signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self._random.choice([*self._writers]), signal.SIGCONT)

    def replace(self) -> None:
        with open_store(str(spare := self._new())) as store:
            store.add_record(task(), record(task(), key := f"spare-{self._names}"))
        self._put.add(key)
        self._replace(spare)

    def replace_by_copy(self) -> None:
        shutil.copy(self._path, spare := self._new())
        self._replace(spare)

    def delete(self) -> None:
        self._path.rename(self._new())

    def delete_log(self) -> None:
        Path(f"{self._path}-wal").rename(self._new())

    def delete_index(self) -> None:
        Path(f"{self._path}-shm").rename(self._new())

    def delete_all(self) -> None:
        for file in self._path.parent.glob("store.db*"):
            if ".rescued-" not in file.name:
                file.rename(self._new())

    def move_away(self) -> None:
        self._path.rename(away := self._new())
        self._moved.append(away)

    def move_back(self) -> None:
        if self._moved and not self._path.exists():
            self._moved.pop().rename(self._path)

    def open(self) -> None:
        if len(self._writers) == _MOST_WRITERS:
            return
        said = self._folder / f"said-{len(self._writers)}"
        if writer := os.fork():
            self._writers[writer] = said
            return
        with said.open("w") as file:
            os.dup2(file.fileno(), 1)
            try:
                with open_store(str(self._path)) as store:
                    write(store, said.name, _WRITES)
                print("ended", flush=True)
            except StoreError as error:
                print(f"StoreError: {error}", flush=True)
            except BaseException as error:  # noqa: BLE001 - the forked process ends here
                print(f"fault: {error!r}", flush=True)
        os._exit(0)

    def _new(self) -> Path:
        self._names += 1
        return self._grave / f"{self._names}.db"

    def _replace(self, spare: Path) -> None:
        with suppress(FileNotFoundError):  # keeps what is replaced; for a moment it has two names
            os.link(self._path, self._new())
        spare.rename(self._path)

    def _lost(self) -> Iterator[str]:
        stored: dict[Path, set[str]] = {}
        for file in (*self._path.parent.iterdir(), *self._grave.iterdir()):
            if not file.name.endswith(("-wal", "-shm")) and file.read_bytes()[:15] == b"SQLite format 3":
                try:
                    stored[file] = keys_of(file)
                except sqlite3.Error as error:
                    yield f"{file.name}: {error}"
        everything = set().union(*stored.values())
        if missing := self._put - everything:
            yield f"of other stores {missing} is lost"
        for said in self._writers.values():
            *acknowledged, last = said.read_text().splitlines() or ["nothing"]
            missing = set(acknowledged) - everything
            if rescued := re.search(r"is in (\S+\.rescued-\S+): move", last):
                missing |= set(acknowledged) - stored.get(Path(rescued[1]), set())
            elif last != "ended" and (acknowledged or not last.startswith("StoreError")):
                yield f"a writer of {len(acknowledged)} ended with {last}"
            if missing:
                yield f"a writer of {len(acknowledged)} lost {len(missing)}; it ended with {last}"


_TURNS = (
    *(3 * [Attack.stop]), *(2 * [Attack.open, Attack.replace]), Attack.go_on, Attack.replace_by_copy, Attack.delete,
    Attack.delete_log, Attack.delete_index, Attack.delete_all, Attack.move_away, Attack.move_back,
)  # fmt: skip


def keys_of(file: Path) -> set[str]:
    with closing(sqlite3.connect(file)) as store:
        if (state := store.execute("PRAGMA integrity_check").fetchone()[0]) != "ok":
            raise sqlite3.DatabaseError(state)
        was_made = store.execute("SELECT 1 FROM sqlite_master WHERE name = 'records'").fetchone()
        return {row[0] for row in store.execute("SELECT candidate_key FROM records")} if was_made else set()


def main(folder: str, first: str, count: str) -> None:
    for seed in range(int(first), int(first) + int(count)):
        attack = Attack(Path(folder, str(seed)), seed)
        for fault in attack.faults():
            print(f"seed {seed}: {fault}; {', '.join(attack.turns)}", flush=True)
    print(f"tried {count}")


if __name__ == "__main__":
    main(*sys.argv[1:])
