"""The launcher process: isolates itself, starts one server per worker, and holds the sessions.

It runs until its user's process closes the pipe or ends in whatever way; the servers end with it.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from caramel.errors import CaramelError, ClusterError
from caramel.graph.devices import task_name
from caramel.runtime.host.environment import load_tensorflow
from caramel.runtime.host.namespaces import (
    enter_network_namespace,
    join_network_namespace,
    network_namespace,
    why_no_network_namespace,
)
from caramel.runtime.host.processes import is_stopped
from caramel.runtime.host.server import READY_LINE, serve_worker
from caramel.util.temporary import has_room, no_room

_POLL_S = 0.2
"""Seconds between two looks at the servers."""

_UNLOAD_S = 100.0
"""Seconds that closing a large session may take: more than ten were seen."""

_MOST_STOPPED_S = 5.0
"""Seconds for which a server may be stopped by a signal; less than for one of which only its silence is known."""

_GRACE_S = 2.0
"""Seconds that TensorFlow may take to report by itself what a dead server did to a step."""

_UNSEEN_S = _GRACE_S + 1.0
"""Seconds after which what was seen of a stopped server does not count any more: a call looks more often than that."""


class Launcher:
    """Servers and sessions of one local cluster."""

    def __init__(self, parent: int, directory: Path) -> None:
        self._parent = parent
        self._servers: list[tuple[str, Any]] = []
        self._logs: list[Path] = []
        self._executors: dict[int, Any] = {}
        self._loaded = 0
        self._settings: dict[str, Any] = {}
        self._target = ""
        self.directory = directory
        self._stopped_s: dict[int, float] = {}  # by process id: since when a server is stopped
        self._looked_s = 0.0  # when that was last looked at
        self._heartbeats: Any = None  # its threads start after the servers were forked, as those of the supervisor do
        self._supervisor: Any = None

    def start(self, settings: dict[str, Any]) -> None:
        """Start one server for each task and wait until all listen.

        Raises:
            ClusterError: no isolation, a port in use, or a server that does not start.
        """
        self._settings = settings
        self._isolate(settings)
        addresses = self._addresses(settings)
        jobs: dict[str, dict[int, str]] = {}
        for (job, task), address in zip(settings["tasks"], addresses):
            jobs.setdefault(job, {})[task] = address
        deadline = time.monotonic() + settings["start_timeout_s"]
        context = _process_context()
        for number, (job, task) in enumerate(settings["tasks"]):
            server = {"job": job, "task": task, "jobs": jobs, "config": settings["configs"][number]}
            server["parent"] = os.getpid()
            server["namespace"] = None if settings["hosts"] is None else settings["hosts"][number][0]
            self._spawn(context, server)
        for number, (name, process) in enumerate(self._servers):
            self._await(number, name, process, deadline)
        first_job, first_task = settings["tasks"][0]
        self._target = "grpc://" + jobs[first_job][first_task]
        self._supervise([(job, task, f"grpc://{jobs[job][task]}") for job, task in settings["tasks"]])

    def _supervise(self, tasks: Sequence[tuple[str, int, str]]) -> None:
        """Begin to ask the servers whether they answer."""
        from caramel.runtime.clusters.heartbeat import Heartbeats, Member
        from caramel.runtime.clusters.supervision import Supervisor

        members = [
            Member(f"{name}, process {process.pid},", target, task_name(job, task))
            for (name, process), (job, task, target) in zip(self._servers, tasks)
        ]
        self._heartbeats = Heartbeats(members)
        self._supervisor = Supervisor(self._lost, self._named, _GRACE_S)

    def _lost(self) -> str:
        """The servers that ended, or do not answer, as a clause; empty if all are well."""
        if lost := self._failures(dead_only=True) or self._long_stopped():
            return lost
        silent: str = self._heartbeats.lost()
        return silent and (self._failures() or silent)

    def _long_stopped(self) -> str:
        """The servers that have been stopped by a signal for too long, as a clause."""
        now_s = time.monotonic()
        if now_s - self._looked_s > _UNSEEN_S:
            self._stopped_s = {}  # it may have gone on meanwhile
        self._looked_s = now_s
        stopped = [(name, process.pid) for name, process in self._servers if is_stopped(process.pid)]
        self._stopped_s = {pid: self._stopped_s.get(pid, now_s) for _, pid in stopped}
        return "; ".join(
            _stopped_text(name, pid) for name, pid in stopped if now_s - self._stopped_s[pid] > _MOST_STOPPED_S
        )

    def _named(self) -> str:
        """The same after an error that TensorFlow has reported."""
        time.sleep(_POLL_S)  # a process that was killed is reaped a moment after its socket closed
        return self._failures() or self._heartbeats.doubtful()

    @staticmethod
    def _isolate(settings: dict[str, Any]) -> None:
        """Enter the first host's namespace or a new one."""
        if settings["hosts"] is not None:
            own = network_namespace("/proc/self/ns/net")
            for namespace, _ in settings["hosts"]:
                if network_namespace(namespace) == own and not settings["allow_open_ports"]:
                    raise ClusterError(
                        f"{namespace} is this machine's own network, where anyone may reach the servers: give each "
                        "host a namespace of its own, or accept that with allow_open_ports=True"
                    )
            _join(settings["hosts"][0][0])
            return
        refused = why_no_network_namespace() or enter_network_namespace()
        if refused is not None and not settings["allow_open_ports"]:
            raise ClusterError(
                f"local processes refuse to start: {refused}. TensorFlow servers listen on every interface and run any "
                "graph for anyone who can reach them. Use the in-process cluster, or accept that with "
                "allow_open_ports=True (--allow-open-ports)"
            )

    @staticmethod
    def _addresses(settings: dict[str, Any]) -> list[str]:
        """Address and port of each server; a free port unless a base port is given."""
        hosts, base = settings["hosts"], settings["base_port"]
        listeners, addresses = [], []
        try:
            for number in range(len(settings["tasks"])):
                if hosts is not None:
                    _join(hosts[number][0])
                ip = "127.0.0.1" if hosts is None else hosts[number][1]
                listeners.append(_listener(number, ip, 0 if base is None else base + number))
                addresses.append(f"{ip}:{listeners[-1].getsockname()[1]}")
        finally:
            for listener in listeners:
                listener.close()
        if hosts is not None:
            _join(hosts[0][0])
        return addresses

    def _spawn(self, context: Any, settings: dict[str, Any]) -> None:
        name = f"worker {settings['task']} (job {settings['job']})"
        log = self.directory / f"{settings['job']}-{settings['task']}.log"
        log.touch()
        process = context.Process(target=serve_worker, args=(settings, str(log)), name=name)
        process.start()
        self._servers.append((name, process))
        self._logs.append(log)

    def _await(self, number: int, name: str, process: Any, deadline: float) -> None:
        while READY_LINE not in self._logs[number].read_text(errors="replace"):
            if not process.is_alive():
                raise ClusterError(f"{name} did not start (exit code {process.exitcode}){self._log_tail(number)}")
            if os.getppid() != self._parent:
                raise ClusterError("the process that wanted the cluster is gone")
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{name} did not start within {self._settings['start_timeout_s']:g} s{self._log_tail(number)}"
                )
            time.sleep(_POLL_S / 4)

    def _log_tail(self, number: int) -> str:
        lines = self._logs[number].read_text(errors="replace").strip().splitlines()
        tail = ": " + " | ".join(lines[-3:]) if lines else ""
        return tail if has_room(self.directory) else f"{tail}. {no_room('no space left', ClusterError, self.directory)}"

    def load(self, graph_def: bytes, config: bytes, devices: Sequence[str], timeout_s: float) -> int:
        """Open a session on the servers; its number."""
        import tensorflow as tf

        from caramel.runtime.executor import SessionExecutor

        executor = self._supervisor.call(
            SessionExecutor.on_servers,
            tf.compat.v1.GraphDef.FromString(graph_def),
            self._target,
            tf.compat.v1.ConfigProto.FromString(config),
            devices,
            timeout_s,
        )
        self._loaded += 1
        self._executors[self._loaded] = executor
        return self._loaded

    def unload(self, session: int) -> None:
        """Close a session."""
        executor = self._executors.pop(session)
        self._supervisor.close(executor.close, executor.leave, _UNLOAD_S)

    def run(self, session: int, payload: Any) -> Any:
        """One run of a session; a failure also says which server died."""
        return self._supervisor.call(self._executors[session].run, *payload)

    def run_traced(self, session: int, payload: Any) -> Any:
        """One run of a session with full tracing."""
        return self._supervisor.call(self._executors[session].run_traced, *payload)

    def run_each(self, session: int, payload: Any) -> Any:
        """Several runs at once."""
        return self._supervisor.call(self._executors[session].run_each, *payload)

    def prepare(self, session: int, payload: Any) -> None:
        """Get ready for runs of a session."""
        self._supervisor.call(self._executors[session].prepare, *payload)

    def extend(self, session: int, graph_def: bytes) -> None:
        """Add nodes to a session's graph."""
        self._executors[session].extend(graph_def)

    def _failures(self, dead_only: bool = False) -> str:
        """The servers that ended, or are stopped, and how, as text; empty if all run."""
        failures = []
        for name, process in self._servers:
            code = process.exitcode
            if code is not None:
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                failures.append(f"{name}, process {process.pid}, {how}")
            elif not dead_only and is_stopped(process.pid):
                failures.append(_stopped_text(name, process.pid))
        return "; ".join(failures)

    def pids(self) -> list[int]:
        """Process ids of the servers."""
        return [process.pid for _, process in self._servers]

    def trouble(self) -> str:
        """Why no further session can be opened, as text; empty if all is well."""
        stuck = "a call was given up" if self._supervisor.is_stuck else ""
        return self._failures() or self._heartbeats.doubtful() or stuck

    def stop(self) -> None:
        """Kill the servers. Their state is in checkpoints or gone; nothing there needs an orderly end."""
        for _, process in self._servers:
            process.kill()
        for _, process in self._servers:
            process.join()


