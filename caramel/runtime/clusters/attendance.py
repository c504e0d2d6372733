"""This process at the servers that it drives: from its first session there until it ends, whatever sessions it has.

Servers that end with their driver (``caramel worker --exit-with-driver``) outlive a session in this way, as another
may follow.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from caramel.runtime.clusters.heartbeat import Member
from caramel.runtime.executor import leave_session
from caramel.runtime.host.presence import Presence, process_name
from caramel.util.daemon_threads import DaemonThreads

_END_S = 2.0
"""Seconds that servers may take at the end of the process to learn of it."""


@dataclass
class _Attendance:
    """This process at one server.

    Attributes:
        member: the server.
    """

    member: Member
    _process: int = field(init=False, default_factory=os.getpid)
    _presence: Presence = field(init=False)
    _session: Any = field(init=False)
    _staying: Future[Any] = field(init=False)

    def __post_init__(self) -> None:
        self._presence = Presence(self.member.task, process_name())
        self._session = self._presence.open(self.member.target)
        self._staying = self._presence.stay(self._session)

    @property
    def lasts(self) -> bool:
        """Whether the server still knows of this process."""
        return self._process == os.getpid() and not self._staying.done()

    def end(self) -> None:
        """Tell the server that this process ends; it may itself go at this very moment, so that this never returns."""
        with suppress(tf.errors.OpError):
            self._presence.leave(self._session)
            self._session.close()

    def leave(self) -> None:
        """Give the session up without closing it."""
        leave_session(self._session)


_lock = threading.Lock()
_attended: dict[str, _Attendance] = {}
"""By the target of the server: what the servers know of a process is as global as the process."""


def attend(members: Sequence[Member]) -> None:
    """Let servers know that this process drives them until it ends.

    Args:
        members: servers that answer.
    """
    with _lock:
        new = [m for m in members if m.target not in _attended or not _attended[m.target].lasts]
        if new:
            with ThreadPoolExecutor(len(new)) as pool, suppress(tf.errors.OpError):  # whoever is lost is found later
                _attended.update((each.member.target, each) for each in pool.map(_Attendance, new))


@atexit.register
def _end_all() -> None:
    lasting = [each for each in _attended.values() if each.lasts]
    threads = DaemonThreads(len(lasting), "leaving")
    wait([threads.submit(each.end) for each in lasting], _END_S)
    for each in _attended.values():
        each.leave()
