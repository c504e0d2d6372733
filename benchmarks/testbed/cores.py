"""Cores for each host, so that how much one computes does not depend on where the kernel puts the others."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from types import TracebackType

from benchmarks.testbed.commands import TestbedError
from benchmarks.testbed.lookup import NamespaceId, namespace_id, processes_in
from benchmarks.testbed.testbed import Testbed
from caramel.errors import InputError

_PERIOD_S = 0.5
"""Processes that load TensorFlow take longer than that until they begin."""


def cores_of(rank: int, hosts: int, cores: Sequence[int]) -> tuple[int, ...]:
    """The cores of a host: as many as all others have, or one that it has together with others.

    Args:
        rank: of the host.
        hosts: how many there are.
        cores: all that there are.

    Raises:
        InputError: there is no such host, or no core.

    >>> [cores_of(rank, 3, [0, 1]) for rank in range(3)]
    [(0,), (1,), (0,)]
    >>> [cores_of(rank, 2, [0, 1, 4, 5, 6]) for rank in range(2)]
    [(0, 4), (1, 5)]
    """
    if not 0 <= rank < hosts or not cores:
        raise InputError(f"host {rank} of {hosts} hosts has none of {len(cores)} cores")
    if hosts >= len(cores):
        return (cores[rank % len(cores)],)
    return tuple(cores[rank : len(cores) // hosts * hosts : hosts])


class SharedCores:
    """While this is open, all processes of a testbed's hosts keep to the cores of their hosts.

    Those that start meanwhile do so after half a second at most, whoever started them.

    Args:
        testbed: its hosts.

    Raises:
        TestbedError: the testbed is closed.
    """

    def __init__(self, testbed: Testbed) -> None:
        cores = sorted(os.sched_getaffinity(0))
        hosts = testbed.hosts
        try:
            self._cores = {namespace_id(h.namespace): cores_of(h.rank, len(hosts), cores) for h in hosts}
        except FileNotFoundError as error:
            raise TestbedError("the testbed is closed: build a new one") from error
        self._placed: dict[int, NamespaceId] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="shared-cores", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._end.is_set():
            self._place_all()
            self._end.wait(_PERIOD_S)

    def _place_all(self) -> None:
        """Place all processes that have started, or moved to another host, since; what they start follows them."""
        found = dict(processes_in(self._cores))
        for pid, namespace in found.items():
            if self._placed.get(pid) != namespace:
                _place(pid, self._cores[namespace])
        self._placed = found

    def close(self) -> None:
        """Place no more processes; nothing happens the second time."""
        self._end.set()
        self._thread.join()

    def __enter__(self) -> SharedCores:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _place(pid: int, cores: Sequence[int]) -> None:
    """Place all threads of a process, those that begin meanwhile included."""
    seen: set[str] = set()
    with contextlib.suppress(OSError):  # it has ended
        while left := set(os.listdir(f"/proc/{pid}/task")) - seen:
            for thread in left:
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread), cores)
            seen |= left