def _stopped_text(name: str, pid: int) -> str:
    return f"{name}, process {pid}, is stopped by a signal"


def _join(namespace: str) -> None:
    try:
        join_network_namespace(namespace)
    except OSError as error:
        raise ClusterError(
            f"the network namespace {namespace} cannot be entered ({error.strerror}): it must exist, "
            "and entering it needs root"
        ) from error


def _listener(number: int, ip: str, port: int) -> socket.socket:
    """Reserves a port."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind((ip, port))
    except OSError as error:
        listener.close()
        raise ClusterError(
            f"port {port} of {ip} for worker {number} cannot be used ({error.strerror}): "
            "choose another base_port, or leave it out to take free ports"
        ) from error
    return listener


def _process_context() -> Any:
    """How servers start: forked from this process, which has TensorFlow loaded already, if that is safe.

    It is while there is one thread; otherwise each server loads TensorFlow anew, some seconds each.
    """
    load_tensorflow()  # once for all
    tasks = Path("/proc/self/task")
    single = tasks.is_dir() and len(list(tasks.iterdir())) == 1
    return multiprocessing.get_context("fork" if single else "spawn")


_REQUESTS: dict[str, Callable[..., Any]] = {
    "start": Launcher.start,
    "load": Launcher.load,
    "unload": Launcher.unload,
    "run": Launcher.run,
    "run_traced": Launcher.run_traced,
    "run_each": Launcher.run_each,
    "prepare": Launcher.prepare,
    "extend": Launcher.extend,
    "pids": Launcher.pids,
    "trouble": Launcher.trouble,
}


def answer(launcher: Launcher, kind: str, arguments: Sequence[Any]) -> tuple[str, Any]:
    """The answer to a request: ``"ok"`` and a value, or ``"error"`` with the error's class and message."""
    try:
        return "ok", _REQUESTS[kind](launcher, *arguments)
    except CaramelError as error:
        return "error", (type(error).__name__, str(error))
    except Exception as error:  # report it; the user's process decides
        return "error", ("ClusterError", f"{kind} failed: {type(error).__name__}: {error}")


