"""One worker of a peer that has a process for each worker: obeys lines of JSON on standard input.

``python -m benchmarks.training.worker KIND ADDRESSES RANK INTRA INTER``, where KIND is ``mwms`` or ``horovod``.
Requests, all with ``do``:

- ``load``: ``name``, ``workload``, ``examples``, ``reduce`` (``none``, or ``all`` with the options of the kind): make a
  step of which ``together`` follow each other in one ``tf.function``.
- ``run``: ``name``, ``steps``: run it so often; answers with the seconds and last losses.
- ``drop``: ``name``: forget it.
- ``begin``: answers when the workers have found each other.

After each of them a process gives memory that it does not use back to the system, where the machine is short of it.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.training.profiles import EMULATED, sleeping
from benchmarks.training.steps import Replica
from benchmarks.training.workloads import ALL_BY_NAME
from caramel.runtime.host.namespaces import die_with_parent

_CLONE_NEWUTS = 0x04000000

_HEARTBEAT_TIMEOUT_MS = 600_000
"""While other contenders fill the links and the cores, heartbeats are late; after 10 s without, everybody ends."""

_SHORT_OF_MEMORY = 0.4
"""The part of the machine's memory below which what is available is little. Processes keep the memory of the largest
step that they have computed; those of all contenders on eight hosts did not fit into 24 GiB, and the system killed
some of them."""

Peer = Callable[[Replica, Mapping[str, Any]], Callable[[], Any]]
"""A replica and options -> a step that returns this worker's loss."""


def _mirrored(tf: Any, addresses: Sequence[str], rank: int) -> Peer:
    """MultiWorkerMirroredStrategy with its own ring."""
    cluster = {"worker": [f"{address}:{22000 + r}" for r, address in enumerate(addresses)]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
    _allow_late_heartbeats(cluster)
    distribute = tf.distribute.experimental
    ring = distribute.CommunicationImplementation.RING
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=distribute.CommunicationOptions(implementation=ring)
    )

    def step_of(replica: Replica, options: Mapping[str, Any]) -> Callable[[], Any]:
        hints = distribute.CommunicationOptions(implementation=ring, **options)

        def reduce(gradients: Sequence[Any]) -> Sequence[Any]:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.MEAN, list(gradients), hints)  # type: ignore[no-any-return]

        return lambda: strategy.run(lambda: replica.step(reduce))

    return step_of


def _allow_late_heartbeats(cluster: Mapping[str, Sequence[str]]) -> None:
    """What the strategy sets up otherwise, with a longer timeout; there is no public way to say one."""
    from tensorflow.python.eager import context

    job = context.coordination_config_pb2.CoordinatedJob
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        heartbeat_timeout_in_ms=_HEARTBEAT_TIMEOUT_MS,
        coordinated_jobs=[job(name=name, num_tasks=len(tasks)) for name, tasks in cluster.items()],
    )


def _horovod(tf: Any, addresses: Sequence[str], rank: int) -> Peer:
    """Horovod's tape; what there is to set are variables of the environment."""
    # One of its connections goes to whatever address the host's name has.
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUTS) != 0:
        raise OSError(ctypes.get_errno(), "the host's name cannot be changed for this process")
    socket.sethostname(addresses[rank])
    import horovod.tensorflow as hvd

    hvd.init()
    return lambda replica, _: lambda: replica.step(lambda gradients: gradients, hvd.DistributedGradientTape)


class Worker:
    """What a process does.

    Args:
        tf: TensorFlow.
        peer: makes steps that communicate.
        workers: number of workers.
        rank: of this one.
    """

    def __init__(self, tf: Any, peer: Peer, workers: int, rank: int) -> None:
        self._tf = tf
        self._peer = peer
        self._workers = workers
        self._rank = rank
        self._steps: dict[str, Callable[[], Any]] = {}

    def answer(self, request: Mapping[str, Any]) -> Any:
        """Do what a line asks for."""
        try:
            return self._answer(request)
        finally:
            if is_short_of_memory():
                give_back_memory()

    def _answer(self, request: Mapping[str, Any]) -> Any:
        if request["do"] == "load":
            return self._load(**{key: value for key, value in request.items() if key != "do"})
        if request["do"] == "run":
            return self._run(self._steps[request["name"]], request["steps"])
        if request["do"] == "drop":
            del self._steps[request["name"]]
            return None
        if request["do"] == "begin":
            return None
        raise ValueError(f"unknown request {request['do']!r}")

    def _load(
        self, name: str, workload: str, examples: int, reduce: str, options: Mapping[str, Any], together: int
    ) -> None:
        known = {**ALL_BY_NAME, **EMULATED}[workload]
        replica = Replica(self._tf, replace(sleeping(known), examples=examples), self._workers, self._rank)
        step = self._peer(replica, options) if reduce == "all" else lambda: replica.step(lambda gradients: gradients)
        self._steps[name] = self._tf.function(lambda: [step() for _ in range(together)][-1])

    def _run(self, step: Callable[[], Any], steps: int) -> Mapping[str, Any]:
        times, losses = [], []
        before = time.perf_counter()
        for _ in range(steps):
            losses.append(float(step()))  # as long as it takes: a loss is known when its step is done
            now = time.perf_counter()
            times.append(now - before)
            before = now
        return {"times_s": times, "losses": losses}


def is_short_of_memory(path: str = "/proc/meminfo") -> bool:
    """Whether little of the machine's memory is available.

    Args:
        path: of what the kernel says about it.
    """
    lines = (line.partition(":") for line in Path(path).read_text().splitlines())
    sizes = {name: int(rest.split()[0]) for name, _, rest in lines}
    return sizes["MemAvailable"] < _SHORT_OF_MEMORY * sizes["MemTotal"]


def give_back_memory() -> None:
    """Give the system what was freed. The next step, which does not count, takes it again."""
    ctypes.CDLL(None).malloc_trim(0)


def main() -> None:
    """See above."""
    die_with_parent()
    kind, addresses, rank = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[4]))
    tf.config.threading.set_inter_op_parallelism_threads(int(sys.argv[5]))
    peer = {"mwms": _mirrored, "horovod": _horovod}[kind](tf, addresses, rank)
    worker = Worker(tf, peer, len(addresses), rank)
    for line in sys.stdin:
        out.write(json.dumps(worker.answer(json.loads(line))) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
