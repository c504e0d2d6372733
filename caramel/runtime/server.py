"""One worker: a TensorFlow server that lives as long as the launcher that started it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from caramel.errors import ClusterError
from caramel.runtime.isolation import die_with_parent, join_network_namespace

READY = "caramel server ready"


def serve_forever(addresses: Sequence[str], task: int) -> None:
    """Run one of several servers until the process is ended.

    Args:
        addresses: ``host:port`` of each worker, in order.
        task: which of them this is.

    Raises:
        ClusterError: the port cannot be used.
    """
    import tensorflow as tf

    from caramel.runtime.executor import RunOptions

    try:
        server = tf.distribute.Server(
            tf.train.ClusterSpec({"worker": list(addresses)}),
            job_name="worker",
            task_index=task,
            config=RunOptions().config(group_leader="/job:worker/replica:0/task:0"),
            protocol="grpc",
        )
    except tf.errors.OpError as error:
        raise ClusterError(f"the server cannot listen at {addresses[task]}: {error.message}") from error
    sys.stdout.write(f"{READY} at {server.target}\n")
    sys.stdout.flush()
    while True:
        time.sleep(3600)


def serve_worker(settings: dict[str, Any], log: str) -> None:
    """Run a server until the launcher is gone; the body of a process of its own.

    Args:
        settings: job, task, jobs (addresses by job and task), config (a serialized ConfigProto),
            the launcher's process id, and the path of the network namespace to join, if any.
        log: file for the output; a line with `READY` says that the server listens.
    """
    die_with_parent()
    with open(log, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if settings["namespace"] is not None:
        join_network_namespace(settings["namespace"])
    import tensorflow as tf

    server = tf.distribute.Server(
        tf.train.ClusterSpec(settings["jobs"]),
        job_name=settings["job"],
        task_index=settings["task"],
        config=tf.compat.v1.ConfigProto.FromString(settings["config"]),
        protocol="grpc",
    )
    sys.stdout.write(f"{READY} at {server.target}\n")
    sys.stdout.flush()
    while os.getppid() == settings["parent"]:
        time.sleep(0.5)
    os._exit(0)
