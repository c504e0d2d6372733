"""Tracing: measured times of a step's ops, and of the step, on a host where nothing is communicated."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from caramel.analyzers.policies.control_edges import control_edges
from caramel.analyzers.policies.order import order_by_cost
from caramel.analyzers.step.dependencies import find_dependencies
from caramel.compiler.distributed_model import DistributedModel, computation_alone, with_edges
from caramel.errors import CaramelError, EndOfData, InputError
from caramel.facts import Trace
from caramel.frontend.context import Context
from caramel.measure.pace import pace_of
from caramel.measure.step_stats import TracedStep, median_step, traced_step
from caramel.measure.trace_summary import STATISTICS, summarized, with_orders
from caramel.runtime.clusters.base import Cluster
from caramel.runtime.clusters.in_process import InProcess
from caramel.runtime.feeds import bound_arrays
from caramel.runtime.session import Session
from caramel.runtime.step_rate import FIRST_RUNS
from caramel.util.arguments import DEFAULT_STEP_TIMEOUT_S, whole_number
from caramel.util.progress import progress_over
from caramel.util.units import format_ms

DEFAULT_RUNS = 10
"""Number of traced steps (Caramel, section 4.1)."""

DEFAULT_STEPS = 30
"""Number of plain steps."""

_MOST_RUNS_OF_ORDERS = 5
"""Largest number of traced steps of each kind of order."""


@dataclass(frozen=True)
class TraceOptions:
    """The options of `trace`, whose documentation describes each.

    Raises:
        InputError: an option does not fit.
    """

    cluster: Cluster = field(default_factory=InProcess)
    runs: int = DEFAULT_RUNS
    steps: int = DEFAULT_STEPS
    orders: bool = True
    statistic: str = "mean"
    device_list: Sequence[str] | None = None
    sharding: str | None = None
    step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S
    description: str = ""
    progress: bool = True
    on_traced: Callable[[DistributedModel, TracedStep], None] | None = None

    def __post_init__(self) -> None:
        for name in ("runs", "steps"):
            object.__setattr__(self, name, whole_number(getattr(self, name), name))
        if self.statistic not in STATISTICS:
            raise InputError(f"statistic must be 'mean' or 'least', got {self.statistic!r}")
        if not isinstance(self.cluster, Cluster):
            raise InputError(f"a trace is measured on a cluster such as caramel.InProcess(), got {self.cluster!r}")


def trace(
    context: Context,
    *batch: Any,
    workers: int | None = None,
    workers_on_host: int | None = None,
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
    on_traced: Callable[[DistributedModel, TracedStep], None] | None = None,
    job_workers: int | None = None,
) -> Trace:
    """Measure the ops of a captured step on one host, without communication.

    As many workers as share the host compute at the same time, each with its own gradients, on copies of the
    variables. Traced steps (graph optimizers off, so that ops have the names of the Model; one op at a time on each
    worker, but for servers that run already, which keep their threads) and plain steps (as in training) take turns,
    so that a host that grows slower meanwhile changes both. Plain steps run once more in turn with those in which an
    order of the gradients is enforced; the less of both medians counts, as all else on a host makes steps longer.

    Args:
        context: captured program, as `caramel.capture` returned it.
        batch: arrays of a step of the whole job, as for `Session.step`; nothing where a dataset was given at
            capture.
        workers: number of workers of the whole job; a worker gets as much of the batch as in it. Default:
            ``workers_on_host``, or 1.
        workers_on_host: number of workers on the host. Default: all of them.
        cluster: the cluster to run them on; default `caramel.InProcess()`.
        runs: number of traced steps.
        steps: number of plain steps.
        orders: whether to measure also what it costs to enforce an order of the gradients (`ControlEdges`): as
            many plain steps again without one, with a total one, and with one of updates alone.
        statistic: ``"mean"`` takes for an op the mean of the runs, ``"least"`` the least of them, as the paper
            does. Where ops share cores, an op's time depends on what runs beside it, and the least is that of
            the run in which it was alone; where one op runs at a time, the least leaves out disturbances.
        device_list: see `caramel.ARModel`.
        sharding: see `caramel.ARModel`.
        step_timeout_s: seconds that a step may take.
        description: description of the place, for the reader of the file; default: the host.
        progress: whether to show a progress bar, or a line every ten seconds where there is no terminal.
        on_traced: function that is called with the computation and with that one of its traced steps that has the
            median length, to draw it.
        job_workers: old name of ``workers``; with it ``workers`` is what ``workers_on_host`` is.

    Returns:
        The trace.

    Raises:
        InputError: an argument does not fit.
        CaptureError: the program cannot be captured or replicated.
        ClusterError: a worker cannot be started or reached.
        TraceError: TensorFlow said nothing of the step's ops.

    Source:
        Caramel, section 4.1.

    Examples:
        >>> import tensorflow as tf
        >>> import caramel
        >>> w = tf.Variable([0.0, 0.0], name="w")
        >>> def step(x, y):
        ...     with tf.GradientTape() as tape:
        ...         loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
        ...     w.assign_sub(0.1 * tape.gradient(loss, w))
        ...     return loss
        >>> context = caramel.capture(step, [tf.TensorSpec([None, 2]), tf.TensorSpec([None])])

        >>> batch = [[1.0, 0.0], [0.0, 1.0]], [1.0, 2.0]
        >>> trace = caramel.trace(context, *batch, runs=1, steps=1, orders=False)

        >>> trace.examples, trace.model_digest == context.model.digest
        (2, True)
        >>> all(time_s >= 0 for time_s in trace.op_s.values())
        True
    """
    if job_workers is not None:
        workers, workers_on_host = _by_old_names(workers, workers_on_host, job_workers)
    options = TraceOptions(
        cluster=InProcess() if cluster is None else cluster,
        runs=runs,
        steps=steps,
        orders=orders,
        statistic=statistic,
        device_list=device_list,
        sharding=sharding,
        step_timeout_s=step_timeout_s,
        description=description,
        progress=progress,
        on_traced=on_traced,
    )
    job = workers_on_host if workers is None else whole_number(workers, "workers")
    on_host = job if workers_on_host is None else workers_on_host
    computation = computation_alone(context, 1 if on_host is None else on_host, device_list, sharding, job)
    _check_batch(computation, batch)
    return _traced(computation, _batch_of_workers(computation, batch), options)


def with_examples(context: Context, batch: Sequence[Any], workers: int, examples: int) -> Sequence[Any]:
    """A batch in which each worker has so many examples: those of a given batch, over again as often as need be.

    Args:
        context: captured program.
        batch: arrays of a step, as for `trace`.
        workers: number of workers.
        examples: number of examples of each.

    Returns:
        What `trace` takes as the batch.

    Raises:
        InputError: the program's own dataset says how many examples there are, or no input has any.
    """
    computation = computation_alone(context, 1)
    feeds, model = computation.signature.feeds, computation.model
    if computation.pipeline is not None:
        raise InputError(
            "the program's dataset says how many examples a batch has: trace the program with other batches instead, "
            "into a file for each"
        )
    _check_batch(computation, batch)
    arrays = bound_arrays(feeds, batch, {}, model.unused_inputs, model.input_order)
    split = [feed.name for feed in feeds if feed.split and feed.name in arrays]
    if not split:
        raise InputError("no input of the program has examples, so their number changes nothing")
    for name in split:
        if len(arrays[name]) == 0:
            raise InputError(f"input {name!r} has no example in the first batch")
        arrays[name] = np.take(arrays[name], np.arange(workers * examples) % len(arrays[name]), axis=0)
    return (arrays,)


def _by_old_names(workers: int | None, workers_on_host: int | None, job_workers: int) -> tuple[int, int]:
    """The numbers of workers of the whole job and of the host, where they are given by the names of before."""
    if workers_on_host is not None:
        raise InputError("give workers= and workers_on_host=; job_workers= is the old name of workers=")
    warnings.warn(
        "job_workers= is the old name of workers=, the number of workers of the whole job; those of this host are "
        "workers_on_host=",
        DeprecationWarning,
        stacklevel=3,
    )
    return job_workers, 1 if workers is None else workers


def _traced(computation: DistributedModel, share: Sequence[Any], options: TraceOptions) -> Trace:
    """Run the steps, and make the trace of them."""
    cluster = options.cluster
    # One op at a time on each worker: of two that share a core, each would seem to take twice as long.
    workers_in_process = cluster.most_in_a_process(computation.plan.devices)
    one_at_a_time = replace(
        cluster.options, optimize_graph=False, inter_op_threads=workers_in_process, transfer_threads=0
    )
    names_kept = cluster.with_options(one_at_a_time)
    with _as_in_training(cluster, computation.plan.workers, options.step_timeout_s) as open_session:
        plain = open_session(computation)
        traced, plain_s = _measured(computation, share, names_kept, plain, options)
        if options.on_traced is not None:
            options.on_traced(computation, median_step(traced))
        unordered_trace = summarized(computation, cluster, traced, plain_s, options.statistic, options.description)
        if not options.orders:
            return unordered_trace
        needs = find_dependencies(computation.model)
        order = order_by_cost(computation.model, needs, unordered_trace.op_s, "")
        kinds = {kind: control_edges(computation.model, needs, order, kind).edges for kind in ("total", "updates")}
        # Where a step has one order anyway, there is nothing to enforce.
        ordered = {kind: with_edges(computation, edges) for kind, edges in kinds.items()} if any(kinds.values()) else {}
        found = with_orders(unordered_trace, plain_s, _ordered(ordered, share, plain, open_session, options))
    # With the threads of training, but as they are named in the Model.
    named = cluster.with_options(replace(cluster.options, optimize_graph=False))
    with _as_in_training(named, computation.plan.workers, options.step_timeout_s) as open_session:
        steps = _traced_in_turn({"none": computation, **ordered}, share, open_session, options)
        graph, op_s = computation.model.graph, unordered_trace.op_s
        paces = {kind: pace_of(graph, needs, order, op_s, of) for kind, of in steps.items()}
        return replace(found, pace={kind: pace for kind, pace in paces.items() if pace})


def _check_batch(computation: DistributedModel, batch: Sequence[Any]) -> None:
    needed = [f for f in computation.signature.feeds if not f.optional]
    if needed and not batch:
        inputs = ", ".join(f"{f.name} ({f.dtype}{'' if f.shape is None else list(f.shape)})" for f in needed)
        raise InputError(
            f"tracing runs steps, which need a batch: pass the arrays of one step after the context, for the inputs "
            f"{inputs}; or capture the program with data="
        )


def _batch_of_workers(computation: DistributedModel, batch: Sequence[Any]) -> Sequence[Any]:
    """The part of the whole job's batch that these workers take."""
    workers, job = computation.plan.workers, computation.workers
    if job == workers or not batch:
        return batch
    feeds, model = computation.signature.feeds, computation.model
    order = () if computation.pipeline is not None else model.input_order
    arrays = bound_arrays(feeds, batch, {}, model.unused_inputs, order)
    for feed in feeds:
        if feed.split and feed.name in arrays:
            array = arrays[feed.name]
            slices = computation.signature.dealing.of_first(len(array), workers, job)
            arrays[feed.name] = np.concatenate([array[rows] for rows in slices])
    return (arrays,)


