"""Tracing: measured times of a step's ops, and of the step, on a host where nothing is communicated."""

from __future__ import annotations

import datetime
import platform
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import is_dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.analyzers.dependencies import find_dependencies
from caramel.analyzers.order import order_by_cost
from caramel.analyzers.serialization import control_edges
from caramel.checks import whole_number
from caramel.collectives.schedule import balanced
from caramel.computation import Computation, make_computation
from caramel.errors import EndOfData, InputError, TraceError, listed
from caramel.facts import Trace
from caramel.frontend.context import Context
from caramel.graph.devices import Device
from caramel.graph.dynamic import dynamic_nodes
from caramel.graph.functions import Library
from caramel.graph.graph import Graph, node_of
from caramel.makespan import makespan
from caramel.modifiers.distributed import replica_name
from caramel.runtime.cluster import Cluster, InProcess, KeptProcesses, LocalProcesses
from caramel.runtime.environment import usable_cores
from caramel.runtime.feeds import bind
from caramel.runtime.progress import progress_over
from caramel.runtime.servers import Servers, kept_servers
from caramel.runtime.session import DEFAULT_STEP_TIMEOUT_S, Session
from caramel.stepstats import Row, TracedStep, by_node, traced_step
from caramel.units import format_time

DEFAULT_RUNS = 10
"""Caramel, section 4.1."""

DEFAULT_STEPS = 30
_WARM_UP = 3
"""Steps before any counts: the first ones prune and place the graph, allocate, and fill caches."""

_VARIES = 0.3
"""A coefficient of variation that is worth a warning."""

_DISTURBED = 1.15
"""Times as long as other ones, the same steps say that something else ran on the host."""

_SHARE = 0.01
"""Of the step: ops that take less are no matter for a warning."""


def trace(
    context: Context,
    *batch: Any,
    workers: int = 1,
    job_workers: int | None = None,
    cluster: Cluster | None = None,
    runs: int = DEFAULT_RUNS,
    steps: int = DEFAULT_STEPS,
    orders: bool = True,
    statistic: str = "mean",
    device_list: Sequence[str] | None = None,
    sharding: str | None = None,
    step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S,
    description: str = "",
    progress: bool = True,
) -> Trace:
    """Measure the ops of a captured step on one host, without communication.

    As many workers as share the host compute at the same time, each with its own gradients, on copies of the
    variables. Traced steps (graph optimizers off, so that ops have the names of the Model; one op at a time on each
    worker, but for servers that run already, which keep their threads) and plain steps (as in training) take turns,
    so that a host that grows slower meanwhile changes both.

    Args:
        context: what `caramel.capture` returned.
        batch: arrays of a step of the whole job, as for `Session.step`; nothing where a dataset was given at
            capture.
        workers: how many workers there are on the host.
        job_workers: how many there are on all hosts; a worker gets as much of the batch as in that job.
            Default: there is only this host.
        cluster: where to run them; default `caramel.InProcess()`.
        runs: number of traced steps.
        steps: number of plain steps.
        orders: whether to measure also what it costs to enforce an order of the gradients (`ControlEdges`): as
            many plain steps again without one, with a total one, and with one of updates alone.
        statistic: ``"mean"`` takes for an op the mean of the runs, ``"least"`` the least of them, as the paper
            does. Where ops share cores, an op's time depends on what runs beside it, and the least is that of
            the run in which it was alone; where one op runs at a time, the least leaves out disturbances.
        device_list: see `caramel.ARModel`.
        sharding: likewise.
        step_timeout_s: how long a step may take.
        description: where this is, for the reader of the file; default: the host.
        progress: whether to show a progress bar (on a terminal only).

    Returns:
        The trace.

    Raises:
        InputError: an argument does not fit.
        CaptureError: the program cannot be captured or replicated.
        ClusterError: a worker cannot be started or reached.
        TraceError: TensorFlow said nothing of the step's ops.

    Source:
        Caramel, section 4.1.
    """
    runs, steps = whole_number(runs, "runs"), whole_number(steps, "steps")
    if statistic not in _STATISTICS:
        raise InputError(f"statistic must be 'mean' or 'least', got {statistic!r}")
    computation = make_computation(context, workers, device_list, sharding, job_workers)
    _check_batch(computation, batch)
    place = InProcess() if cluster is None else cluster
    if not (is_dataclass(place) and hasattr(place, "options")):  # of which there can be one with other options
        raise InputError(f"a trace is measured on a cluster such as caramel.InProcess(), got {place!r}")
    share = _share(computation, batch)
    with _as_in_training(place, workers, step_timeout_s) as opened:
        plain = opened(computation)
        traced, plain_s = _measured(computation, share, place, plain, runs, steps, step_timeout_s, progress)
        found = _summary(computation, place, traced, plain_s, statistic, description)
        if not orders:
            return found
        return with_orders(found, plain_s, _ordered(computation, found, share, plain, opened, steps, progress))


