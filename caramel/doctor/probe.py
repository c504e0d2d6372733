"""Questions to a plain TensorFlow server: a few small graphs, which it runs as it runs any graph for anyone.

None of them needs the other servers of its cluster, but for those about the way to one of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.runtime.executor import leave_session
from caramel.runtime.host.server_version import VersionQuestion

v1 = tf.compat.v1

TIMEOUT_S = 3.0
"""Seconds that a server has for an answer (our choice): it takes milliseconds, on a busy machine some more."""

_NOBODY = "/job:none/replica:0/task:0"
"""A task that no cluster has: a session that sees it alone waits for no other server."""

_LOOKS = 5
"""Number of looks at a clock, of which the one with the shortest round trip counts."""

_FIRST_BYTES = 64 * 1024
_MOST_BYTES = 16 * 1024 * 1024
_GROWTH = 4
_LONG_ENOUGH_S = 0.1
"""Seconds of a transfer that say enough about a rate: sizes grow fourfold until one takes as long, so all of them
together take about half a second at most."""


@dataclass(frozen=True)
class ClockReading:
    """How far a server's clock is ahead of this machine's.

    Attributes:
        ahead_s: seconds, as if the answer had been on its way for as long as the question.
        uncertainty_s: seconds by which that may be wrong: half of the round trip.
    """

    ahead_s: float
    uncertainty_s: float


class Probe:
    """A session with one server; use it in a ``with`` statement.

    Args:
        address: address ``host:port`` of the server.
        through: name of another task whose ops the server is to run, or None.
    """

    def __init__(self, address: str, through: str | None = None) -> None:
        self._graph = tf.Graph()
        self._other = through
        config = v1.ConfigProto(device_filters=[through or _NOBODY], operation_timeout_in_ms=int(TIMEOUT_S * 1000))
        config.graph_options.rewrite_options.disable_meta_optimizer = True  # what is sent shall be sent
        self._options = v1.RunOptions(timeout_in_ms=int(TIMEOUT_S * 1000))
        with self._graph.as_default():
            self._nothing = tf.no_op()
            self._clock = tf.timestamp()
            self._bytes = v1.placeholder(tf.uint8, [None])
            self._received = self._bytes[-1]
            self._size = v1.placeholder(tf.int32, [])
            self._sent = tf.fill([self._size], tf.constant(1, tf.uint8))
            self._path = v1.placeholder(tf.string, [])
            self._content = v1.placeholder(tf.string, [])
            self._read = tf.io.read_file(self._path)
            self._write = tf.io.write_file(self._path, self._content)
            self._version = VersionQuestion()
            if through is not None:
                with self._graph.device(through):
                    self._last_there = tf.identity(self._sent[-1])
        self._session = v1.Session(f"grpc://{address}", graph=self._graph, config=config)

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, tf.errors.OpError):
            leave_session(self._session)  # closing it may wait for the server
        else:
            self._session.close()

    def _run(self, fetch: Any, feeds: Any = None) -> Any:
        return self._session.run(fetch, feeds, options=self._options)

    def tasks(self) -> tuple[str, ...]:
        """The name of the server's own task, which it has been started as, for each of its devices.

        Raises:
            tf.errors.OpError: it does not answer in time.
        """
        return tuple(device.name.partition("/device:")[0] for device in self._session.list_devices())

    def version(self) -> str | None:
        """The server's version of TensorFlow; None where it does not say it."""
        return self._version.ask(self._run)

    def clock(self) -> ClockReading:
        """The server's clock against this machine's."""
        looks = []
        for _ in range(_LOOKS):
            asked_s, began_s = time.time(), time.monotonic()
            there_s = float(self._run(self._clock))
            trip_s = time.monotonic() - began_s
            looks.append(ClockReading(there_s - (asked_s + trip_s / 2), trip_s / 2))
        return min(looks, key=lambda look: look.uncertainty_s)

    def round_trip_s(self) -> float:
        """Seconds of the shortest of a few runs in which the server does nothing."""
        return min(_seconds(lambda: self._run(self._nothing)) for _ in range(_LOOKS))

    def read(self, path: str) -> bytes | None:
        """The content of a file as the server sees it; None if it sees none.

        Args:
            path: path of the file.
        """
        try:
            content: bytes = self._run(self._read, {self._path: path})
        except (tf.errors.NotFoundError, tf.errors.PermissionDeniedError, tf.errors.FailedPreconditionError):
            return None
        return content

    def write(self, path: str, content: bytes) -> str | None:
        """Let the server write a file.

        Args:
            path: path of the file.
            content: its bytes.

        Returns:
            None, or why it could not.
        """
        try:
            self._run(self._write, {self._path: path, self._content: content})
        except tf.errors.OpError as error:
            if error.error_code in (tf.errors.DEADLINE_EXCEEDED, tf.errors.UNAVAILABLE):
                raise
            return reason_of(error)
        return None

    def rate_to(self) -> float:
        """Bytes per second from this process to the server; an estimate."""
        return _rate(
            lambda size: self._run(self._received, {self._bytes: np.ones(size, np.uint8)}), self.round_trip_s()
        )

    def rate_from(self) -> float:
        """Bytes per second from the server to this process; an estimate."""
        return _rate(lambda size: self._run(self._sent, {self._size: size}), self.round_trip_s())

    def reach(self) -> None:
        """Let the server have an op run by the other task.

        Raises:
            tf.errors.OpError: it does not reach the other in time.
        """
        self._run(self._last_there, {self._size: 1})

    def rate_between(self) -> float:
        """Bytes per second from the server to the other task; an estimate."""
        latency_s = min(_seconds(self.reach) for _ in range(_LOOKS))
        return _rate(lambda size: self._run(self._last_there, {self._size: size}), latency_s)


def reason_of(error: Any) -> str:
    """What an error of TensorFlow says, without where in the graph it was."""
    lines = [line.strip() for line in str(error.message).splitlines()]
    known = ("Graph execution error", "Detected at", "Node:", "From /job", "File ", "[[{{node")
    said = [line for line in lines if line and not line.startswith(known)]
    return said[-1] if said else type(error).__name__


def _seconds(call: Callable[[], Any]) -> float:
    began_s = time.monotonic()
    call()
    return time.monotonic() - began_s


def _rate(send: Callable[[int], Any], latency_s: float) -> float:
    """Bytes per second, by the first size that takes long enough.

    Args:
        send: function that sends a number of bytes.
        latency_s: seconds that nothing takes.
    """
    size_bytes = _FIRST_BYTES
    send(size_bytes)  # what is done once only
    while True:
        took_s = _seconds(partial(send, size_bytes))
        if took_s >= _LONG_ENOUGH_S or size_bytes >= _MOST_BYTES:
            return size_bytes / max(took_s - latency_s, took_s / 10)
        size_bytes *= _GROWTH
