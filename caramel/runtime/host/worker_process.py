"""A process with the server of one worker, which is started and ended from outside."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from caramel.errors import ClusterError
from caramel.runtime.host.environment import server_environment
from caramel.runtime.host.membership import Membership
from caramel.runtime.host.server import READY_LINE

_MOST_LINES = 200
"""Number of last lines that are kept of what a worker says."""

_ERROR = "Error: "
"""What the command begins an error with."""


class WorkerProcess:
    """A process that runs ``caramel worker`` until its input ends: here, or elsewhere over ssh.

    Args:
        name: how messages call it.
        command: command to run.

    Attributes:
        process: the process.
        lines: what it has said last.
        is_ready: whether it listens.

    Raises:
        ClusterError: the command cannot be run.
    """

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

    def last_words(self) -> str:
        """What it has said last: an error of ours, or some lines, as one."""
        lines = [line for line in self.lines if line.strip()]
        if lines and lines[-1].startswith(_ERROR):
            return lines[-1].removeprefix(_ERROR)
        return " | ".join(lines[-3:]) or "it said nothing"


def worker_command(membership: Membership, task: int) -> list[str]:
    """Arguments of Python for a worker that ends with its driver, and with its input.

    Args:
        membership: the cluster.
        task: number of the worker.
    """
    where = ["--cluster", ",".join(membership.addresses), "--task", str(task)]
    devices = ["--devices", str(membership.workers[task])]
    return ["-m", "caramel", "worker", *where, *devices, "--exit-with-driver", "--exit-with-input"]