def _check_batch(computation: Computation, batch: Sequence[Any]) -> None:
    needed = [f for f in computation.signature.feeds if not f.optional]
    if needed and not batch:
        inputs = ", ".join(f"{f.name} ({f.dtype}{'' if f.shape is None else list(f.shape)})" for f in needed)
        raise InputError(
            f"tracing runs steps, which need a batch: pass the arrays of one step after the context, for the inputs "
            f"{inputs}; or capture the program with data="
        )


def _share(computation: Computation, batch: Sequence[Any]) -> Sequence[Any]:
    """What these workers take of the batch of the whole job."""
    workers, job = computation.plan.workers, computation.job_workers
    if job == workers or not batch:
        return batch
    feeds, model = computation.signature.feeds, computation.model
    order = () if computation.pipeline is not None else model.input_order
    arrays = bind(feeds, batch, {}, model.unused_inputs, order)
    for feed in feeds:
        if feed.split and feed.name in arrays:
            parts = balanced(len(arrays[feed.name]), job)[:workers]
            arrays[feed.name] = arrays[feed.name][: sum(size for _, size in parts)]
    return (arrays,)


# -- running -----------------------------------------------------------------------------------


@contextmanager
def _as_in_training(cluster: Any, workers: int, timeout_s: float) -> Iterator[Callable[[Computation], Session]]:
    """What opens sessions that run as in training, all on the same servers and until the end."""
    with ExitStack() as stack:
        stack.enter_context(kept_servers(cluster, workers))
        sessions = stack.enter_context(ExitStack())
        if isinstance(cluster, LocalProcesses):
            cluster = KeptProcesses(cluster)
            stack.callback(cluster.close)  # before the sessions, which servers take long to forget one by one
        yield lambda made: sessions.enter_context(Session(made, cluster, step_timeout_s=timeout_s))


