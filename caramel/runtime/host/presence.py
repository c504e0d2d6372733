"""Which drivers use a server, as the server itself can tell.

A driver leaves a run on each server that puts the driver's name into a queue of one place, over and over, and so waits
until somebody takes the name out. Where the driver's process ends, in whatever way, its kernel closes the connection
and TensorFlow cancels the run: names of drivers that are gone run out. No code of the driver takes part, so one that is
busy, or stopped, is still there. Where its machine cannot be reached, this machine's kernel ends the connection.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from itertools import count
from typing import Any

import tensorflow as tf

from caramel.runtime.host.dead_connections import end_dead_connections
from caramel.runtime.host.server_version import VersionQuestion
from caramel.util.daemon_threads import DaemonThreads

v1 = tf.compat.v1

_CONTAINER = "caramel"
"""Container of the queues, which clearing the default one leaves alone."""

_MOST_NAMES = 8
"""Number of names that are taken from a queue at once; drivers take turns in it."""

_PAUSE_S = 0.02
"""Seconds in which a driver's run puts its name into the queue again where the machine is not busy."""

_PATIENCE_S = 0.5
"""Seconds in which it does so on a busy machine."""

_MOST_MISSING = 5
"""Number of looks at which a driver's name is not there, one after the other, with which it is gone."""

_TIMEOUT_MS = 2000

_FOR_EVER_MS = 10 * 365 * 24 * 3600 * 1000

_TRIMS = 3
"""Number of looks after the end of a driver with which memory goes back to the system."""

_numbers = count()


def new_name() -> str:
    """A name for one session of this process."""
    return f"{process_name()}, session {next(_numbers)}"


def process_name() -> str:
    """What all names of this process begin with."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def process_of(name: str) -> str:
    """The process of a name."""
    return name.partition(", ")[0]


def _processes_among(names: Iterable[str]) -> set[str]:
    """The names that are of a process, whatever sessions it has."""
    return {name for name in names if process_of(name) == name}


class Presence:
    """The graph about one server's drivers.

    Args:
        task: name of the server's task.
        name: name of the driver's session, or of its process; "" for whoever only looks.

    Attributes:
        graph: tf.Graph of the runs.
        config: ConfigProto of sessions that run it; they see this server only.
    """

    def __init__(self, task: str, name: str = "") -> None:
        self.graph = tf.Graph()
        self.config = v1.ConfigProto(device_filters=[task], operation_timeout_in_ms=_TIMEOUT_MS)
        self._options = v1.RunOptions(timeout_in_ms=_TIMEOUT_MS)
        self._threads = DaemonThreads(1, "presence")  # its run may never return
        with self.graph.as_default(), self.graph.device(task):
            present, left = (
                tf.raw_ops.FIFOQueueV2(
                    component_types=[tf.string], capacity=capacity, shared_name=shared_name, container=_CONTAINER
                )
                for shared_name, capacity in (("drivers", 1), ("drivers that have left", 1 << 20))
            )

            def put(number: Any) -> Any:
                with tf.control_dependencies([tf.raw_ops.QueueEnqueueV2(handle=present, components=[name])]):
                    return number + 1

            self._nothing = tf.no_op("heartbeat")
            self._stay = v1.while_loop(
                lambda number: number >= 0, put, [tf.constant(0, tf.int64)], parallel_iterations=1, back_prop=False
            )
            self._leave = tf.raw_ops.QueueEnqueueV2(handle=left, components=[name])
            self._version = VersionQuestion()
            self._queues = [
                (tf.raw_ops.QueueSizeV2(handle=q), tf.raw_ops.QueueDequeueV2(handle=q, component_types=[tf.string])[0])
                for q in (present, left)
            ]

    def open(self, target: str) -> Any:
        """A session on the server.

        Args:
            target: address ``grpc://host:port``.
        """
        return v1.Session(target, graph=self.graph, config=self.config)

    def ask(self, session: Any) -> None:
        """Let the server do nothing.

        Raises:
            tf.errors.OpError: it does not answer.
        """
        session.run(self._nothing, options=self._options)

    def version(self, session: Any) -> str | None:
        """The server's version of TensorFlow; None where it does not say it."""
        return self._version.ask(lambda op: session.run(op, options=self._options))

    def stay(self, session: Any) -> Future[Any]:
        """Be there from now on, until the session is closed or this process ends; it is done if the server goes."""
        options = v1.RunOptions(timeout_in_ms=_FOR_EVER_MS)  # without a number it would be that of the session
        return self._threads.submit(lambda: session.run(self._stay, options=options))

    def leave(self, session: Any) -> None:
        """Say that what the driver had there is gone."""
        session.run(self._leave, options=self._options)

    def present(self, session: Any) -> set[str]:
        """Names of drivers that are there; one that has gone since the last time may be among them, and one missing."""
        names: set[str] = set()
        for _ in range(_MOST_NAMES):
            name = self._next(session, 0)
            if name is None:
                break
            names.add(name)
            time.sleep(_PAUSE_S)
        return names

    def left(self, session: Any) -> set[str]:
        """Names of the drivers that have left since the last time."""
        names = set()
        while (name := self._next(session, 1)) is not None:
            names.add(name)
        return names

    def _next(self, session: Any, number: int) -> str | None:
        size, name = self._queues[number]
        if session.run(size, options=self._options) == 0:
            return None
        taken: bytes = session.run(name, options=self._options)
        return taken.decode()


