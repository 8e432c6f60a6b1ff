"""Which thread calls compiled code: TVM's runtime keeps a pool of threads for every thread that calls it with several.

So the main thread calls it itself, and other threads have a few helpers do it, at most as many as a kernel may have
threads: callers may come and go. A forked process has none of its parent's pools, though its main thread believes that
it has: there all is left to helpers, which are new. A call with one thread needs no pool, and stays in its caller's.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tunery.dialects.metaschedule.loading import library

A = TypeVar("A")


class _Callers:
    def __init__(self, *, forked: bool = False) -> None:
        self.forked = forked
        self._main = 0 if forked else threading.main_thread().ident
        self._called = False
        self._helpers: ThreadPoolExecutor | None = None
        self._starting = threading.Lock()

    def reset(self) -> None:
        """Begin anew, in a process that was forked."""
        self.__init__(forked=self.forked or self._called)  # type: ignore[misc]

    def run(self, threads: int, function: Callable[..., A], *given: Any) -> A:
        if threads == 1:
            library.limit_threads(1)
            try:
                return function(*given)
            finally:
                library.limit_threads(0)
        if threading.get_ident() == self._main:
            self._called = True
            return _with_pool(threads, function, *given)
        with self._starting:
            if self._helpers is None:
                self._helpers = ThreadPoolExecutor(int(os.environ["TVM_NUM_THREADS"]), "tunery-caller")
        return self._helpers.submit(_with_pool, threads, function, *given).result()


def _with_pool(threads: int, function: Callable[..., A], *given: Any) -> A:
    library.configure_threads(1, threads)
    return function(*given)


_callers = _Callers()
os.register_at_fork(after_in_child=_callers.reset)


run = _callers.run
"""Returns what a function returns that calls compiled code with so many threads; it may run in another thread."""
