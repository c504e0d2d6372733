"""This library as a contender: planned from its own trace and its own measurement of the network, nothing else."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.training.contender import STEP_TIMEOUT_S, Burst, Settings
from benchmarks.training.names import COMPUTE_IN_GRAPH, OURS
from benchmarks.training.steps import Replica
from benchmarks.training.timeline import Step, traced_steps
from benchmarks.training.workloads import Workload
from caramel.analyzers.cost.bounds import lower_bounds
from caramel.analyzers.cost.network import Network
from caramel.analyzers.cost.simulate import simulate_on
from caramel.analyzers.step.boundaries import find_boundaries
from caramel.armodel import ARModel
from caramel.compiler.distributed_model import computation_alone
from caramel.facts import Boundaries, ControlEdges, Dependencies, Schedule, Trace, UpdateOrder
from caramel.frontend.context import Context
from caramel.model import Model
from caramel.netmodel.line import Line
from caramel.netmodel.model import NetworkModel
from caramel.runtime.clusters.base import Cluster
from caramel.runtime.session import Session

_SHUFFLE: Mapping[str, Any] = {"algorithm": "shuffle", "depth": 1}
"""The all-reduce for transfers of every size; the one that the paper's measurements are made with."""

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    OURS: {},
    "caramel_paper": {"policy": "paper"},
    "caramel_no_order": {"serialization": False},
    "caramel_no_buckets": {"batching": False},
    "caramel_no_forward": {"scheduling": False},
    "caramel_no_choice": _SHUFFLE,
    "caramel_nothing": {
        "serialization": False,
        "batching": False,
        "scheduling": False,
        "shard_embeddings": False,
        **_SHUFFLE,
    },
    "caramel_rings": {"algorithm": "ring", "depth": 1},
    "caramel_whole": {"shard_embeddings": False},
    "caramel_owners": {"shard_embeddings": True},
    "caramel_sharded": {"shard_embeddings": True, "shard_updates": True},
}
"""What of the whole is left out, or fixed, by contender."""


def captured(workload: Workload) -> Context:
    """A workload's step as a user would write it, with the data of each worker."""
    import tensorflow as tf

    import caramel

    tf.keras.backend.clear_session()  # names, and with them the digest, are those of a new process
    replica = Replica(tf, workload, 1, 0)

    def data(workers: int, rank: int) -> Any:
        made = tf.data.Dataset.from_tensors(0).map(lambda _: workload.batch(tf, workers, rank))
        return made.cache().repeat()

    def step(x: Any, label: Any) -> Any:
        return replica.step(lambda gradients: gradients, batch=(x, label))

    return caramel.capture(step, data=data)


@dataclass(frozen=True)
class Limits:
    """What no plan can be below on some links.

    Attributes:
        network_s: seconds that each link needs for what must be sent; of sparse gradients that is each row once.
        step_s: (seconds of computation alone) -> seconds of a step, LB1 with transfers that take nothing but their
            bytes' time on the links. All times of the trace are scaled to the computation.
    """

    network_s: float
    step_s: Callable[[float], float]


def limits_at(model: ARModel, link_bytes_per_s: float) -> Limits:
    """The limits of a workload.

    Args:
        model: planned with a trace.
        link_bytes_per_s: measured rate of each host's link.
    """
    workers = model.plan.workers
    line = Line(0.0, 2 * (workers - 1) / workers / link_bytes_per_s)
    found: Boundaries = model.facts[Boundaries]
    traced_s = found.compute_s + found.updates_s

    def step_s(compute_s: float) -> float:
        return lower_bounds(found.scaled(compute_s / traced_s), line).lb1_s

    return Limits(line.b_s_per_byte * sum(each.size_bytes for each in found.gradients), step_s)


def planned(name: str, context: Context, workers: int, trace: Trace, network: NetworkModel) -> ARModel:
    """A workload, planned in one way.

    Args:
        name: of `OPTIONS`.
        context: what was captured.
        workers: number of workers.
        trace: of it on the testbed's hosts.
        network: measured between them.
    """
    return ARModel(context, workers, trace=trace, network=network, **OPTIONS[name])


def predicted_s(model: ARModel) -> float | None:
    """Seconds of a step, by the plan."""
    found = model.plan.prediction
    return None if found is None else found.timeline.iteration_s


def predicted_at_s(model: ARModel, trace: Trace, computation_s: float) -> float:
    """Seconds of a step under a plan, where computation takes as long as it does at another time.

    Where a machine is slower for a while, this says what is wrong with a prediction besides.

    Args:
        model: planned with the trace.
        trace: of the workload.
        computation_s: measured seconds of a step of all workers in one graph, without communication.
    """
    dependencies, order, edges = (model.facts[kind] for kind in (Dependencies, UpdateOrder, ControlEdges))
    network: Network = model.facts[Network]
    used: Trace = model.facts[Trace]  # the paper's policy takes the least times of the trace
    then = replace(used, step_s=used.step_s * computation_s / trace.step_s)  # all else of it counts in parts of that
    planned_for: Boundaries = model.facts[Boundaries]
    apart = planned_for.sharded, planned_for.divided
    found = find_boundaries(model.facts[Model], dependencies, then, order, edges, network, *apart)
    return simulate_on(network, found, model.facts[Schedule]).iteration_s


class OurContender:
    """A workload in a graph of this library.

    Args:
        name: of the contender.
        settings: that were chosen.
        session: of the graph, which the contender closes.
    """

    def __init__(self, name: str, settings: Settings, session: Session) -> None:
        self.name = name
        self.settings = settings
        self._session = session

    @classmethod
    def of_plan(cls, name: str, model: ARModel, cluster: Cluster) -> OurContender:
        """A workload under a plan.

        Args:
            name: of `OPTIONS`.
            model: what was planned.
            cluster: the hosts.
        """
        kinds = Counter(f"{t.algorithm} {t.depth}" for t in model.plan.transfers)
        transfers = " + ".join(f"{count} {kind}" for kind, count in kinds.items())
        session = model.session(cluster, step_timeout_s=STEP_TIMEOUT_S)
        return cls(name, {**OPTIONS[name], "transfers": transfers}, session)

    @classmethod
    def alone(cls, context: Context, workers: int, cluster: Cluster) -> OurContender:
        """A workload without communication, as it is traced.

        Args:
            context: what was captured.
            workers: number of workers.
            cluster: the hosts.
        """
        computation = computation_alone(context, workers)
        return cls(COMPUTE_IN_GRAPH, {}, Session(computation, cluster, step_timeout_s=STEP_TIMEOUT_S))

    def run(self, steps: int) -> Burst:
        """See `Contender.run`."""
        times: list[float] = []
        before = time.perf_counter()

        def on_step(_: Any) -> None:
            nonlocal before
            now = time.perf_counter()
            times.append(now - before)
            before = now

        results = self._session.run(steps=steps, progress=False, on_step=on_step)
        return Burst(tuple(times), tuple(r.loss for r in results))

    def traced_step(self) -> Step:
        """What runs and travels in a step."""
        return traced_steps(self._session, 1)[0]

    def pids(self) -> Sequence[int]:
        """See `Contender.pids`."""
        return self._session.executor.pids()

    def close(self) -> None:
        """See `Contender.close`."""
        self._session.close()
