"""The user's side of local server processes: start the launcher, talk to it, leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Any

import numpy as np

from caramel import errors
from caramel.errors import CaramelError, ClusterError, StepError, in_one_line
from caramel.runtime.clusters.base import has_gpu
from caramel.runtime.executor import WHAT_TO_DO, KindOfRun, Run
from caramel.runtime.host.environment import server_environment
from caramel.runtime.host.processes import is_stopped
from caramel.util.temporary import is_in_process, new_directory, no_room

_CLOSE_TIMEOUT_S = 10.0
_UNLOAD_TIMEOUT_S = 120.0
"""Seconds that servers may take to close a large session: more than ten were seen."""

_GRACE_S = 30.0
"""Seconds that an answer of the driver process may take beyond its own timeout."""

_POLL_S = 0.5
"""Seconds between two looks at the launcher while it is to answer."""

_MOST_STOPPED_S = 7.0
"""Seconds for which it may be stopped by a signal."""

_PROXY_VARIABLES = [
    case(name) for name in ("grpc_proxy", "https_proxy", "http_proxy") for case in (str.lower, str.upper)
]
"""Environment variables of proxies, which servers must not inherit: gRPC would look for the workers behind a proxy."""


@dataclass(frozen=True)
class LaunchSettings:
    """Settings of the servers that a launcher starts.

    Attributes:
        configs: serialized ConfigProto of each server.
        tasks: job and task of each server.
        hosts: path of the network namespace, and address, of each server; None for one namespace for all.
        allow_open_ports: whether to start without a namespace where the kernel allows none.
        base_port: port of the first server; the next listens on ``base_port + 1``; None for free ports.
        start_timeout_s: seconds that the servers may take to start.
    """

    configs: tuple[bytes, ...]
    tasks: tuple[tuple[str, int], ...]
    hosts: tuple[tuple[str, str], ...] | None
    allow_open_ports: bool
    base_port: int | None
    start_timeout_s: float


def start_servers(settings: LaunchSettings) -> LauncherClient:
    """Start servers, and a launcher that owns them.

    Raises:
        ClusterError: the servers cannot be started, safely or at all.
    """
    client = LauncherClient()
    try:
        client.request("start", vars(settings), timeout_s=settings.start_timeout_s + _GRACE_S)
    except BaseException:
        client.close()
        raise
    return client


class LauncherClient:
    """Talks to a launcher over a private pipe; the launcher owns servers, and sessions on them."""

    def __init__(self) -> None:
        directory = new_directory("caramel-cluster-", ClusterError)
        self._log = directory / "launcher.log"
        self._lock = threading.RLock()  # held from a question to its answer
        ours, theirs = Pipe()
        environment = server_environment()
        for name in _PROXY_VARIABLES:
            environment.pop(name, None)
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        environment["OPENBLAS_NUM_THREADS"] = "1"  # keeps the launcher single-threaded, so that it can fork servers
        command = [sys.executable, "-m", "caramel.runtime.clusters.launcher"]
        try:
            with _opened(self._log) as log:
                self._process = subprocess.Popen(
                    [*command, str(theirs.fileno()), str(os.getpid()), str(directory)],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,  # Ctrl-C reaches the user's process, which then closes in order
                )
        except (OSError, ClusterError) as error:
            ours.close()
            shutil.rmtree(directory, ignore_errors=True)
            if isinstance(error, ClusterError):  # of the log
                raise
            raise ClusterError(f"no process can be started for the workers: {in_one_line(error)}") from error
        finally:
            theirs.close()
        self._connection = ours
        self._finalizer = weakref.finalize(self, _stop, self._process, ours, directory, os.getpid())

    @property
    def pid(self) -> int:
        """Process id of the launcher."""
        return self._process.pid

    def request(self, kind: str, *arguments: Any, timeout_s: float) -> Any:
        """Send the launcher a request and wait for its answer.

        Raises:
            CaramelError: what the launcher answers, or that it is gone or silent.
        """
        with self._lock:
            if self.is_closed:
                raise ClusterError("the cluster is closed: start a new session")
            try:
                self._connection.send((kind, arguments))
                self._await_answer(kind, timeout_s)
                status, answer = self._connection.recv()
            except (EOFError, OSError, ClusterError) as error:
                self.close()
                if isinstance(error, ClusterError):
                    raise
                raise ClusterError(
                    f"the local cluster's driver process ended unexpectedly{self._log_tail()}"
                ) from error
            except BaseException:
                # Interrupted between question and answer: the next answer would be to the wrong question, and
                # the launcher may be in the middle of a long step.
                self._kill()
                self.close()
                raise
        if status == "ok":
            return answer
        name, message = answer
        raise getattr(errors, name, CaramelError)(message)

    def _await_answer(self, kind: str, timeout_s: float) -> None:
        """Wait until there is an answer to read.

        Raises:
            ClusterError: there is none in time, or the launcher is stopped.
        """
        deadline_s = time.monotonic() + timeout_s
        stopped_s = None  # since when
        while not self._connection.poll(min(_POLL_S, max(deadline_s - time.monotonic(), 0.0))):
            now_s = time.monotonic()
            if now_s >= deadline_s:
                raise ClusterError(f"the local cluster did not answer {kind!r} within {timeout_s:g} s; it was stopped")
            stopped_s = (stopped_s or now_s) if is_stopped(self.pid) else None
            if stopped_s is not None and now_s - stopped_s > _MOST_STOPPED_S:
                raise ClusterError(
                    f"the local cluster's driver, process {self.pid}, is stopped by a signal. {WHAT_TO_DO}"
                )

    def _log_tail(self) -> str:
        try:
            lines = self._log.read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return ": " + " | ".join(lines[-3:]) if lines else ""

    def worker_pids(self) -> list[int]:
        """Process ids of the servers, by task."""
        return list(self.request("pids", timeout_s=_GRACE_S))

    def is_well(self) -> bool:
        """Whether the launcher and all servers run, and answer."""
        if self.is_closed or self._process.poll() is not None:
            return False
        try:
            return not self.request("trouble", timeout_s=_GRACE_S)
        except ClusterError:
            return False

    @property
    def is_closed(self) -> bool:
        """Whether everything has been stopped."""
        return not self._finalizer.alive

    def close(self) -> None:
        """Stop the servers and the launcher; safe to call twice.

        Where another thread waits for an answer, they are killed, and it gets an error instead.
        """
        has_lock = self._lock.acquire(blocking=False)
        try:
            if not has_lock and not self.is_closed:
                self._kill()
                has_lock = self._lock.acquire(timeout=_CLOSE_TIMEOUT_S)
            self._finalizer()
        finally:
            if has_lock:
                self._lock.release()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.killpg(self._process.pid, signal.SIGKILL)


class ProcessExecutor:
    """A session in a launcher.

    Args:
        client: client of the launcher that owns the servers.
        graph_def: GraphDef to run.
        config: ConfigProto of the session, serialized.
        devices: device string of each worker, with job and task.
        timeout_s: seconds that an operation may take.
        is_alone: whether everything is stopped with this session.

    Raises:
        ClusterError: the servers do not answer.
    """

    def __init__(
        self,
        client: LauncherClient,
        graph_def: Any,
        config: bytes,
        devices: Sequence[str],
        timeout_s: float,
        is_alone: bool = True,
    ) -> None:
        self._client = client
        self._is_alone = is_alone
        try:
            graph_bytes = graph_def.SerializeToString()
            self._number = client.request(
                "load", graph_bytes, config, list(devices), timeout_s, timeout_s=timeout_s + _GRACE_S
            )
        except BaseException:
            if is_alone:
                client.close()
            raise
        self._is_open = True

    def has_gpu(self) -> bool:
        """Whether this machine, on which the servers run, has a GPU."""
        return has_gpu()

    @property
    def launcher_pid(self) -> int:
        """Process id of the launcher."""
        return self._client.pid

    def _request(self, kind: str, payload: Any, timeout_s: float) -> Any:
        return self._client.request(kind, self._number, payload, timeout_s=timeout_s + _GRACE_S)

    def run(
        self, fetches: Sequence[str], targets: Sequence[str], feeds: Mapping[str, np.ndarray], timeout_s: float
    ) -> list[np.ndarray]:
        """Run once; see `Executor.run`."""
        payload = (list(fetches), list(targets), dict(feeds), timeout_s)
        return list(self._request("run", payload, timeout_s))

    def run_traced(
        self, fetches: Sequence[str], targets: Sequence[str], feeds: Mapping[str, np.ndarray], timeout_s: float
    ) -> tuple[list[np.ndarray], bytes]:
        """Run once with full tracing; see `Executor.run_traced`."""
        payload = (list(fetches), list(targets), dict(feeds), timeout_s)
        values, metadata = self._request("run_traced", payload, timeout_s)
        return list(values), metadata

    def run_each(self, runs: Sequence[Run], timeout_s: float) -> list[list[np.ndarray] | StepError]:
        """Run several times at once; see `Executor.run_each`."""
        payload = [(list(fetches), list(targets), dict(feeds)) for fetches, targets, feeds in runs]
        return list(self._request("run_each", (payload, timeout_s), timeout_s))

    def prepare(self, runs: Sequence[KindOfRun], timeout_s: float) -> None:
        """Get ready for runs; see `Executor.prepare`."""
        payload = [(list(fetches), list(targets), list(feeds)) for fetches, targets, feeds in runs]
        self._request("prepare", (payload, timeout_s), timeout_s)

    def extend(self, graph_def: bytes) -> None:
        """Add nodes; see `Executor.extend`."""
        self._request("extend", graph_def, 0.0)

    def pids(self) -> tuple[int, ...]:
        """Process ids of the launcher, which drives, and of the servers, by task."""
        return (self.launcher_pid, *self.worker_pids())

    def worker_pids(self) -> list[int]:
        """Process ids of the servers, by task."""
        return self._client.worker_pids()

    def close(self) -> None:
        """Close the session, and stop what was started for it alone; safe to call twice."""
        if self._is_alone:
            self._client.close()
        elif self._is_open and not self._client.is_closed:
            self._is_open = False
            with contextlib.suppress(CaramelError):  # everything was stopped then
                self._client.request("unload", self._number, timeout_s=_UNLOAD_TIMEOUT_S)


def _opened(log: Path) -> IO[bytes]:
    try:
        return log.open("wb")
    except OSError as error:
        shutil.rmtree(log.parent, ignore_errors=True)
        raise no_room(error, ClusterError) from error


def _stop(process: subprocess.Popen[bytes], connection: Connection, directory: Path, owner_pid: int) -> None:
    """Let the launcher stop its servers; kill it if it does not end in time."""
    if not is_in_process(owner_pid):
        return
    with contextlib.suppress(OSError, ValueError):  # it is gone already
        connection.send(("close", ()))
    connection.close()
    try:
        process.wait(_CLOSE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    shutil.rmtree(directory, ignore_errors=True)
