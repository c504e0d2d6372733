"""Servers that `caramel launch` starts: on each host ``caramel worker``, over ssh where that is another machine."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from caramel.errors import ClusterError
from caramel.runtime.host.environment import server_environment
from caramel.runtime.host.membership import Membership
from caramel.runtime.host.names import host_of_address, is_this_machine
from caramel.runtime.host.server import READY_LINE

START_TIMEOUT_S = 120.0
"""Seconds in which all must listen: connecting, and loading TensorFlow from a disk that others use, too."""

_STOP_S = 10.0
"""Seconds that a worker may take to end once its input has; then its connection is cut."""

_POLL_S = 0.05
_MOST_LINES = 200
"""Number of last lines that are kept of what a worker says."""

_ERROR = "Error: "
"""What the command begins an error with."""

_SSH_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=15")
"""Ask for no password, and find within a minute that a connection is dead."""


@dataclass(frozen=True)
class RemoteOptions:
    """How workers are started on other machines.

    Attributes:
        ssh: the command that connects, with options.
        python: Python with Caramel there; None for the path of this process's own.
        directory: working directory there; None for that of this process where it exists, else the user's own.
    """

    ssh: str = "ssh"
    python: str | None = None
    directory: str | None = None


class _Worker:
    """A process that runs one worker, or ssh that does so elsewhere."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        try:
            # In a session of its own: Ctrl-C reaches the driver alone, which then ends all in order.
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=server_environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise ClusterError(f"{command[0]} cannot be run for {name}: {error.strerror}") from error
        self.lines: deque[str] = deque(maxlen=_MOST_LINES)
        self.is_ready = False
        self._reader = threading.Thread(target=self._read, name=f"output of {name}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            text = line.decode(errors="replace").rstrip()
            self.is_ready |= READY_LINE in text
            self.lines.append(text)

    def ended(self) -> bool:
        """Whether it has ended by itself; all that it has said is then in `lines`."""
        if self.process.poll() is None:
            return False
        self._reader.join(1.0)
        return True

    def ask_to_end(self) -> None:
        """End its input, with which the worker ends, wherever it is."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()

    def end(self, deadline_s: float) -> None:
        """Wait until it has ended, and end it by force afterwards."""
        try:
            self.process.wait(max(deadline_s - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class RemoteWorkers:
    """The servers of a cluster, until the end of a ``with`` statement, or of this process in whatever way.

    Args:
        membership: the cluster.
        options: how they are started.
    """

    def __init__(self, membership: Membership, options: RemoteOptions) -> None:
        self._membership, self._options = membership, options
        self._workers: list[_Worker] = []

    def start(self) -> None:
        """Begin to start all.

        Raises:
            ClusterError: the command to do so cannot be run.
        """
        for task, address in enumerate(self._membership.addresses):
            self._workers.append(_Worker(host_of_address(address), self.command(task)))

    def command(self, task: int) -> list[str]:
        """The command that starts a worker.

        Args:
            task: number of the worker.
        """
        host = host_of_address(self._membership.addresses[task])
        worker = ["-m", "caramel", "worker", "--cluster", ",".join(self._membership.addresses), "--task", str(task)]
        worker += ["--devices", str(self._membership.workers[task]), "--exit-with-driver", "--exit-with-input"]
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
                        + _tail(worker)
                    )
            if time.monotonic() > deadline_s:
                worker = waiting[0]
                raise ClusterError(f"the worker on {worker.name} did not start within {timeout_s:g} s: {_tail(worker)}")
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


def _tail(worker: _Worker) -> str:
    """What a worker has said last: an error of ours, or some lines, as one."""
    lines = [line for line in worker.lines if line.strip()]
    if lines and lines[-1].startswith(_ERROR):
        return lines[-1].removeprefix(_ERROR)
    return " | ".join(lines[-3:]) or "it said nothing"