def others_at(target: str, task: str) -> set[str]:
    """The processes that use a server, besides this one.

    Args:
        target: address ``grpc://host:port`` of the server.
        task: name of its task.
    """
    presence, others = Presence(task), set[str]()
    with presence.open(target) as session:
        presence.present(session)  # may be names of drivers that have gone
        until_s = time.monotonic() + _PATIENCE_S
        while not others and time.monotonic() < until_s:
            others = {process_of(name) for name in presence.present(session)} - {process_name()}
            time.sleep(_PAUSE_S)
    return others


class Watch:
    """Frees what drivers have left on a server that are gone without closing their sessions.

    A driver's process is there under a name of its own besides those of its sessions, from its first session until it
    ends: between two sessions it has not ended.

    Args:
        target: address ``grpc://host:port`` of the server of this process.
        task: name of its task.
    """

    def __init__(self, target: str, task: str) -> None:
        self._target, self._presence = target, Presence(task)
        self._session: Any = None
        self._missing: dict[str, int] = {}  # by the name of a driver: the looks since its name was last there
        self._left: set[str] = set()  # those of them that have left; their names stay a while
        self._gone: set[str] = set()  # have left something
        self._trims_left = 0
        self._has_ended = False  # a process that was a driver

    @property
    def is_over(self) -> bool:
        """Whether a process that drove this server has ended, and none is there that drives it."""
        return self._has_ended and not _processes_among(self._missing.keys() - self._left)

    def look(self) -> set[str]:
        """Look once; names of the drivers after which it was cleaned up."""
        if self._session is None:
            self._session = self._presence.open(self._target)
        present = self._presence.present(self._session)
        left = self._presence.left(self._session)
        self._missing = {name: looks + 1 for name, looks in self._missing.items()} | dict.fromkeys(present | left, 0)
        self._left |= left
        ended = {name for name, looks in self._missing.items() if looks >= _MOST_MISSING}
        for name in ended:
            del self._missing[name]
        self._has_ended |= bool(_processes_among(left | ended))
        gone = ended - self._left - _processes_among(ended)
        self._left -= ended
        self._gone |= gone
        self._trims_left = _TRIMS if gone or left else max(self._trims_left - 1, 0)
        if self._trims_left:
            _return_memory()  # sessions are closed in the background
        there = self._missing.keys() - self._left
        if there - _processes_among(there) or not self._gone:
            return set()
        freed, self._gone = self._gone, set()
        self._session.close()
        self._session = None
        v1.Session.reset(self._target)
        return freed

    def run(self, interval_s: float, ends_with_driver: bool, on_freed: Callable[[str], None]) -> None:
        """Look for as long as the process lives.

        Args:
            interval_s: seconds from one look to the next.
            ends_with_driver: whether to return once a driver has ended.
            on_freed: function that is called with each process that has ended without closing its sessions, once what
                it had left was freed.
        """
        port = int(self._target.rpartition(":")[2])
        while not (ends_with_driver and self.is_over):
            time.sleep(interval_s)
            end_dead_connections(port)
            try:
                freed = self.look()
            except tf.errors.OpError:  # this server is too busy
                continue
            for process in sorted({process_of(name) for name in freed}):
                on_freed(process)


def _return_memory() -> None:
    """Give memory that is not used back to the system, where the C library can do so."""
    import ctypes
    import gc

    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)
