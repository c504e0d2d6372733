"""Threads for calls that may never return."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

_Call = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...]]


class DaemonThreads:
    """A pool of threads for which a process does not wait when it ends.

    The interpreter joins the threads of a ThreadPoolExecutor, so that one call that never returns keeps the process for
    ever. Idle threads end when the pool is collected.

    Args:
        count: largest number of threads.
        name: name of the threads.

    Examples:
        >>> threads = DaemonThreads(2, "adding")
        >>> threads.submit(sum, [1, 2]).result()
        3
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._started = 0
        self._finalizer = weakref.finalize(self, _end, self._calls, count)
        self._finalizer.atexit = False  # daemon threads end with the process

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Let one of the threads call a function.

        Args:
            function: function to call.
            arguments: its arguments.
        """
        future: Future[Any] = Future()
        self._calls.put((future, function, arguments))
        if self._started < self._count:
            try:
                threading.Thread(target=_work, args=(self._calls,), name=self._name, daemon=True).start()
            except RuntimeError:  # the interpreter ends, and starts none any more (from Python 3.12 on)
                if self._started == 0:
                    self._calls.put(None)
                    _work(self._calls)
            else:
                self._started += 1
        return future


def _work(calls: SimpleQueue[_Call | None]) -> None:
    while True:
        call = calls.get()
        if call is None:
            return
        future, function, arguments = call
        try:
            result = function(*arguments)
        except BaseException as error:  # whoever asks for the result gets it
            future.set_exception(error)
        else:
            future.set_result(result)
            del result
        del call, future, function, arguments  # an idle thread keeps nothing alive


def _end(calls: SimpleQueue[_Call | None], count: int) -> None:
    for _ in range(count):
        calls.put(None)
