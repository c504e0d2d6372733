"""Processes, one on each host, that answer lines of JSON with lines of JSON."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from benchmarks.testbed import Testbed
from caramel.errors import ClusterError

ROOT = Path(__file__).parent.parent
_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception): .*", re.MULTILINE)
"""The last line of Python's tracebacks, or the first line of what it says."""

_END_TIMEOUT_S = 30.0
_WATCHED_EVERY_S = 0.5


class AnsweringProcesses:
    """The processes, which end together: with this object, or when one of them fails or is late.

    Args:
        what: they are, for errors.
        command: of the process of each rank.
        workers: number of processes.
        testbed: hosts to run on, one process each; None for this machine itself.
        environment: variables that they get besides those of this process, for a rank.
        timeout_s: how long an answer may take.
    """

    def __init__(
        self,
        what: str,
        command: Callable[[int], Sequence[str]],
        workers: int,
        testbed: Testbed | None,
        environment: Callable[[int], dict[str, str]] = lambda rank: {},
        timeout_s: float = 300.0,
    ) -> None:
        self._what = what
        self._timeout_s = timeout_s
        self._is_late = False
        self._is_closed = False
        self._logs: list[IO[bytes]] = []
        self._processes: list[Any] = []
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        try:
            for rank in range(workers):
                added = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", **environment(rank)}
                full = ["env", *(f"{name}={value}" for name, value in added.items()), *command(rank)]
                self._logs.append(tempfile.TemporaryFile())  # noqa: SIM115 - lives as long as the processes
                start = testbed.hosts[rank].popen if testbed else subprocess.Popen
                self._processes.append(start(full, text=True, stderr=self._logs[-1], **pipes))
        except BaseException:
            self.close()
            raise

    def ask(self, request: dict[str, Any]) -> list[Any]:
        """Send all of them a request; their answers by rank.

        Raises:
            ClusterError: they were closed, one has ended, or does not answer in time; then all are ended.
        """
        if self._is_closed:
            raise ClusterError(f"{self._what}: the processes were ended")
        answered = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(answered,), daemon=True)
        watcher.start()
        try:
            for process in self._processes:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
            return [json.loads(process.stdout.readline()) for process in self._processes]
        except (OSError, ValueError) as error:  # a broken pipe, no answer, or half of one
            problem = self._problem()
            self._kill()
            raise ClusterError(problem) from error
        finally:
            answered.set()
            watcher.join()

    def pids(self) -> Sequence[int]:
        """Of the processes by rank."""
        return [process.pid for process in self._processes]

    def freeze(self, is_frozen: bool) -> None:
        """Stop all processes where they are, or let them go on."""
        for process in self._processes:
            process.send_signal(signal.SIGSTOP if is_frozen else signal.SIGCONT)  # nobody's if it has ended

    def _watch(self, answered: threading.Event) -> None:
        """End all processes if one has ended, for which the others may wait for long, or if they are late.

        Whoever waits for them then reads the end of their output.
        """
        latest_s = time.monotonic() + self._timeout_s
        while not answered.wait(_WATCHED_EVERY_S):
            self._is_late = time.monotonic() > latest_s
            if self._is_late or any(process.poll() is not None for process in self._processes):
                self._kill()
                return

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()

    def _problem(self) -> str:
        """What happened, with the last that one of the processes said, an error if one said one."""
        texts = []
        for log in self._logs:
            log.seek(0)
            texts.append(log.read().decode(errors="replace")[-2000:])
        errors = [(found[-1], text) for text in texts if (found := _ERROR.findall(text))]
        said = "\n".join(errors[0] if errors else [text for text in texts if text][:1])
        what = f"did not answer within {self._timeout_s:g} s" if self._is_late else "ended"
        return f"{self._what} {what}: {said}"

    def close(self) -> None:
        """End the processes, and close what they wrote to; nothing happens the second time."""
        self._is_closed = True
        self._kill()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel does not let go of it
                process.wait(_END_TIMEOUT_S)
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):  # a request that the process did not read any more
                    pipe.close()
        for log in self._logs:
            log.close()
