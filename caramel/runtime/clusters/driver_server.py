"""The driver's own server: that of task 0, in a process beside the driver, for as long as it needs it."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from typing import IO, Any

from caramel.errors import ClusterError, in_one_line
from caramel.runtime.host.environment import server_environment
from caramel.runtime.host.names import host_of_address
from caramel.runtime.host.server import READY_LINE, START_TIMEOUT_S
from caramel.util.temporary import is_in_process, no_room

_POLL_S = 0.05
_CONNECT_TIMEOUT_S = 2.0


def is_listening(address: str) -> bool:
    """Whether anything accepts connections at ``host:port``."""
    place = host_of_address(address), int(address.rpartition(":")[2])
    try:
        with socket.create_connection(place, _CONNECT_TIMEOUT_S):
            return True
    except OSError:
        return False


class OwnServer:
    """A process with the server of task 0; use it in a ``with`` statement, or stop it.

    It also ends by itself when this process does, in whatever way.

    Args:
        addresses: address ``host:port`` of each worker, in order.
        config: ConfigProto of the server.
        timeout_s: seconds that the server may take to listen.

    Attributes:
        pid: process id of the server.

    Raises:
        ClusterError: the server does not start.
    """

    def __init__(self, addresses: Sequence[str], config: Any, timeout_s: float = START_TIMEOUT_S) -> None:
        settings = {"addresses": list(addresses), "config": config.SerializeToString(), "parent": os.getpid()}
        try:
            log = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the server is stopped
        except OSError as error:
            raise no_room(error, ClusterError) from error
        # In a session of its own: Ctrl-C reaches the driver alone, which then closes in order.
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "caramel.runtime.host.server"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=server_environment(),
                start_new_session=True,
            )
        except OSError as error:
            log.close()
            raise ClusterError(f"the driver's own server cannot be started: {in_one_line(error)}") from error
        self.pid = process.pid
        self._finalizer = weakref.finalize(self, _stop, process, log, os.getpid())
        try:
            self._await(process, pickle.dumps(settings), log, addresses[0], timeout_s)
        except BaseException:
            self.stop()
            raise

    @staticmethod
    def _await(
        process: subprocess.Popen[bytes], settings: bytes, log: IO[bytes], address: str, timeout_s: float
    ) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(settings)
            process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended; what it said is in the log
        deadline = time.monotonic() + timeout_s
        while READY_LINE not in (output := _text(log)):
            lines = " | ".join(output.strip().splitlines()[-3:])
            if process.poll() is not None:
                raise ClusterError(
                    f"the server of task 0, {address}, did not start beside this process "
                    f"(exit code {process.returncode}): {lines}"
                )
            if time.monotonic() > deadline:
                raise ClusterError(f"the server of task 0, {address}, did not start within {timeout_s:g} s: {lines}")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """End the server; safe to call twice."""
        self._finalizer()

    def __enter__(self) -> OwnServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _text(log: IO[bytes]) -> str:
    # The server writes at the file's one position, which reading must not move.
    return os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0).decode(errors="replace")


def _stop(process: subprocess.Popen[bytes], log: IO[bytes], owner_pid: int) -> None:
    if not is_in_process(owner_pid):
        return
    process.kill()  # nothing there needs an orderly end
    process.wait()
    log.close()