def _measured(
    computation: Computation,
    batch: Sequence[Any],
    cluster: Any,
    plain: Session,
    runs: int,
    steps: int,
    timeout_s: float,
    progress: bool,
) -> tuple[list[TracedStep], list[float]]:
    """The traced steps, and seconds of the plain ones."""
    # One op at a time on each worker: of two that share a core, each would seem to take twice as long.
    lanes = _per_process(computation, cluster)
    options = replace(cluster.options, optimize_graph=False, inter_op_threads=lanes, transfer_threads=0)
    names_kept = replace(cluster, options=options)
    if isinstance(cluster, LocalProcesses):
        names_kept = replace(names_kept, base_port=None)  # the plain session has these ports
    traced: list[TracedStep] = []
    plain_s: list[float] = []
    with (
        Session(computation, names_kept, step_timeout_s=timeout_s) as named,
        progress_over(runs + steps, progress) as show,
    ):
        for _ in range(_WARM_UP):
            _again_at_end(lambda: timed_step(plain, *batch))
            _again_at_end(lambda: traced_step(named, *batch))
        for done in range(runs):
            for _ in range(steps * done // runs, steps * (done + 1) // runs):
                plain_s.append(_again_at_end(lambda: timed_step(plain, *batch)))
            traced.append(_again_at_end(lambda: traced_step(named, *batch)))
            show(len(plain_s) + len(traced), f"step {plain_s[-1] * 1e3:.4g} ms" if plain_s else "")
    return traced, plain_s


def _ordered(
    computation: Computation,
    found: Trace,
    batch: Sequence[Any],
    plain: Session,
    opened: Callable[[Computation], Session],
    steps: int,
    progress: bool,
) -> Mapping[str, Sequence[float]]:
    """Seconds of steps by how their gradients are ordered; the kinds take turns. The plain one has no order."""
    needs = find_dependencies(computation.model)
    order = order_by_cost(computation.model, needs, found.op_s, "")
    kinds = {kind: control_edges(computation.model, needs, order, kind).edges for kind in ("total", "updates")}
    if not any(kinds.values()):
        return {}
    sessions = {"none": plain}
    for kind, edges in kinds.items():
        sessions[kind] = opened(replace(computation, plan=replace(computation.plan, edges=edges)))
    seconds: dict[str, list[float]] = {kind: [] for kind in sessions}
    with progress_over(steps + _WARM_UP, progress) as show:
        for done in range(steps + _WARM_UP):
            for kind, session in sessions.items():
                step_s = _again_at_end(partial(timed_step, session, *batch))
                seconds[kind] += [step_s] if done >= _WARM_UP else []
            show(done + 1, "orders")
    return seconds


def timed_step(session: Session, *args: Any, **kwargs: Any) -> float:
    """Run one step of a session; seconds of the step itself, without taking a batch from a dataset."""
    found: list[float] = []

    def run(*call: Any) -> Any:
        start = time.perf_counter()
        values = session.executor.run(*call)
        found.append(time.perf_counter() - start)
        return values

    session.step_by(run, *args, **kwargs)
    return found[0]


def _again_at_end(step: Callable[[], Any]) -> Any:
    """Run a step; where the dataset has ended, the first one of the next pass."""
    try:
        return step()
    except EndOfData:
        return step()


# -- what was measured -------------------------------------------------------------------------


def _summary(
    computation: Computation,
    cluster: Any,
    traced: Sequence[TracedStep],
    plain_s: Sequence[float],
    statistic: str,
    description: str,
) -> Trace:
    model, workers = computation.model, computation.plan.workers
    times = node_times(model.graph, traced, workers)
    if not times:
        raise TraceError("TensorFlow's step statistics have none of the step's ops: nothing can be said of them")
    op_s = {name: _STATISTICS[statistic](found) for name, found in times.items()}
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


_STATISTICS: Mapping[str, Callable[[np.ndarray], float]] = {"mean": mean_s, "least": least_s}


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
    for node in graph.around_loops():
        found[node.name] = [p for p in dict.fromkeys(map(node_of, node.input)) if p in found]
    return found


def _per_process(computation: Computation, cluster: Any) -> int:
    """How many workers the fullest process has."""
    if isinstance(cluster, InProcess):
        return computation.plan.workers
    return max(Counter(Device.parse(text).worker for text in computation.plan.devices).values())


def _lanes(computation: Computation, cluster: Any) -> tuple[int, int]:
    """How many workers share a process, and how many ops it runs at once without one being slower than as traced."""
    together = _per_process(computation, cluster)
    processes = max(computation.plan.workers // together, 1)
    threads: int = cluster.options.inter_op_threads or usable_cores()
    return together, max(together, min(threads, usable_cores() // processes))


def _host(cluster: Any) -> str:
    today = datetime.date.today().isoformat()
    where = f"{platform.node()}, {usable_cores()} cores, {type(cluster).__name__}"
    return f"{where}, TensorFlow {tf.__version__}, {today}"


# -- what is doubtful --------------------------------------------------------------------------


def _warnings(
    graph: Graph, times: Mapping[str, np.ndarray], step_s: float, traced: Sequence[TracedStep], cluster: Any
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
    if isinstance(cluster, Servers):
        found.append(
            "ops ran as many at a time as these servers run, not one on each worker: those that shared a core seem to "
            "take longer"
        )
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
