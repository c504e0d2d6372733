"""Network namespaces without names, which cannot outlive the process that made them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.testbed import commands
from benchmarks.testbed.commands import TestbedError, UnavailableError
from caramel.runtime.host.environment import child_environment

_ROOT = Path(__file__).resolve().parents[2]
_KEEPER_TIMEOUT_S = 10.0
"""Twice what the keeper itself grants to processes that will not end."""

_REAP_TIMEOUT_S = 5.0


class Namespaces:
    """Network namespaces with nothing but a running loopback device, and the processes started in them.

    Each is held by a process; see `benchmarks.testbed.holders`, which also ends them when this process is killed.

    Args:
        count: how many.

    Raises:
        UnavailableError: the kernel does not allow it.
    """

    def __init__(self, count: int) -> None:
        self._owner = os.getpid()
        self._closed = False
        self._started: list[subprocess.Popen[Any]] = []
        self._keeper = _start_keeper(count)
        try:
            self.holders = self._read_holders(count)
        except BaseException:
            self.close()
            raise

    def _read_holders(self, count: int) -> list[int]:
        assert self._keeper.stdout is not None
        answer = self._keeper.stdout.readline().decode(errors="replace")
        words = answer.split()
        if len(words) == count and all(word.isdecimal() for word in words):
            return [int(word) for word in words]
        said = " ".join((answer + self._keeper.stdout.read().decode(errors="replace")).split())
        raise UnavailableError(f"no network namespace can be made: {said or 'the process that holds them ended'}")

    def path(self, index: int) -> str:
        """The namespace's file, for ``nsenter --net=``."""
        return f"/proc/{self.holders[index]}/ns/net"

    def check_open(self) -> None:
        """Check that the namespaces are there.

        Raises:
            TestbedError: they are closed, or somebody ended the process that keeps them.
        """
        if self._closed:
            raise TestbedError("the testbed is closed: build a new one")
        if self._keeper.poll() is not None:
            raise TestbedError("the process that holds the testbed's namespaces was ended: build a new testbed")

    def run_tool(self, index: int, *command: str) -> None:
        """Run a system tool in a namespace; see `commands.run_tool`."""
        self.check_open()
        commands.run_tool(self.path(index), command)

    def start(self, index: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process in a namespace and a session of its own; options are those of `subprocess.Popen`."""
        self.check_open()
        options["start_new_session"] = True
        process = subprocess.Popen(commands.in_namespace(self.path(index), command), **options)
        self._started.append(process)
        return process

    def end(self, process: subprocess.Popen[Any]) -> None:
        """Kill a started process with its group, and forget it."""
        kill_group(process)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_TIMEOUT_S)
        with contextlib.suppress(ValueError):
            self._started.remove(process)

    def close(self) -> None:
        """End all processes in the namespaces, and with them the namespaces. Does nothing the second time."""
        if self._closed or os.getpid() != self._owner:  # a fork of the owner does not own them
            return
        self._closed = True
        for process in self._started:
            kill_group(process)
        _stop(self._keeper)
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_REAP_TIMEOUT_S)


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process that leads a group, and the group; nothing happens when it has ended."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _start_keeper(count: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-S", "-m", "benchmarks.testbed.holders", str(os.getpid()), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        cwd=_ROOT,
        env=child_environment(),
        start_new_session=True,  # Ctrl-C reaches the owner, which then closes in order
    )


def _stop(keeper: subprocess.Popen[bytes]) -> None:
    assert keeper.stdin is not None and keeper.stdout is not None
    with contextlib.suppress(OSError):
        keeper.stdin.write(b"end\n")  # closing may not be enough: a fork of this process has the pipe too
    try:
        keeper.wait(_KEEPER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        keeper.kill()  # the holders die with it
        keeper.wait()
    finally:
        keeper.stdin.close()
        keeper.stdout.close()
