"""One worker: a TensorFlow server, run by hand or for as long as the process that started it lives."""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from caramel.errors import ClusterError
from caramel.graph.devices import WORKER_JOB, task_name
from caramel.runtime.host.environment import load_tensorflow, prepare_server
from caramel.runtime.host.namespaces import die_with_parent, join_network_namespace

READY_LINE = "caramel server ready"
"""Beginning of the line that a server writes when it listens."""

START_TIMEOUT_S = 120.0
"""Seconds in which a server must listen: it loads TensorFlow first, maybe from a disk that others use, too."""

_LOOK_S = 2.0
"""Seconds from one look for drivers that are gone to the next."""

GROUP_LEADER = task_name(WORKER_JOB, 0)
"""The task that coordinates TensorFlow's own collective ops; servers know it even if no graph has any yet."""


def serve_forever(
    addresses: Sequence[str],
    task: int,
    devices: int = 1,
    threads: int | None = None,
    exits_with_driver: bool = False,
    exits_with_input: bool = False,
    as_json: bool = False,
) -> NoReturn:
    """Run one of several servers until the process is ended.

    Args:
        addresses: address ``host:port`` of each worker, in order.
        task: number of the worker that this server is.
        devices: number of virtual CPU devices, for as many replicas in this process.
        threads: see `RunOptions.with_threads`.
        exits_with_driver: whether the process ends by itself once a driver that has used the server has ended.
        exits_with_input: whether the process ends by itself once standard input has ended.
        as_json: whether lines on standard output are for programs.

    Raises:
        ClusterError: the port cannot be used.
    """

    def say(text: str, **values: str) -> None:
        sys.stdout.write((json.dumps(values) if as_json else text) + "\n")
        sys.stdout.flush()

    def say_freed(process: str) -> None:
        say(f"the driver, {process}, has ended without closing its session: what it left was freed", freed=process)

    if exits_with_input:
        threading.Thread(target=_end_with_input, name="end of input", daemon=True).start()
    prepare_server()
    load_tensorflow()
    from caramel.runtime.host.presence import Watch
    from caramel.runtime.host.run_options import RunOptions

    config = RunOptions.with_threads(threads).server_config(devices, GROUP_LEADER)
    target = _start({WORKER_JOB: dict(enumerate(addresses))}, WORKER_JOB, task, config)
    watch = Watch(target, task_name(WORKER_JOB, task))
    say(_ready(target), ready=target)
    watch.run(_LOOK_S, exits_with_driver, say_freed)
    _end()


_inside: set[str] = set()
"""Addresses of the servers of this process, which goes on to do something else."""


def serve_inside(addresses: Sequence[str], config: Any) -> None:
    """Start the server of task 0 in this process, which cannot stop it and has it until it ends.

    Args:
        addresses: address ``host:port`` of each worker, in order.
        config: ConfigProto of the server.

    Raises:
        ClusterError: the port cannot be used.
    """
    _start({WORKER_JOB: dict(enumerate(addresses))}, WORKER_JOB, 0, config)
    _inside.add(addresses[0])


def is_inside(address: str) -> bool:
    """Whether the server at an address is one of this process."""
    return address in _inside


def _end_with_input() -> None:
    while os.read(0, 1 << 16):
        pass
    _end()


def _end() -> NoReturn:
    """End this process at once: TensorFlow's servers cannot be stopped, and nothing there needs an orderly end."""
    sys.stdout.flush()
    os._exit(0)


def _start(jobs: Mapping[str, Mapping[int, str]], job: str, task: int, config: Any) -> str:
    """Start a server, which lives as long as the process. Its address ``grpc://host:port`` on this machine.

    Raises:
        ClusterError: the port cannot be used.
    """
    import tensorflow as tf

    try:
        server = tf.distribute.Server(
            tf.train.ClusterSpec({name: dict(tasks) for name, tasks in jobs.items()}),
            job_name=job,
            task_index=task,
            config=config,
            protocol="grpc",
        )
    except tf.errors.OpError as error:
        raise ClusterError(
            f"the server cannot listen at {jobs[job][task]}: {error.message}. Does something else use the port?"
        ) from error
    target: str = server.target
    return target


def _ready(target: str) -> str:
    """The line that says that a server listens."""
    return f"{READY_LINE} at {target}"


def _serve_until_left(jobs: Mapping[str, Mapping[int, str]], job: str, task: int, config: bytes, parent: int) -> None:
    tf = load_tensorflow()
    target = _start(jobs, job, task, tf.compat.v1.ConfigProto.FromString(config))
    sys.stdout.write(_ready(target) + "\n")
    sys.stdout.flush()
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


def serve_worker(settings: dict[str, Any], log: str) -> None:
    """Run a server until the launcher is gone; the body of a process of its own.

    Args:
        settings: job, task, jobs (addresses by job and task), config (a serialized ConfigProto),
            the launcher's process id, and the path of the network namespace to join, if any.
        log: file for the output; a line with `READY_LINE` says that the server listens.
    """
    die_with_parent()
    with open(log, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if settings["namespace"] is not None:
        join_network_namespace(settings["namespace"])
    _serve_until_left(settings["jobs"], settings["job"], settings["task"], settings["config"], settings["parent"])


def main() -> None:
    """``python -m caramel.runtime.host.server``: the server of task 0, until its driver is gone.

    Settings come over standard input: addresses, config and the driver's process id.
    """
    settings = pickle.load(sys.stdin.buffer)
    try:
        _serve_until_left(
            {WORKER_JOB: dict(enumerate(settings["addresses"]))}, WORKER_JOB, 0, settings["config"], settings["parent"]
        )
    except ClusterError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
