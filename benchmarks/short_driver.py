"""This library as a contender of the short steps: a driver on the first host, as ``caramel run`` is one.

``python -m benchmarks.short_driver JSON``, of the keyword arguments of `opened`. It has the server of its own worker in
its process; the others are ``caramel worker`` on their hosts. Then it obeys lines of JSON on standard input: of
``{"runs": n}`` it makes so many runs, and answers with the seconds of a step in each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.processes import AnsweringProcesses
from benchmarks.testbed import Testbed
from benchmarks.training.contender import STEP_TIMEOUT_S
from benchmarks.training.ours import captured
from benchmarks.training.steps import Replica
from benchmarks.training.workloads import ALL_BY_NAME, Workload
from caramel.armodel import ARModel
from caramel.frontend.context import Context
from caramel.runtime.host.environment import prepare_server
from caramel.runtime.host.namespaces import die_with_parent

_START_S = 600.0
"""Seconds in which the driver has to be ready: several steps are traced, planned and begun."""

TimedRuns = Callable[[int], list[float]]
"""Number of runs -> seconds of a step in each."""


def fed(workload: Workload) -> tuple[Context, tuple[np.ndarray, np.ndarray]]:
    """A workload's step, captured without data, and a batch for it."""
    import tensorflow as tf

    import caramel

    tf.keras.backend.clear_session()
    replica = Replica(tf, workload, 1, 0)

    def step(x: Any, label: Any) -> Any:
        return replica.step(lambda gradients: gradients, batch=(x, label))

    shapes = tf.TensorSpec([None, *workload.shape], workload.dtype), tf.TensorSpec([None], tf.int32)
    x, label = workload.batch(tf, 1, 0)
    return caramel.capture(step, shapes), (x.numpy(), label.numpy())


@contextmanager
def opened(workload: str, addresses: Sequence[str], network: str, together: int, is_fed: bool) -> Iterator[TimedRuns]:
    """A session on servers, planned from a trace of its own and a measured network.

    Args:
        workload: name of what is trained.
        addresses: address of each worker's server, this process's own first.
        network: path of the model of the network.
        together: number of steps in a run; there are fewer where so many copies would be too large.
        is_fed: whether the driver feeds each batch; else there is a pipeline on each worker.

    Yields:
        What runs it.
    """
    import caramel

    workers = len(addresses)
    context, batch = fed(ALL_BY_NAME[workload]) if is_fed else (captured(ALL_BY_NAME[workload]), None)
    servers = caramel.Servers(tuple(addresses), task=0, drives_inside=True)
    cluster = servers if workers > 1 else caramel.InProcess()
    trace = caramel.trace(context, *(batch or ()), workers=workers, cluster=cluster, runs=5, steps=20, progress=False)
    model = ARModel(context, workers, trace=trace, network=network if workers > 1 else None)
    batches = None if batch is None else [batch] * together
    with model.session(cluster, step_timeout_s=STEP_TIMEOUT_S) as session:

        def run(count: int) -> list[float]:
            times_s = []
            for _ in range(count):
                begin_s = time.perf_counter()
                results = session.steps_together(together, batches)
                times_s.append((time.perf_counter() - begin_s) / len(results))
            return times_s

        yield run


@contextmanager
def driver(
    testbed: Testbed, workers: int, port: int, workload: Workload, network: str, together: int, is_fed: bool
) -> Iterator[TimedRuns]:
    """The driver as a process of the first host, and the other hosts' workers.

    Args:
        testbed: its hosts; the workers are on the first ones.
        workers: number of workers.
        port: port of their servers.
        workload: see `opened`.
        network: see `opened`.
        together: see `opened`.
        is_fed: see `opened`.

    Yields:
        What runs it.

    Raises:
        ClusterError: the driver ended, or did not answer in time.
    """
    hosts = testbed.hosts[:workers]
    addresses = [f"{host.address}:{port}" for host in hosts]
    cluster = ",".join(addresses)
    others = []
    for host in hosts[1:]:
        worker = [sys.executable, "-m", "caramel", "worker", "--cluster", cluster, "--task", str(host.rank)]
        others.append(host.popen(worker, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    asked = {"workload": workload.name, "addresses": addresses, "network": network}
    own = json.dumps({**asked, "together": together, "is_fed": is_fed})
    command = [sys.executable, "-m", "benchmarks.short_driver", own]
    process = AnsweringProcesses("the driver", lambda _: command, 1, testbed, timeout_s=_START_S)
    try:
        yield lambda count: process.ask({"runs": count})[0]
    finally:
        process.close()
        for other in others:
            other.kill()
            other.wait()


def main() -> None:
    """See above."""
    die_with_parent()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    prepare_server()
    with opened(**json.loads(sys.argv[1])) as run:
        for line in sys.stdin:
            out.write(json.dumps(run(json.loads(line)["runs"])) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
