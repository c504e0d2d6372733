"""A trace from traced and plain steps: times of ops, the step that they predict, and warnings. Nothing is run here."""

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
from caramel.measure.step_stats import Row, TracedStep, rows_by_node
from caramel.modifiers.emission import replica_name
from caramel.runtime.clusters.base import Cluster
from caramel.runtime.host.environment import usable_cores
from caramel.util.tables import counted
from caramel.util.units import format_time

_VARIATION_LIMIT = 0.3
"""Coefficient of variation of an op's time from which on there is a warning."""

_DISTURBANCE_RATIO = 1.15
"""Ratio between medians of the same steps from which on something else must have run on the host."""

_NEGLIGIBLE_SHARE = 0.01
"""Fraction of a step; ops that take less of it get no warning."""


# -- what was measured -------------------------------------------------------------------------


def summarized(
    computation: DistributedModel,
    cluster: Cluster,
    traced: Sequence[TracedStep],
    plain_s: Sequence[float],
    statistic: str,
    description: str,
) -> Trace:
    """The trace that follows from the steps.

    Args:
        computation: computation that was traced.
        cluster: cluster on which it ran.
        traced: the traced steps.
        plain_s: seconds of the plain steps.
        statistic: name of one of `STATISTICS`.
        description: description of the place; default: the host.

    Raises:
        TraceError: TensorFlow said nothing of the step's ops.
    """
    model, workers = computation.model, computation.plan.workers
    times = node_times(model.graph, traced, workers)
    if not times:
        raise TraceError("TensorFlow's step statistics have none of the step's ops: nothing can be said of them")
    op_s = {name: STATISTICS[statistic](node_s) for name, node_s in times.items()}
    step_s = statistics.median(plain_s)
    shares = traced[-1].result.worker_examples if traced[-1].result is not None else ()
    return Trace(
        model_digest=model.digest,
        op_s=op_s,
        op_bytes=_op_bytes(model.graph, traced),
        step_s=step_s,
        predicted_s=predicted_step_s(model.graph, op_s, *_workers_and_threads(computation, cluster)),
        runs=len(traced),
        workers=workers,
        examples=max(shares) if any(shares) else None,
        description=f"{description or _host(cluster)}; {statistic} of {len(traced)} runs",
        warnings=_warnings(model.graph, times, step_s, traced, cluster),
        op_least_s={name: least_s(node_s) for name, node_s in times.items()},
        plain_steps_s=tuple(plain_s),
        outline=model.outline,
    )


def node_times(graph: Graph, traced: Sequence[TracedStep], workers: int) -> Mapping[str, np.ndarray]:
    """Seconds of each node: an array (runs, workers), nan where it did not run; rounds of a loop are added up.

    Args:
        graph: graph of the Model.
        traced: the traced steps.
        workers: number of workers.
    """
    seconds: dict[str, np.ndarray] = {}
    for run, step in enumerate(traced):
        for (rank, name), rows in rows_by_node_of(graph, step).items():
            if name not in seconds:
                seconds[name] = np.full((len(traced), workers), np.nan)
            seconds[name][run, rank] = sum(row.time_s for row in rows)
    return {node.name: seconds[node.name] for node in graph if node.name in seconds}


def rows_by_node_of(graph: Graph, step: TracedStep) -> Mapping[tuple[int, str], Sequence[Row]]:
    """Rows of a step by worker and node of the Model, see `rows_by_node`.

    Args:
        graph: graph of the Model.
        step: the traced step.
    """
    library = Library(graph)
    return rows_by_node(step.rows, {node.name: bool(library.called(node)) for node in graph})


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
"""Functions from the times of an op, an array (runs, workers), to its time in seconds, by name."""


def _op_bytes(graph: Graph, traced: Sequence[TracedStep]) -> Mapping[str, int]:
    op_bytes: dict[str, int] = {}
    for step in traced:
        for (_, name), rows in rows_by_node_of(graph, step).items():
            sizes = [row.output_bytes for row in rows if row.output_bytes is not None and row.node.endswith(f"/{name}")]
            if sizes:
                op_bytes[name] = max(op_bytes.get(name, 0), *sizes)
    return {node.name: op_bytes[node.name] for node in graph if node.name in op_bytes}


# -- what the ops predict ----------------------------------------------------------------------


