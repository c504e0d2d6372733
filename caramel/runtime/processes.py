"""The user's side of local server processes: start the launcher, talk to it, leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from caramel import errors
from caramel.errors import CaramelError, ClusterError, StepError
from caramel.graph.devices import cpu_count, task_name
from caramel.runtime.environment import server_environment
from caramel.runtime.executor import Run, has_native_collectives

if TYPE_CHECKING:
    from caramel.runtime.cluster import LocalProcesses

_CLOSE_TIMEOUT_S = 10.0
_GRACE_S = 30.0
"""How much longer than its own timeout an answer of the driver process may take."""

_PROXIES = [case(name) for name in ("grpc_proxy", "https_proxy", "http_proxy") for case in (str.lower, str.upper)]
"""gRPC would look for the workers behind a proxy."""


def start_processes(
    graph_def: Any,
    devices: Sequence[str],
    tasks: Sequence[tuple[str, int]],
    cluster: LocalProcesses,
    timeout_s: float,
) -> ProcessExecutor:
    """Start servers for the tasks and load the graph.

    Raises:
        ClusterError: they cannot be started, safely or at all.
    """
    leader = task_name(*tasks[0]) if has_native_collectives(graph_def) else ""
    configs = [
        cluster.options.server_config(cpu_count(devices, worker), leader).SerializeToString() for worker in tasks
    ]
    settings = {
        "devices": list(devices),
        "configs": configs,
        "tasks": list(tasks),
        "hosts": None if cluster.hosts is None else [(h.namespace, h.address) for h in cluster.hosts],
        "allow_open_ports": cluster.allow_open_ports,
        "base_port": cluster.base_port,
        "start_timeout_s": cluster.start_timeout_s,
        "timeout_s": timeout_s,
    }
    executor = ProcessExecutor()
    try:
        executor.request("start", settings, timeout_s=cluster.start_timeout_s + _GRACE_S)
        executor.request("load", graph_def.SerializeToString(), timeout_s=timeout_s + _GRACE_S)
    except BaseException:
        executor.close()
        raise
    return executor


class ProcessExecutor:
    """Talks to the launcher over a private pipe; the launcher owns the servers and the session."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="caramel-cluster-")
        self._log = Path(self._directory.name) / "launcher.log"
        self._lock = threading.Lock()
        ours, theirs = Pipe()
        environment = server_environment()
        for name in _PROXIES:
            environment.pop(name, None)
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        environment["OPENBLAS_NUM_THREADS"] = "1"  # keeps the launcher single-threaded, so that it can fork servers
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "caramel.runtime.launcher",
                    str(theirs.fileno()),
                    str(os.getpid()),
                    self._directory.name,
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches the user's process, which then closes in order
            )
        theirs.close()
        self._connection = ours
        self._finalizer = weakref.finalize(self, _stop, self._process, ours, self._directory)

    @property
    def launcher_pid(self) -> int:
        """Process id of the launcher."""
        return self._process.pid

    def request(self, kind: str, payload: Any, timeout_s: float) -> Any:
        """Ask the launcher for something and wait for its answer.

        Raises:
            CaramelError: what the launcher answers, or that it is gone or silent.
        """
        with self._lock:
            if not self._finalizer.alive:
                raise ClusterError("the cluster is closed: start a new session")
            try:
                self._connection.send((kind, payload))
                if not self._connection.poll(timeout_s):
                    raise ClusterError(
                        f"the local cluster did not answer {kind!r} within {timeout_s:g} s; it was stopped"
                    )
                status, answer = self._connection.recv()
            except (EOFError, OSError, ClusterError) as error:
                self.close()
                if isinstance(error, ClusterError):
                    raise
                raise ClusterError(f"the local cluster's driver process ended unexpectedly{self._tail()}") from error
            except BaseException:
                # Interrupted between question and answer: the next answer would be to the wrong question, and
                # the launcher may be in the middle of a long step.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self.close()
                raise
        if status == "ok":
            return answer
        name, message = answer
        raise getattr(errors, name, CaramelError)(message)

    def _tail(self) -> str:
        try:
            lines = self._log.read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return ": " + " | ".join(lines[-3:]) if lines else ""

    def run(
        self, fetches: Sequence[str], targets: Sequence[str], feeds: Mapping[str, np.ndarray], timeout_s: float
    ) -> list[np.ndarray]:
        """Run once; see `Executor.run`."""
        payload = (list(fetches), list(targets), dict(feeds), timeout_s)
        return list(self.request("run", payload, timeout_s + _GRACE_S))

    def run_traced(
        self, fetches: Sequence[str], targets: Sequence[str], feeds: Mapping[str, np.ndarray], timeout_s: float
    ) -> tuple[list[np.ndarray], bytes]:
        """Run once with full tracing; see `Executor.run_traced`."""
        payload = (list(fetches), list(targets), dict(feeds), timeout_s)
        values, metadata = self.request("run_traced", payload, timeout_s + _GRACE_S)
        return list(values), metadata

    def run_each(self, runs: Sequence[Run], timeout_s: float) -> list[list[np.ndarray] | StepError]:
        """Run several times at once; see `Executor.run_each`."""
        payload = [(list(fetches), list(targets), dict(feeds)) for fetches, targets, feeds in runs]
        return list(self.request("run_each", (payload, timeout_s), timeout_s + _GRACE_S))

    def extend(self, graph_def: bytes) -> None:
        """Add nodes; see `Executor.extend`."""
        self.request("extend", graph_def, _GRACE_S)

    def pids(self) -> tuple[int, ...]:
        """Process ids of the launcher, which drives, and of the servers, by task."""
        return (self.launcher_pid, *self.worker_pids())

    def worker_pids(self) -> list[int]:
        """Process ids of the servers, by task."""
        return list(self.request("pids", None, _GRACE_S))

    def close(self) -> None:
        """Stop the servers and the launcher; safe to call twice."""
        self._finalizer()


def _stop(
    process: subprocess.Popen[bytes], connection: Connection, directory: tempfile.TemporaryDirectory[str]
) -> None:
    """Let the launcher stop its servers; then make sure."""
    with contextlib.suppress(OSError, ValueError):  # it is gone already
        connection.send(("close", None))
    connection.close()
    try:
        process.wait(_CLOSE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    directory.cleanup()
