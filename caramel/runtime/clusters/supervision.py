"""Calls that are given up once a worker is lost for which they wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from caramel.errors import ClusterError
from caramel.runtime.executor import WHAT_TO_DO
from caramel.util.daemon_threads import DaemonThreads

_POLL_S = 0.2
"""Seconds between two looks at the workers."""


class Supervisor:
    """Makes calls on the servers of a cluster, of which neither a run nor the closing of a session can be aborted.

    A call runs in a thread. If a worker is lost meanwhile, the thread is left alone, and nothing else can be called.

    Args:
        lost: function that says which workers are lost, as a clause; empty while none is.
        named: function that says the same of an error that TensorFlow has reported; it may look more closely.
        grace_s: seconds that TensorFlow may take to report by itself what a lost worker did to a step.
    """

    def __init__(self, lost: Callable[[], str], named: Callable[[], str], grace_s: float = 0.0) -> None:
        self._lost, self._named, self._grace_s = lost, named, grace_s
        self._threads = DaemonThreads(1, "session")
        self._running: Future[Any] | None = None
        self._failure = ""

    @property
    def has_failed(self) -> bool:
        """Whether a call has ended with a lost worker."""
        return bool(self._failure)

    @property
    def is_stuck(self) -> bool:
        """Whether a call has not returned: it was given up, or interrupted."""
        return self._running is not None and not self._running.done()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function.

        Args:
            function: function to call.
            arguments: its arguments.

        Returns:
            What it returns.

        Raises:
            ClusterError: a worker is lost.
            BaseException: what it raises.
        """
        if self.is_stuck:
            raise ClusterError(self._failure or f"a step was interrupted, and has not ended. {WHAT_TO_DO}")
        self._running = running = self._threads.submit(function, *arguments)
        while not wait([running], _POLL_S).done:
            if self._lost() and not wait([running], self._grace_s).done and (lost := self._lost()):
                self._failure = f"a worker is lost: {lost}. {WHAT_TO_DO}"
                raise ClusterError(self._failure)
        try:
            return running.result()
        except ClusterError as error:
            names = self._named()
            self._failure = f"{names}: {error}" if names else str(error)
            raise ClusterError(self._failure) from error

    def close(self, function: Callable[[], None], leave: Callable[[], None], patience_s: float) -> bool:
        """Call a function that closes a session; where it cannot end soon, leave everything as it is.

        Closing ends a run that is under way.

        Args:
            function: function that closes the session.
            leave: function that gives the session up without it.
            patience_s: seconds that closing may take.

        Returns:
            Whether it was closed.
        """
        closing = None if self._lost() else DaemonThreads(1, "closing").submit(function)
        deadline_s = time.monotonic() + patience_s
        while closing is not None and time.monotonic() < deadline_s and not self._lost():
            if wait([closing], _POLL_S).done:
                closing.result()
                return True
        leave()
        return False
