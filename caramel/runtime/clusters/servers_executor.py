"""A session on servers of a network, any of which may be lost while it runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from caramel.errors import StepError
from caramel.runtime.clusters.driver_server import OwnServer
from caramel.runtime.clusters.heartbeat import Heartbeats
from caramel.runtime.clusters.supervision import Supervisor
from caramel.runtime.executor import KindOfRun, Run, SessionExecutor

_CLOSE_S = 60.0
"""Seconds that closing a session may take while all servers answer: large ones took more than ten."""

_CLOSE_RUNNING_S = 10.0
"""Seconds that it may take where a run is under way: one that was interrupted, or of another thread."""

_CLOSE_AFTER_FAILURE_S = 2.0
"""Seconds that it may take once a worker was lost."""


class ServersExecutor:
    """A session whose calls end when a server is lost.

    Args:
        open_session: function that opens the session.
        heartbeats: servers of the session, which are asked until it is closed.
        named: function that says which servers cannot be reached, as a clause; empty if all can be.
        own: the driver's own server, which is stopped with the session.

    Raises:
        ClusterError: a server is lost.
    """

    def __init__(
        self,
        open_session: Callable[[], SessionExecutor],
        heartbeats: Heartbeats,
        named: Callable[[], str],
        own: OwnServer | None,
    ) -> None:
        self._heartbeats, self._own = heartbeats, own
        self._supervisor = Supervisor(heartbeats.lost, named)
        self._inner: SessionExecutor | None = None
        self._inner = self._supervisor.call(open_session)

    @property
    def _session(self) -> SessionExecutor:
        assert self._inner is not None
        return self._inner

    def run(
        self, fetches: Sequence[str], targets: Sequence[str], feeds: Mapping[str, np.ndarray], timeout_s: float
    ) -> list[np.ndarray]:
        """Run once; see `Executor.run`."""
        return self._supervisor.call(self._session.run, fetches, targets, feeds, timeout_s)  # type: ignore[no-any-return]

    def has_gpu(self) -> bool:
        """Whether a server has a GPU; see `Executor.has_gpu`."""
        return self._supervisor.call(self._session.has_gpu)  # type: ignore[no-any-return]

    def run_traced(
        self, fetches: Sequence[str], targets: Sequence[str], feeds: Mapping[str, np.ndarray], timeout_s: float
    ) -> tuple[list[np.ndarray], bytes]:
        """Run once with full tracing; see `Executor.run_traced`."""
        return self._supervisor.call(self._session.run_traced, fetches, targets, feeds, timeout_s)  # type: ignore[no-any-return]

    def run_each(self, runs: Sequence[Run], timeout_s: float) -> list[list[np.ndarray] | StepError]:
        """Run several times at once; see `Executor.run_each`."""
        return self._supervisor.call(self._session.run_each, runs, timeout_s)  # type: ignore[no-any-return]

    def prepare(self, runs: Sequence[KindOfRun], timeout_s: float) -> None:
        """Get ready for runs; see `Executor.prepare`."""
        self._supervisor.call(self._session.prepare, runs, timeout_s)

    def extend(self, graph_def: bytes) -> None:
        """Add nodes; see `Executor.extend`."""
        self._session.extend(graph_def)

    def pids(self) -> tuple[int, ...]:
        """The driver's process and its own server's; the other servers are elsewhere."""
        return (os.getpid(),) if self._own is None else (os.getpid(), self._own.pid)

    def close(self) -> None:
        """Close the session, so that the servers free what it has there; then stop the driver's own.

        Where a server is lost, nothing waits for it: what the session has on the others stays there.
        """
        is_closed = False
        try:
            if self._inner is not None:
                is_closed = self._supervisor.close(self._inner.close, self._inner.leave, self._patience_s)
        finally:
            self._heartbeats.stop(is_closed)
            if self._own is not None:
                self._own.stop()

    @property
    def _patience_s(self) -> float:
        if self._supervisor.has_failed:
            return _CLOSE_AFTER_FAILURE_S
        return _CLOSE_RUNNING_S if self._supervisor.is_stuck else _CLOSE_S