def serve_one(connection: Connection, launcher: Launcher) -> bool:
    """Answer one request; False if the user's process wants no more, closed the pipe or is gone."""
    try:
        kind, arguments = connection.recv()
    except (EOFError, OSError):
        return False
    if kind == "close":
        return False
    answered = answer(launcher, kind, arguments)
    try:
        connection.send(answered)
    except OSError:
        return False
    return True


def watch(parent: int, launcher: Launcher) -> None:
    """End at once, servers included, when the user's process is gone, even in the middle of a step."""
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    launcher.stop()
    shutil.rmtree(launcher.directory, ignore_errors=True)  # nobody else is left to do it
    os._exit(1)


def main() -> None:
    """``python -m caramel.runtime.clusters.launcher FD PARENT_PID DIRECTORY``"""
    connection = Connection(int(sys.argv[1]))
    parent = int(sys.argv[2])
    launcher = Launcher(parent, Path(sys.argv[3]))
    try:
        # The first request starts the servers while this process still has only one thread.
        if serve_one(connection, launcher):
            threading.Thread(target=watch, args=(parent, launcher), daemon=True).start()
            while serve_one(connection, launcher):
                pass
    finally:
        launcher.stop()
    shutil.rmtree(launcher.directory, ignore_errors=True)  # a user's process that was killed cannot do it
    os._exit(0)  # gRPC threads of a dead cluster may never end by themselves


if __name__ == "__main__":
    main()
