"""Servers that `caramel launch` starts: on each host ``caramel worker``, over ssh where that is another machine."""

from __future__ import annotations

import os
import shlex
import sys
import time
from dataclasses import dataclass

from caramel.errors import ClusterError
from caramel.runtime.host.membership import Membership
from caramel.runtime.host.names import host_of_address, is_this_machine
from caramel.runtime.host.server import START_TIMEOUT_S
from caramel.runtime.host.worker_process import WorkerProcess, worker_command

_STOP_S = 10.0
"""Seconds that a worker may take to end once its input has; then its connection is cut."""

_POLL_S = 0.05

_SSH_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=15")
"""Ask for no password, and find within a minute that a connection is dead."""


@dataclass(frozen=True)
class RemoteOptions:
    """How workers are started on other machines.

    Attributes:
        ssh: the command that connects, with options.
        python: Python with Caramel there; None for the path of this process's own.
        directory: working directory there; None for that of this process where it exists, else the user's own.
        threads: number of ops that each runs at once; None for the default.
    """

    ssh: str = "ssh"
    python: str | None = None
    directory: str | None = None
    threads: int | None = None


class RemoteWorkers:
    """The servers of a cluster, until `stop`, or the end of this process in whatever way.

    Args:
        membership: the cluster.
        options: how they are started.
    """

    def __init__(self, membership: Membership, options: RemoteOptions) -> None:
        self._membership, self._options = membership, options
        self._workers: list[WorkerProcess] = []

    def start(self) -> None:
        """Begin to start all.

        Raises:
            ClusterError: the command to do so cannot be run.
        """
        for task, address in enumerate(self._membership.addresses):
            self._workers.append(WorkerProcess(host_of_address(address), self.command(task)))

    def command(self, task: int) -> list[str]:
        """The command that starts a worker.

        Args:
            task: number of the worker.
        """
        host = host_of_address(self._membership.addresses[task])
        worker = worker_command(self._membership, task)
        if self._options.threads is not None:
            worker += ["--threads", str(self._options.threads)]
        if is_this_machine(host):
            return [sys.executable, *worker]
        there = self._options.directory
        go = f"cd {shlex.quote(os.getcwd())} 2>/dev/null; " if there is None else f"cd {shlex.quote(there)} && "
        line = go + "exec " + shlex.join([self._options.python or sys.executable, *worker])
        return [*shlex.split(self._options.ssh), *_SSH_OPTIONS, host, line]

    def await_all(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until all listen.

        Args:
            timeout_s: seconds to wait.

        Raises:
            ClusterError: one has ended, or does not listen in time. What it has said is in the message.
        """
        deadline_s = time.monotonic() + timeout_s
        while waiting := [worker for worker in self._workers if not worker.is_ready]:
            for worker in waiting:
                if worker.ended() and not worker.is_ready:
                    raise ClusterError(
                        f"the worker on {worker.name} did not start (exit status {worker.process.returncode}): "
                        + worker.last_words()
                    )
            if time.monotonic() > deadline_s:
                worker = waiting[0]
                raise ClusterError(
                    f"the worker on {worker.name} did not start within {timeout_s:g} s: {worker.last_words()}"
                )
            time.sleep(_POLL_S)

    def troubles(self) -> list[str]:
        """What workers have said that listened, and ended with an error; each line has the host's name in front."""
        failed = [
            worker for worker in self._workers if worker.is_ready and worker.ended() and worker.process.returncode
        ]
        return [
            f"[{worker.name}] {line}"
            for worker in failed
            for line in (*worker.lines, f"ended with exit status {worker.process.returncode}")
        ]

    def stop(self) -> None:
        """End all; nothing happens the second time."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.ask_to_end()
        deadline_s = time.monotonic() + _STOP_S
        for worker in workers:
            worker.end(deadline_s)
