"""What traced and plain steps say: times of ops, what these predict, and what is doubtful. Nothing is run here."""

from __future__ import annotations

import datetime
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import tensorflow as tf

from caramel.compiler.distributed_model import DistributedModel
from caramel.errors import TraceError, listed
from caramel.facts import Trace
from caramel.graph.dynamic import dynamic_nodes
from caramel.graph.functions import Library
from caramel.graph.graph import Graph, node_of
from caramel.measure.makespan import makespan
from caramel.measure.step_stats import Row, TracedStep, by_node
from caramel.modifiers.emission import replica_name
from caramel.runtime.clusters.base import Cluster
from caramel.runtime.host.environment import usable_cores
from caramel.util.units import format_time

_VARIES = 0.3
"""A coefficient of variation that is worth a warning."""

_DISTURBED = 1.15
"""Times as long as other ones, the same steps say that something else ran on the host."""

_SHARE = 0.01
"""Of the step: ops that take less are no matter for a warning."""


# -- what was measured -------------------------------------------------------------------------


def summary(
    computation: DistributedModel,
    cluster: Cluster,
    traced: Sequence[TracedStep],
    plain_s: Sequence[float],
    statistic: str,
    description: str,
) -> Trace:
    """What the steps say.

    Args:
        computation: that was traced.
        cluster: where.
        traced: the traced steps.
        plain_s: seconds of the plain ones.
        statistic: see `STATISTICS`.
        description: where this is; default: the host.

    Raises:
        TraceError: TensorFlow said nothing of the step's ops.
    """
    model, workers = computation.model, computation.plan.workers
    times = node_times(model.graph, traced, workers)
    if not times:
        raise TraceError("TensorFlow's step statistics have none of the step's ops: nothing can be said of them")
    op_s = {name: STATISTICS[statistic](found) for name, found in times.items()}
    step_s = statistics.median(plain_s)
    shares = traced[-1].result.worker_examples if traced[-1].result is not None else ()
    return Trace(
        model_digest=model.digest,
        op_s=op_s,
        op_bytes=_op_bytes(model.graph, traced),
        step_s=step_s,
        predicted_s=predicted_step_s(model.graph, op_s, *_lanes(computation, cluster)),
        runs=len(traced),
        workers=workers,
        examples=max(shares) if any(shares) else None,
        description=f"{description or _host(cluster)}; {statistic} of {len(traced)} runs",
        warnings=_warnings(model.graph, times, step_s, traced, cluster),
    )


def node_times(graph: Graph, traced: Sequence[TracedStep], workers: int) -> Mapping[str, np.ndarray]:
    """Seconds of each node: an array (runs, workers), nan where it did not run; rounds of a loop are added up.

    Args:
        graph: of the Model.
        traced: the runs.
        workers: number of workers.
    """
    found: dict[str, np.ndarray] = {}
    for run, step in enumerate(traced):
        for (rank, name), rows in _by_node(graph, step).items():
            if name not in found:
                found[name] = np.full((len(traced), workers), np.nan)
            found[name][run, rank] = sum(row.time_s for row in rows)
    return {node.name: found[node.name] for node in graph if node.name in found}


def _by_node(graph: Graph, step: TracedStep) -> Mapping[tuple[int, str], Sequence[Row]]:
    library = Library(graph)
    return by_node(step.rows, {node.name: bool(library.called(node)) for node in graph})


def mean_s(times: np.ndarray) -> float:
    """The mean over runs and workers, as then sums are right on average, whatever ops run beside each other.

    A run in which the op did not run counts as 0.
    """
    return float(np.nan_to_num(times).mean())


def least_s(times: np.ndarray) -> float:
    """The least, over runs, of the mean over the workers that ran it."""
    ran = times[~np.isnan(times).all(axis=1)]
    return float(np.nanmean(ran, axis=1).min())


STATISTICS: Mapping[str, Callable[[np.ndarray], float]] = {"mean": mean_s, "least": least_s}
"""Of an op's times, by name."""


