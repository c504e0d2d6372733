"""In-graph contenders in plain TensorFlow 1 style: its own all-reduces, and parameter servers.

One graph holds all workers; one session runs it, through TensorFlow's own servers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.training.contender import STEP_TIMEOUT_S, Burst, Settings
from benchmarks.training.replicas import Building, StepGraph
from benchmarks.training.workloads import Workload
from caramel.errors import ClusterError, InputError, listed
from caramel.graph.devices import default_devices
from caramel.runtime.clusters.base import Cluster
from caramel.util.arguments import whole_number

ALGORITHMS = ("ring", "shuffle", "recursive_hd")
"""TensorFlow's in-graph all-reduces."""


class InGraph:
    """Steps of one graph for all workers, run by one session.

    Args:
        name: see `Contender`.
        settings: likewise.
        graph: what to run.
        cluster: where.
        step_timeout_s: how long a step may take.
        start_timeout_s: how long the session may take to open, and the variables to get their first values.

    Raises:
        ClusterError: a worker cannot be started or reached.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        graph: StepGraph,
        cluster: Cluster,
        step_timeout_s: float = STEP_TIMEOUT_S,
        start_timeout_s: float = 300.0,
    ) -> None:
        self.name = name
        self.settings = settings
        self._step_timeout_s = step_timeout_s
        self._losses, self._steps = list(graph.losses), list(graph.steps)
        self._is_closed = False
        self._executor = cluster.start(graph.graph_def, default_devices(len(graph.losses)), start_timeout_s)
        try:
            self._executor.run([], graph.initialise, graph.feeds, start_timeout_s)
            self._pids = self._executor.pids()  # later they may be stopped, and not answer
        except BaseException:
            self.close()
            raise

    def run(self, steps: int) -> Burst:
        """Run steps; see `Contender.run`."""
        losses, starts = [], []
        for number in range(whole_number(steps, "steps")):
            starts.append(time.perf_counter())
            try:
                found = self._executor.run(self._losses, self._steps, {}, self._step_timeout_s)
            except ClusterError as error:
                raise ClusterError(f"{self.name}, step {number + 1} of {steps}: {error}") from error
            losses.append(statistics.fmean(map(float, found)))
        starts.append(time.perf_counter())
        return Burst(tuple(end - start for start, end in pairwise(starts)), tuple(losses))

    def pids(self) -> Sequence[int]:
        """Its processes, and those of servers that it shares with others."""
        return self._pids

    def close(self) -> None:
        """End its processes; nothing happens the second time."""
        if not self._is_closed:
            self._is_closed = True
            self._executor.close()


def tensorflow_collectives(
    workload: Workload, workers: int, cluster: Cluster, algorithm: str = "ring", **timeouts: float
) -> InGraph:
    """TensorFlow's in-graph all-reduces, one for each gradient.

    Args:
        workload: what is trained.
        workers: number of workers, at least 2.
        cluster: where.
        algorithm: one of `ALGORITHMS`.
        timeouts: see `InGraph`.

    Raises:
        InputError: the algorithm does not work for so many workers, or not for these gradients.
        ClusterError: a worker cannot be started or reached.
    """
    graph = collectives_graph(workload, workers, algorithm)
    return InGraph("tensorflow_collectives", {"algorithm": algorithm}, graph, cluster, **timeouts)


def parameter_server(
    workload: Workload, workers: int, cluster: Cluster, servers: int | None = None, **timeouts: float
) -> InGraph:
    """Synchronous training with parameter servers.

    Args:
        workload: what is trained.
        workers: number of workers, at least 2.
        cluster: where.
        servers: number of parameter servers, each in the process of a worker; default: as many as workers.
        timeouts: see `InGraph`.

    Raises:
        InputError: there cannot be so many servers.
        ClusterError: a worker cannot be started or reached.

    Source:
        Caramel, section 6.1: as many servers as workers, or half as many.
    """
    count = workers if servers is None else servers
    graph = parameter_server_graph(workload, workers, count)
    return InGraph("parameter_server", {"servers": count}, graph, cluster, **timeouts)


# -- graphs ------------------------------------------------------------------------------------


def collectives_graph(workload: Workload, workers: int, algorithm: str) -> StepGraph:
    """Each worker has all parameters, and all-reduces each gradient; sparse ones are gathered.

    Raises:
        InputError: the algorithm does not work for so many workers, or not for these gradients.
    """
    _check_algorithm(workload, workers, algorithm)
    building = Building(workload, workers)
    with building.graph.as_default():
        stored = [building.stored(rank) for rank in range(workers)]
        gradients = [building.gradients(rank, stored[rank]) for rank in range(workers)]
        for name in workload.parameters:
            parts = [each[name] for each in gradients]
            means: Sequence[Any]
            if workload.is_sparse(name):
                means = [building.gathered(parts, device) for device in building.devices]
            else:
                means = _all_reduced(building.tf, parts, building.devices, algorithm)
            for rank, mean in enumerate(means):
                building.update(stored[rank][name], mean)
        return building.finish()


def parameter_server_graph(workload: Workload, workers: int, servers: int) -> StepGraph:
    """Each parameter is on one server, which sends it to all workers, and takes the mean of what they send.

    Of a table whose gradient is sparse, workers ask for the rows that they need, as `tf.nn.embedding_lookup` does.

    Raises:
        InputError: there cannot be so many servers.
    """
    if not 1 <= servers <= workers:
        raise InputError(f"servers must be between 1 and the number of workers, {workers}, got {servers}")
    building = Building(workload, workers)
    where = spread({name: 4 * int(np.prod(each.shape)) for name, each in workload.parameters.items()}, servers)
    with building.graph.as_default():
        tf = building.tf
        stored = {name: each for s in range(servers) for name, each in building.stored(s, where).items()}
        gradients = [building.gradients(rank, stored) for rank in range(workers)]
        for name, each in stored.items():
            parts = [found[name] for found in gradients]
            if workload.is_sparse(name):
                mean = building.gathered(parts, each.device)
            else:
                with tf.device(each.device):
                    mean = tf.add_n(parts) / workers
            building.update(each, mean)
        return building.finish()


def spread(size_bytes: Mapping[str, int], servers: int) -> Mapping[str, int]:
    """The server of each parameter: the largest first, each to the server with the fewest bytes.

    Ties are broken by name, and by the server's number.

    >>> spread({"a": 4, "b": 4, "c": 12, "d": 2}, 2)
    {'c': 0, 'a': 1, 'b': 1, 'd': 1}
    """
    load, where = [0] * servers, {}
    for name in sorted(size_bytes, key=lambda name: (-size_bytes[name], name)):
        server = min(range(servers), key=lambda server: (load[server], server))
        where[name] = server
        load[server] += size_bytes[name]
    return where


# -- TensorFlow's all-reduces ------------------------------------------------------------------


def _check_algorithm(workload: Workload, workers: int, algorithm: str) -> None:
    if algorithm not in ALGORITHMS:
        raise InputError(f"algorithm must be one of {listed(ALGORITHMS)}, got {algorithm!r}")
    if algorithm != "recursive_hd":
        return
    if workers & (workers - 1):
        raise InputError(f"TensorFlow's recursive_hd needs 2, 4, 8 ... workers, got {workers}: use another algorithm")
    sizes = {n: int(np.prod(d.shape)) for n, d in workload.parameters.items() if not workload.is_sparse(n)}
    uneven = [f"{name} ({size})" for name, size in sizes.items() if size % workers]
    if uneven:
        raise InputError(
            f"TensorFlow's recursive_hd needs gradients whose number of elements can be divided by {workers}, the "
            f"number of workers, which is not so for {listed(uneven)}: use another algorithm"
        )


def _all_reduced(tf: Any, parts: Sequence[Any], devices: Sequence[str], algorithm: str) -> Sequence[Any]:
    """The mean of dense gradients, on each worker."""
    from tensorflow.python.distribute.v1 import all_reduce

    workers = len(devices)

    def mean(total: Any) -> Any:
        with tf.device(total.device):
            return total / workers

    build: Mapping[str, Callable[[Sequence[Any]], Sequence[Any]]] = {
        "ring": lambda xs: all_reduce.build_ring_all_reduce(xs, workers, 1, [0], tf.add, mean),
        "shuffle": lambda xs: all_reduce.build_shuffle_all_reduce(xs, devices, tf.add_n, mean),
        "recursive_hd": lambda xs: all_reduce.build_recursive_hd_all_reduce(xs, tf.add, mean),
    }
    shape = [int(d) for d in parts[0].shape]
    flat = []
    for part, device in zip(parts, devices):
        with tf.device(device):
            flat.append(tf.reshape(part, [int(np.prod(shape))]))
    found = []
    for result, device in zip(build[algorithm](flat), devices):
        with tf.device(device):
            found.append(tf.reshape(result, shape))
    return found
