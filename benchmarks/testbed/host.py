"""One host of a testbed: a network namespace with one link."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.testbed.commands import TestbedError
from benchmarks.testbed.namespaces import Namespaces
from caramel.errors import InputError

INTERFACE = "eth0"
"""Name of a host's own end of its link."""


@dataclass(frozen=True)
class Counters:
    """What has passed a host's end of its link, Ethernet headers included.

    Attributes:
        sent_bytes: bytes that left the host; what still waits in its queue is not among them.
        received_bytes: bytes that arrived.
    """

    sent_bytes: int
    received_bytes: int


class Host:
    """A host, as part of a `benchmarks.testbed.Testbed` and for as long as that is open.

    Attributes:
        rank: number among the testbed's hosts, from 0.
        name: "host0" and so on.
        address: its IPv4 address, which the other hosts reach and nobody else.
        namespace: the file of its network namespace, for ``nsenter --net=``.
    """

    def __init__(self, rank: int, namespaces: Namespaces, index: int) -> None:
        self.rank = rank
        self.name = f"host{rank}"
        self.address = f"10.77.0.{rank + 1}"
        self.namespace = namespaces.path(index)
        self._namespaces = namespaces
        self._index = index

    def __repr__(self) -> str:
        return f"Host({self.name}, {self.address}, {self.namespace})"

    def popen(self, command: Sequence[str], **kwargs: Any) -> subprocess.Popen[Any]:
        """Start a process on this host, in a session of its own.

        It is killed with all other processes of the host when the testbed closes or its owner ends. A command that
        does not exist is reported by the process itself: exit code 127 and a line on its standard error.

        Args:
            command: program and arguments.
            **kwargs: options of `subprocess.Popen`, but for ``shell``.

        Raises:
            InputError: the command is one string, or for a shell.
            TestbedError: the testbed is closed.
        """
        if isinstance(command, str) or kwargs.get("shell"):
            raise InputError("give program and arguments as a list; for a shell, start ['sh', '-c', text]")
        return self._namespaces.start(self._index, command, **kwargs)

    def run(self, command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run a command on this host to its end.

        Returns:
            Its output, as text.

        Raises:
            TestbedError: it fails, and with what on its standard error; or it does not end in time and is killed.
        """
        process = self.popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise TestbedError(f"{self.name}: {shlex.join(command)} did not end within {timeout_s:g} s") from error
        finally:
            self.end(process)
        if process.returncode != 0:
            said = errors.strip() or "nothing on standard error"
            raise TestbedError(f"{self.name}: {shlex.join(command)} ended with {process.returncode}: {said}")
        return subprocess.CompletedProcess(list(command), process.returncode, output, errors)

    def end(self, process: subprocess.Popen[Any]) -> None:
        """Kill a process of this host with its group, and close its pipes; nothing happens when it has ended."""
        self._namespaces.end(process)

    def counters(self) -> Counters:
        """What has passed this host's end of its link so far.

        Raises:
            TestbedError: the testbed is closed.
        """
        self._namespaces.check_open()
        table = Path(self.namespace).parents[1] / "net" / "dev"
        for line in table.read_text().splitlines():
            interface, _, numbers = line.partition(":")
            if interface.strip() == INTERFACE:
                fields = numbers.split()
                return Counters(sent_bytes=int(fields[8]), received_bytes=int(fields[0]))
        raise TestbedError(f"{self.name} has lost its link {INTERFACE}")