def predicted_step_s(graph: Graph, op_s: Mapping[str, float], workers: int, threads: int) -> float:
    """Seconds of a step of some workers in one process, by list scheduling of their ops.

    Args:
        graph: graph of the Model.
        op_s: seconds of each node, by name.
        workers: number of workers that share the process and its threads.
        threads: number of ops that run at once.
    """
    inputs = _forward_inputs(graph)
    inputs_of_all = {
        replica_name(rank, name): [replica_name(rank, p) for p in producers]
        for name, producers in inputs.items()
        for rank in range(workers)
    }
    seconds = {replica_name(rank, name): time_s for name, time_s in op_s.items() for rank in range(workers)}
    return makespan(inputs_of_all, seconds, threads)


def _forward_inputs(graph: Graph) -> Mapping[str, Sequence[str]]:
    """Names of the nodes that a node waits for, by its name, producers first; not those of a loop's earlier round."""
    inputs: dict[str, Sequence[str]] = {}
    for node in graph.loop_order():
        inputs[node.name] = [p for p in dict.fromkeys(map(node_of, node.input)) if p in inputs]
    return inputs


def _workers_and_threads(computation: DistributedModel, cluster: Cluster) -> tuple[int, int]:
    """Number of workers in a process, and of ops that it runs at once without one being slower than as traced."""
    workers_in_process = cluster.most_in_a_process(computation.plan.devices)
    processes = max(computation.plan.workers // workers_in_process, 1)
    threads: int = cluster.options.inter_op_threads or usable_cores()
    return workers_in_process, max(workers_in_process, min(threads, usable_cores() // processes))


def _host(cluster: Cluster) -> str:
    today = datetime.date.today().isoformat()
    where = f"{platform.node()}, {usable_cores()} cores, {type(cluster).__name__}"
    return f"{where}, TensorFlow {tf.__version__}, {today}"


# -- what is doubtful --------------------------------------------------------------------------


def _warnings(
    graph: Graph, times: Mapping[str, np.ndarray], step_s: float, traced: Sequence[TracedStep], cluster: Cluster
) -> tuple[str, ...]:
    warnings = []
    dynamic = dynamic_nodes(graph)
    if dynamic:
        warnings.append(
            f"{counted(len(dynamic), 'op')} in loops or branches ({listed(dynamic, 3)}), run as often as values say: "
            "where those change from step to step, predictions are not reliable (Caramel, section 7)"
        )
    varying = [name for name in dynamic if name in times and varies(times[name], step_s)]
    if varying:
        warnings.append(f"in loops or branches, the times of {listed(varying, 8)} vary much between runs")
    if any("/device:GPU:" in row.device for row in traced[-1].rows):
        warnings.append("times of ops on GPUs are those of launching them, not of the GPU")
    if cluster.tracing_warning:
        warnings.append(cluster.tracing_warning)
    return tuple(warnings)


def with_orders(trace: Trace, plain_s: Sequence[float], ordered_s: Mapping[str, Sequence[float]]) -> Trace:
    """A trace with the times of ordered steps, among which the plain step was measured once more.

    Args:
        trace: trace without these times.
        plain_s: seconds of the plain steps of the trace.
        ordered_s: seconds of steps by kind of order; those of ``"none"`` are plain ones.

    Returns:
        The trace; with a warning if the middle halves of the plain steps lie apart from each other.
    """
    medians = {kind: statistics.median(times) for kind, times in ordered_s.items()}
    again_s = ordered_s.get("none", plain_s)
    faster_s, slower_times_s = sorted((plain_s, again_s), key=statistics.median)
    step_s, slower_s = statistics.median(faster_s), statistics.median(slower_times_s)
    warnings = trace.warnings
    if slower_s > _DISTURBANCE_RATIO * step_s and np.percentile(slower_times_s, 25) > np.percentile(faster_s, 75):
        warnings += (
            f"the same steps took {format_time(statistics.median(plain_s))} between traced ones and "
            f"{format_time(statistics.median(again_s))} later, so something else ran on the host for a while. Plans "
            "take the shorter time; a trace of an idle host is more exact",
        )
    return replace(trace, step_s=step_s, ordered_step_s=medians, warnings=warnings, plain_steps_s=tuple(faster_s))


def varies(times: np.ndarray, step_s: float) -> bool:
    """Whether an op's time matters and its standard deviation between runs is much of it; not to run counts as 0."""
    runs = np.nan_to_num(times).mean(axis=1)
    mean = float(runs.mean())
    return mean > _NEGLIGIBLE_SHARE * step_s and float(runs.std()) > _VARIATION_LIMIT * mean