def _op_bytes(graph: Graph, traced: Sequence[TracedStep]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for step in traced:
        for (_, name), rows in _by_node(graph, step).items():
            sizes = [row.output_bytes for row in rows if row.output_bytes is not None and row.node.endswith(f"/{name}")]
            if sizes:
                found[name] = max(found.get(name, 0), *sizes)
    return {node.name: found[node.name] for node in graph if node.name in found}


# -- what the ops predict ----------------------------------------------------------------------


def predicted_step_s(graph: Graph, op_s: Mapping[str, float], workers: int, threads: int) -> float:
    """Seconds of a step of some workers in one process, by list scheduling of their ops.

    Args:
        graph: of the Model.
        op_s: seconds of each node.
        workers: how many workers share the process and its threads.
        threads: how many ops run at once.
    """
    inputs = _forward_inputs(graph)
    together = {
        replica_name(rank, name): [replica_name(rank, p) for p in producers]
        for name, producers in inputs.items()
        for rank in range(workers)
    }
    seconds = {replica_name(rank, name): each for name, each in op_s.items() for rank in range(workers)}
    return makespan(together, seconds, threads)


def _forward_inputs(graph: Graph) -> Mapping[str, Sequence[str]]:
    """For each node what it waits for, producers first; not what comes from the round of a loop before."""
    found: dict[str, Sequence[str]] = {}
    for node in graph.loop_order():
        found[node.name] = [p for p in dict.fromkeys(map(node_of, node.input)) if p in found]
    return found


def _lanes(computation: DistributedModel, cluster: Cluster) -> tuple[int, int]:
    """How many workers share a process, and how many ops it runs at once without one being slower than as traced."""
    together = cluster.most_in_a_process(computation.plan.devices)
    processes = max(computation.plan.workers // together, 1)
    threads: int = cluster.options.inter_op_threads or usable_cores()
    return together, max(together, min(threads, usable_cores() // processes))


def _host(cluster: Cluster) -> str:
    today = datetime.date.today().isoformat()
    where = f"{platform.node()}, {usable_cores()} cores, {type(cluster).__name__}"
    return f"{where}, TensorFlow {tf.__version__}, {today}"


# -- what is doubtful --------------------------------------------------------------------------


def _warnings(
    graph: Graph, times: Mapping[str, np.ndarray], step_s: float, traced: Sequence[TracedStep], cluster: Cluster
) -> tuple[str, ...]:
    found = []
    dynamic = dynamic_nodes(graph)
    if dynamic:
        found.append(
            f"{len(dynamic)} ops are in loops or branches ({listed(dynamic, 3)}), and run as often as values say: "
            "where those change from step to step, predictions are not reliable (Caramel, section 7)"
        )
    varying = [name for name in dynamic if name in times and varies(times[name], step_s)]
    if varying:
        found.append(f"in loops or branches, the times of {listed(varying, 8)} vary much between runs")
    if any("/device:GPU:" in row.device for row in traced[-1].rows):
        found.append("times of ops on GPUs are those of launching them, not of the GPU")
    if cluster.tracing_warning:
        found.append(cluster.tracing_warning)
    return tuple(found)


def with_orders(found: Trace, plain_s: Sequence[float], ordered_s: Mapping[str, Sequence[float]]) -> Trace:
    """A trace with the steps that have an order, among which the plain one was measured once more.

    Args:
        found: the trace without them.
        plain_s: seconds of its plain steps.
        ordered_s: seconds of steps by kind of order; those of ``"none"`` are plain ones.

    Returns:
        The trace; with a warning if the middle halves of the plain steps lie apart from each other.
    """
    medians = {kind: statistics.median(times) for kind, times in ordered_s.items()}
    again_s = ordered_s.get("none", plain_s)
    less, more = sorted((plain_s, again_s), key=statistics.median)
    step_s, slower_s = statistics.median(less), statistics.median(more)
    warnings = found.warnings
    if slower_s > _DISTURBED * step_s and np.percentile(more, 25) > np.percentile(less, 75):
        warnings += (
            f"the same steps took {format_time(statistics.median(plain_s))} between traced ones and "
            f"{format_time(statistics.median(again_s))} later, so something else ran on the host: plans count with the "
            "less; trace again when it is idle",
        )
    return replace(found, step_s=step_s, ordered_step_s=medians, warnings=warnings)


def varies(times: np.ndarray, step_s: float) -> bool:
    """Whether an op's time matters and its standard deviation between runs is much of it; not to run counts as 0."""
    runs = np.nan_to_num(times).mean(axis=1)
    mean = float(runs.mean())
    return mean > _SHARE * step_s and float(runs.std()) > _VARIES * mean
