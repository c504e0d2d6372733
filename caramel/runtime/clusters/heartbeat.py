"""Whether servers answer: beside the training, each of them is asked every two seconds.

TensorFlow tells of a server that was killed only where a connection is reset, and of one that is stopped, or behind a
dead link, not at all. A busy server answers within some milliseconds.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from weakref import WeakSet

import tensorflow as tf

from caramel.errors import ClusterError, listed
from caramel.runtime.executor import leave_session
from caramel.runtime.host.presence import Presence
from caramel.util.daemon_threads import DaemonThreads

_logger = logging.getLogger(__name__)

INTERVAL_S = 2.0
"""Seconds from one question to the next; an answer may take as long."""

MOST_UNANSWERED = 3
"""Unanswered questions, one after the other, with which a server counts as lost: at most 8 s after its last answer."""

_RESTARTED = (tf.errors.ABORTED, tf.errors.NOT_FOUND, tf.errors.INVALID_ARGUMENT)
"""Error codes of a server that answers, but was started anew since the last question."""

_SILENT_S = 5.0
"""Seconds of waiting for servers after which something is said."""

_STOP_S = 1.0
"""Seconds that servers may take at the end to learn that their driver leaves."""

_POLL_S = 0.1
"""Seconds between two looks at whether a pause is over."""


@dataclass(frozen=True)
class Member:
    """A server.

    Attributes:
        name: how messages call it.
        target: address ``grpc://host:port``.
        task: name of its task, which TensorFlow's devices begin with.
    """

    name: str
    target: str
    task: str


@dataclass
class _Stopped:
    """Whether no more is to be asked.

    Attributes:
        event: set once it is so.
        is_closed: whether the session was closed, so that nothing of it is left on the servers.
    """

    event: threading.Event = field(default_factory=threading.Event)
    is_closed: bool = False


@dataclass(eq=False)
class _Heartbeat:
    """The questions to one server.

    Attributes:
        member: the server.
        driver: see `Heartbeats`.
        stopped: whether to ask no more.
        answered_s: time of its last answer, on the monotonic clock; None before the first.
        unanswered: number of questions since then that it has not answered.
    """

    member: Member
    driver: str
    stopped: _Stopped
    answered_s: float | None = None
    unanswered: int = 0
    _presence: Presence = field(init=False)
    _session: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._presence = Presence(self.member.task, self.driver)

    def run(self) -> None:
        """Ask, over and over, until no more is to be asked or the process ends."""
        pause_s = 0.0
        while not _is_over(self.stopped.event, pause_s):
            began_s = time.monotonic()
            if self._has_answered():
                self.answered_s, self.unanswered = time.monotonic(), 0
            else:
                self.unanswered += 1
                _logger.debug("%s has not answered %d times", self.member.name, self.unanswered)
            pause_s = max(INTERVAL_S - (time.monotonic() - began_s), 0.0)
            if self.answered_s is None:
                pause_s = min(pause_s, INTERVAL_S / 4)
        if self.stopped.event.is_set():
            self.leave()

    def _has_answered(self) -> bool:
        is_new = self._session is None  # then the server does not know this driver
        try:
            if is_new:
                self._session = self._presence.open(self.member.target)
            self._presence.ask(self._session)
            if is_new and self.driver:
                self._presence.stay(self._session)
        except tf.errors.OpError as error:
            is_answered = self._session is not None and error.error_code in _RESTARTED
            if self._session is not None and (is_answered or is_new or self.answered_s is None):
                leave_session(self._session)
                self._session = None
            return is_answered
        return True

    def leave(self) -> None:
        """Let the server know that nothing is left there, where that is so; safe to call twice."""
        session, self._session = self._session, None
        if session is None:
            return
        if self.unanswered or not self.stopped.event.is_set():
            leave_session(session)  # closing it would wait for the server
            return
        with suppress(tf.errors.OpError):
            if self.driver and self.stopped.is_closed:
                self._presence.leave(session)
        closing = DaemonThreads(1, "closing").submit(session.close)  # its server may go at this very moment
        if not wait([closing], INTERVAL_S).done:
            leave_session(session)


@dataclass(eq=False)
class Heartbeats:
    """Asks servers until it is stopped.

    Attributes:
        members: servers to ask.
        driver: name of the driver's session, which is made known to the servers; "" for servers that end with it.
    """

    members: Sequence[Member]
    driver: str = ""
    _heartbeats: list[_Heartbeat] = field(init=False)
    _stopped: _Stopped = field(init=False, default_factory=_Stopped)
    _threads: list[threading.Thread] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._heartbeats = [_Heartbeat(member, self.driver, self._stopped) for member in self.members]
        for heartbeat in self._heartbeats:
            # The interpreter waits for these threads: one that came back from TensorFlow while it ends would abort it.
            thread = threading.Thread(target=heartbeat.run, name=f"heartbeat of {heartbeat.member.name}")
            thread.start()
            self._threads.append(thread)
        abandon_at_the_end()
        _open.add(self)

    def lost(self) -> str:
        """The servers that answer no more, as a clause; empty while all do. One that never has is not among them."""
        return self._silent(MOST_UNANSWERED)

    def doubtful(self) -> str:
        """The servers that have not answered the last question, as a clause; empty if there are none."""
        return self._silent(1)

    def _silent(self, unanswered: int) -> str:
        now_s = time.monotonic()
        names = [
            f"{each.member.name} has not answered for {now_s - each.answered_s:.0f} s"
            for each in self._heartbeats
            if each.answered_s is not None and each.unanswered >= unanswered
        ]
        return "; ".join(names)

    def await_all(self, timeout_s: float, on_wait: Callable[[str], None]) -> None:
        """Wait until every server has answered once.

        Args:
            timeout_s: seconds to wait.
            on_wait: function that is called once, after some seconds, with the names of those that have not.

        Raises:
            ClusterError: some have not.
        """
        began_s, is_said = time.monotonic(), False
        while missing := [each.member.name for each in self._heartbeats if each.answered_s is None]:
            waited_s = time.monotonic() - began_s
            if waited_s > timeout_s:
                raise ClusterError(f"{listed(missing)} did not answer within {timeout_s:g} s")
            if waited_s > _SILENT_S and not is_said:
                on_wait(listed(missing))
                is_said = True
            time.sleep(_POLL_S)

    def stop(self, is_closed: bool = False) -> None:
        """Ask no more.

        Args:
            is_closed: whether the session was closed, so that nothing of it is left on the servers.
        """
        self._stopped.is_closed = is_closed
        self._stopped.event.set()
        _open.discard(self)
        deadline_s = time.monotonic() + _STOP_S
        for thread in self._threads:
            thread.join(max(deadline_s - time.monotonic(), 0.0))
        if not threading.main_thread().is_alive():  # the process ends, and the threads had ended before
            threads = DaemonThreads(len(self._heartbeats), "leaving")
            wait([threads.submit(each.leave) for each in self._heartbeats], 2 * INTERVAL_S)

    def abandon(self) -> None:
        """Give the servers up, without a word to them, at the end of the process."""
        for heartbeat in self._heartbeats:
            heartbeat.leave()


_open: WeakSet[Heartbeats] = WeakSet()
"""What was not stopped, because its session was not closed."""


@cache
def abandon_at_the_end() -> None:
    """Let what is not stopped be given up at the end of the process: after all functions that are registered later."""
    atexit.register(_abandon_all)


def _abandon_all() -> None:
    for heartbeats in list(_open):
        heartbeats.abandon()


def _is_over(stopped: threading.Event, pause_s: float) -> bool:
    """Pause; whether to ask no more: because of the event, or as the main thread has ended and waits for this one."""
    until_s = time.monotonic() + pause_s
    while threading.main_thread().is_alive():
        if stopped.wait(min(max(until_s - time.monotonic(), 0.0), _POLL_S)):
            return True
        if time.monotonic() >= until_s:
            return False
    return True