# -- running -----------------------------------------------------------------------------------


@contextmanager
def _as_in_training(
    cluster: Cluster, workers: int, timeout_s: float
) -> Iterator[Callable[[DistributedModel], Session]]:
    """Function that opens sessions that run as in training, all on the same servers and until the end."""
    with ExitStack() as stack:
        stack.enter_context(cluster.held(workers))
        sessions = stack.enter_context(_closed_at_once())
        shared = stack.enter_context(cluster.shared())  # ends before the sessions: servers take long to forget each

        def opened(computation: DistributedModel) -> Session:
            sessions.append(Session(computation, shared, step_timeout_s=timeout_s))
            return sessions[-1]

        yield opened


@contextmanager
def _closed_at_once() -> Iterator[list[Session]]:
    """A list of sessions that are closed at the end, all at once: each may wait two seconds for its pipelines."""
    sessions: list[Session] = []

    def close() -> None:
        with ThreadPoolExecutor(max(len(sessions), 1)) as pool:
            list(pool.map(Session.close, sessions))

    try:
        yield sessions
    except BaseException:
        with suppress(CaramelError):  # what went wrong before is what the user has to know
            close()
        raise
    close()


def _measured(
    computation: DistributedModel, batch: Sequence[Any], names_kept: Cluster, plain: Session, options: TraceOptions
) -> tuple[list[TracedStep], list[float]]:
    """The traced steps, and seconds of the plain ones."""
    runs, steps = options.runs, options.steps
    traced: list[TracedStep] = []
    plain_s: list[float] = []
    with (
        Session(computation, names_kept, step_timeout_s=options.step_timeout_s) as named,
        progress_over(runs + steps, options.progress) as show,
    ):
        for _ in range(FIRST_RUNS):
            _retried_at_end(lambda: timed_step(plain, *batch))
            _retried_at_end(lambda: traced_step(named, *batch))
        for done in range(runs):
            for _ in range(steps * done // runs, steps * (done + 1) // runs):
                plain_s.append(_retried_at_end(lambda: timed_step(plain, *batch)))
            traced.append(_retried_at_end(lambda: traced_step(named, *batch)))
            show(len(plain_s) + len(traced), f"step {format_ms(plain_s[-1])}" if plain_s else "")
    return traced, plain_s


def _ordered(
    ordered: Mapping[str, DistributedModel],
    batch: Sequence[Any],
    plain: Session,
    open_session: Callable[[DistributedModel], Session],
    options: TraceOptions,
) -> Mapping[str, Sequence[float]]:
    """Seconds of steps by how their gradients are ordered; the kinds take turns. The plain one has no order."""
    if not ordered:
        return {}
    sessions = {"none": plain, **{kind: open_session(computation) for kind, computation in ordered.items()}}
    seconds: dict[str, list[float]] = {kind: [] for kind in sessions}
    rounds = options.steps + FIRST_RUNS
    with progress_over(rounds, options.progress) as show:
        for done in range(rounds):
            for kind, session in sessions.items():
                step_s = _retried_at_end(partial(timed_step, session, *batch))
                seconds[kind] += [step_s] if done >= FIRST_RUNS else []
            show(done + 1, "orders")
    return seconds


def _traced_in_turn(
    computations: Mapping[str, DistributedModel],
    batch: Sequence[Any],
    open_session: Callable[[DistributedModel], Session],
    options: TraceOptions,
) -> Mapping[str, list[TracedStep]]:
    """Traced steps by how their gradients are ordered; the kinds take turns."""
    sessions = {kind: open_session(computation) for kind, computation in computations.items()}
    traced: dict[str, list[TracedStep]] = {kind: [] for kind in sessions}
    warm_up = 1  # prunes and places the graph
    rounds = min(options.runs, _MOST_RUNS_OF_ORDERS)
    with progress_over(rounds + warm_up, options.progress) as show:
        for done in range(rounds + warm_up):
            for kind, session in sessions.items():
                step = _retried_at_end(partial(traced_step, session, *batch))
                traced[kind] += [step] if done >= warm_up else []
            show(done + 1, "pace")
    return traced


def timed_step(session: Session, *args: Any, **kwargs: Any) -> float:
    """Run one step of a session; the seconds of the step itself, without taking a batch from a dataset."""
    seconds: list[float] = []

    def run(*call: Any) -> Any:
        start = time.perf_counter()
        values = session.executor.run(*call)
        seconds.append(time.perf_counter() - start)
        return values

    session.step_by(run, *args, **kwargs)
    return seconds[0]


def _retried_at_end(step: Callable[[], Any]) -> Any:
    """Run a step; where the dataset has ended, the first one of the next pass."""
    try:
        return step()
    except EndOfData:
        return step()
