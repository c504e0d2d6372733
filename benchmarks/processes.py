"""Processes, one on each host, that answer lines of JSON with lines of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from benchmarks.testbed import Testbed
from caramel.errors import ClusterError

ROOT = Path(__file__).parent.parent
_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception): .*", re.MULTILINE)
"""The last line of Python's tracebacks, or the first line of what it says."""


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
            ClusterError: one has ended, or does not answer in time; then all are ended.
        """
        timer = threading.Timer(self._timeout_s, self._give_up)
        timer.start()
        try:
            for process in self._processes:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
            answers = [process.stdout.readline() for process in self._processes]
        except (OSError, ValueError) as error:
            raise ClusterError(self._problem()) from error
        finally:
            timer.cancel()
        if not all(answers):
            raise ClusterError(self._problem())
        return [json.loads(a) for a in answers]

    def pids(self) -> Sequence[int]:
        """Of the processes by rank."""
        return [process.pid for process in self._processes]

    def freeze(self, is_frozen: bool) -> None:
        """Stop all processes where they are, or let them go on."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGSTOP if is_frozen else signal.SIGCONT)

    def _give_up(self) -> None:
        """End the processes; whoever waits for them then reads the end of their output."""
        self._is_late = True
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
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):  # a request that the process did not read any more
                    pipe.close()
        for log in self._logs:
            log.close()
