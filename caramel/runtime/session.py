"""The Session: steps, evaluation and checkpoints of a distributed model on a cluster."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

import numpy as np

from caramel.compiler.distributed_model import DistributedModel
from caramel.data.pipeline import Pipeline
from caramel.errors import CaramelError, CheckpointError, ClusterError, EndOfData, InputError, StepError
from caramel.graph.graph import Graph
from caramel.modifiers.evaluate import evaluation_graph
from caramel.modifiers.signatures import evaluation_signature
from caramel.runtime.checkpoint import readable
from caramel.runtime.clusters.base import Cluster, check_cluster, measured_elsewhere
from caramel.runtime.executor import Executor, KindOfRun
from caramel.runtime.feeds import Batch, bound_arrays
from caramel.runtime.host.rounding import refuse_rounding_rewrites
from caramel.runtime.packed_feeds import PackedFeeds
from caramel.runtime.step_rate import StepRate
from caramel.runtime.step_result import StepResult
from caramel.runtime.steps_per_execution import StepsInRun
from caramel.runtime.training_steps import DATA_IS_THERE, NO_DATA, StepRun, TrainingSteps
from caramel.runtime.variable_state import VariableState, checked_prefix
from caramel.runtime.worker_data import WorkerData
from caramel.util.arguments import DEFAULT_STEP_TIMEOUT_S, known_arguments_only, timeout_s, whole_number
from caramel.util.progress import progress_over
from caramel.util.temporary import is_in_process
from caramel.util.units import format_number

_logger = logging.getLogger(__name__)

CLOSE_WAIT_S = 10.0
"""Seconds that `Session.close` waits for what another thread runs; then it stops the cluster beneath it."""

_MOST_STEPS = 2**63 - 1

_PARTIAL_RESTORE = (
    "a checkpoint was restored only in part, so variables and the position in the data may not belong together; "
    "restore a checkpoint first"
)

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _one_at_a_time(method: _Method) -> _Method:
    """A method of a session for which threads wait for each other: a step changes the variables in many places."""

    @functools.wraps(method)
    def alone(session: Session, *args: Any, **kwargs: Any) -> Any:
        session._refuse_elsewhere()  # another thread may have held the lock when the process was forked
        with session._lock:
            is_open = not session._closed
            try:
                return method(session, *args, **kwargs)
            except ClusterError as error:
                if is_open and session._closed:
                    raise ClusterError("the session was closed while this ran: start a new one") from error
                raise

    return cast(_Method, alone)


class Session:
    """A distributed model on a running cluster. Use it in a ``with`` statement.

    Threads may share a session: what they call runs one after the other. A session belongs to the process that opened
    it; what `os.fork` makes of that process can neither use nor close it.

    Args:
        distributed: the distributed model to run; `caramel.ARModel.session` gives its own.
        cluster: the cluster on which it runs.
        step_timeout_s: seconds that a step may take before its workers count as lost.

    Raises:
        ClusterError: the cluster cannot be started.

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

        >>> batches = [([[1.0, 0.0], [0.0, 1.0]], [1.0, 2.0])] * 3
        >>> with caramel.ARModel(context, 2).session() as session:
        ...     results = session.run(batches)
        ...     session.write_back()
        >>> [round(result.loss, 3) for result in results]
        [2.5, 2.025, 1.64]
        >>> w.numpy()
        array([0.271, 0.542], dtype=float32)
    """

    @known_arguments_only
    def __init__(
        self, distributed: DistributedModel, cluster: Cluster, *, step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S
    ) -> None:
        check_cluster(cluster)
        step_timeout_s = timeout_s(step_timeout_s, "step_timeout_s")
        if distributed.plan.deterministic:
            refuse_rounding_rewrites()
        if warning := measured_elsewhere(distributed.plan.network, cluster):
            _logger.warning("%s", warning)
        self._model = distributed.model
        self._signature = distributed.signature
        self._timeout_s = step_timeout_s
        self._closed = False
        self._lock = threading.RLock()  # what runs or changes the session holds it
        self._owner_pid = os.getpid()
        self._input_names = {*(i.name for i in self._model.inputs), *self._model.unused_inputs}
        self._evaluations: dict[Any, Any] = {}
        began_s = time.perf_counter()
        if isinstance(cluster, Cluster):  # what only looks like one may lack the method
            cluster = cluster.for_transfers(distributed.plan.transfer_threads)
        self._packed: PackedFeeds | None = None
        self._distributed, self._executor = self._started(distributed, cluster)
        try:
            self._state = VariableState(self._distributed, self._run_op)
            self._steps = TrainingSteps(
                self._distributed,
                self._executor,
                self._packed,
                is_optimized=self._distributed is not distributed,
                is_elsewhere=getattr(cluster, "is_elsewhere", False),
                timeout_s=step_timeout_s,
            )
            self._steps.begin(self._state.initialise(), distributed.pipeline)
            self._executor.prepare(self._later_runs(), step_timeout_s)
        except BaseException:
            self._executor.close()
            raise
        devices = ", ".join(distributed.signature.devices)
        _logger.info("opened a session in %.1f s on %s", time.perf_counter() - began_s, devices)

    def _started(self, distributed: DistributedModel, cluster: Cluster) -> tuple[DistributedModel, Executor]:
        """What runs on the cluster, and its executor: optimised here if that is what TensorFlow would do there."""
        as_written = cluster.as_written() if isinstance(cluster, Cluster) and cluster.options.optimize_graph else None
        if as_written is not None and distributed.optimized is not None:
            executor = self._start(distributed.optimized, as_written)
            try:
                has_gpu = executor.has_gpu()
            except BaseException:
                executor.close()
                raise
            if not has_gpu:
                return distributed.optimized, executor
            executor.close()
        return distributed, self._start(distributed, cluster)

    def _start(self, distributed: DistributedModel, cluster: Cluster) -> Executor:
        graph_def = distributed.graph_def
        devices = (*distributed.signature.devices, *distributed.signature.servers)
        if getattr(cluster, "is_elsewhere", False):
            self._packed = PackedFeeds.of(graph_def, [distributed.signature])
        if self._packed is not None:
            graph_def = self._packed.graph_def(graph_def, distributed.signature.devices)
        if isinstance(cluster, Cluster):
            cluster.check_roles(distributed.signature.devices, distributed.signature.servers)
        return cluster.start(graph_def, devices, self._timeout_s)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except CaramelError:
            if error is None:  # else that one is what the user has to know
                raise

    def close(self) -> None:
        """Stop the cluster; what was not saved is gone. Safe to call twice.

        A step of another thread gets some seconds to end; one that takes longer ends with a ClusterError. In a fork
        of the process that opened the session nothing happens.
        """
        if not is_in_process(self._owner_pid):
            return
        self._closed = True  # whoever waits for the lock is refused then
        has_lock = self._lock.acquire(timeout=CLOSE_WAIT_S)
        try:
            self._executor.close()
        finally:
            if has_lock:
                self._lock.release()

    def _later_runs(self) -> list[KindOfRun]:
        """The runs between steps, for which TensorFlow gets ready sooner before the first step than after it."""
        flush, save = self._signature.flush, self._signature.save
        saves: list[Sequence[str]] = [(self._signature.save_prefix, self._signature.save_steps)]
        runs: list[KindOfRun] = [([], flush, ())] if flush else []
        if self._signature.data is not None:
            saves.append((*saves[0], self._signature.data.position))
            runs += [([], targets, ()) for targets in (self._signature.data.snapshot, self._signature.data.forget)]
        return [*runs, *(([], [save], fed) for fed in saves)]

    def _run_op(self, target: str, feeds: Mapping[str, np.ndarray]) -> None:
        self._executor.run([], [target], feeds, self._timeout_s)

    @property
    def distributed(self) -> DistributedModel:
        """The distributed model that runs: that of the session, optimised where that is done here."""
        return self._distributed

    @property
    def executor(self) -> Executor:
        """The Executor that runs the graph."""
        return self._executor

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self._signature.workers

    @property
    def step_count(self) -> int:
        """Number of steps that the variables have seen; the program's own counter says it of what one device saved."""
        return self._steps.step_count

    # -- training ----------------------------------------------------------------------------

    def step(self, *args: Any, **kwargs: Any) -> StepResult:
        """One training step on a global batch, split over the workers.

        Args:
            args: arrays in the order of the program's inputs, or a dict from placeholders or names. What
                the workers take from a dataset of their own is not fed.
            kwargs: arrays by the inputs' names.

        Returns:
            The loss over all workers, and further results of the step.

        Raises:
            InputError: the batch does not fit; nothing has run.
            EndOfData: the workers' dataset has ended; nothing has run, and the next step begins it again.
            DataError: an input pipeline failed; nothing has run, and the next step takes the next batch.
            StepError: the program failed; restore a checkpoint before going on.
            ClusterError: a worker is lost.
        """
        return self._step(args, kwargs)

    @_one_at_a_time
    def trace_next(self, on_metadata: Callable[[bytes], None]) -> None:
        """Let TensorFlow trace the next step in full, whether `step` makes it or `run`.

        Args:
            on_metadata: function that is called with what TensorFlow says of the step: a serialized RunMetadata.
        """
        self._steps.trace_next(on_metadata)

    def step_by(self, run: StepRun, *args: Any, **kwargs: Any) -> StepResult:
        """One training step, run by a function of the caller's: to time or to trace it.

        Args:
            run: function like `Executor.run` of `executor`, called with the step itself. The next element of a
                dataset on the workers has been taken before.
            args: arrays; see `step`.
            kwargs: arrays by name; see `step`.
        """
        return self._step(args, kwargs, run)

    @_one_at_a_time
    def _step(self, args: Sequence[Any], kwargs: Mapping[str, Any], run: StepRun | None = None) -> StepResult:
        self._refuse_after_failure()
        return self._steps.step(args, kwargs, run)

    # -- several steps in one run --------------------------------------------------------------

    @_one_at_a_time
    def steps_together(self, steps: int, batches: Sequence[Any] | None = None) -> list[StepResult]:
        """Several training steps in one run of the graph: the results of as many calls of `step`, for less overhead.

        The steps are unrolled: each worker goes on to the next one as soon as its part of a step is done. Steps that
        cannot be unrolled run one after the other, and so do those for which the graph or what is fed would become too
        large (see `steps_in_run`), and those after an element of the data that failed.

        Args:
            steps: largest number of steps.
            batches: that many batches, each a tuple of arrays, or a dict; None if the workers have a dataset.

        Returns:
            The result of each step. All of them with batches; with a dataset at least one, and none of its next pass.

        Raises:
            InputError: a batch does not fit; nothing has run.
            EndOfData: with a dataset, the present pass has no further batch; the next step begins another.
            DataError: an input pipeline failed; no step has run.
            ClusterError: a worker is lost, or the steps take longer than so many steps may.
            StepError: an op of a step failed.
        """
        self._refuse_after_failure()
        whole_number(steps, "steps")
        if batches is None:
            return self._steps.on_data(steps)
        if len(batches) != steps:
            raise InputError(f"{len(batches)} batches were given for {steps} steps")
        return self._steps.on_batches([self._steps.split(batch) for batch in batches])

    @_one_at_a_time
    def steps_in_run(self, wanted: int) -> int:
        """Number of steps that are one run in `steps_together`: fewer than wanted where the graph would be too large.

        Args:
            wanted: number of steps.
        """
        return self._steps.in_run(wanted)

    def ready_s(self, steps: int) -> float:
        """About how many seconds TensorFlow will take to get ready for a run of several steps; 0 if it is ready.

        Args:
            steps: number of steps in the run.
        """
        return self._steps.ready_s(steps)

    def run(
        self,
        batches: Iterable[Any] | None = None,
        steps: int | None = None,
        *,
        steps_per_execution: int | str = 1,
        progress: bool = True,
        on_step: Callable[[StepResult], None] | None = None,
        on_run: Callable[[Sequence[StepResult]], None] | None = None,
    ) -> list[StepResult]:
        """Train on many batches.

        Other threads may use the session between two runs of the graph.

        Args:
            batches: batches, each a tuple of arrays, or a dict; see `step`. None if the workers have a dataset.
            steps: largest number of steps; None for all. With a dataset, None ends with its present pass, and a
                number goes on over as many passes as it takes.
            steps_per_execution: number of steps in a run of the graph, which are unrolled; see `steps_together`. What
                is left over at the end runs step by step. ``"auto"``: the number is chosen after some single steps, by
                what they take, what a run costs in which nothing is done, and how many steps are to come (``steps``).
            progress: whether to show a progress bar, or a line every ten seconds where there is no terminal.
            on_step: function that is called with the result of every step, when the run that it belongs to has ended.
            on_run: function that is called with the results of every run.

        Returns:
            The result of each step.

        Raises:
            InputError: fewer batches than steps, or a batch that does not fit; no number of steps for a
                dataset without end.
            DataError: an input pipeline failed.
        """
        steps = None if steps is None else whole_number(steps, "steps", 0, _MOST_STEPS, "steps are counted in 64 bits")
        in_run = StepsInRun(steps_per_execution, steps, self.worthwhile_steps)
        runs = self._runs(batches, steps, in_run)
        results: list[StepResult] = []
        rate = StepRate()
        with progress_over(steps, progress, "steps", "until the data ends; --steps (steps=) ends it") as report:
            for together in runs:
                results += together
                in_run.note(len(together))
                rate.note(sum(result.examples for result in together), len(together), self.data_wait_s)
                examples = "" if rate.examples_per_s is None else f", {format_number(rate.examples_per_s)} examples/s"
                report(len(results), f"loss {results[-1].loss:.4g}{examples}")
                if on_run is not None:
                    on_run(together)
                if on_step is not None:
                    for result in together:
                        on_step(result)
        return results

    @_one_at_a_time
    def worthwhile_steps(self, step_s: float, steps: int) -> int:
        """Number of steps in a run with which a training ends first; 1 where several save little.

        Args:
            step_s: seconds of a step that is a run of its own.
            steps: number of steps to come.
        """
        return self._steps.worthwhile(step_s, steps)

    def waiting_for_data(self) -> AbstractContextManager[None]:
        """Count the time in `data_wait_s`."""
        return self._steps.waiting_for_data()

    def _waited_for(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Batches of the caller, whose making counts as waiting."""
        end = object()
        while True:
            with self.waiting_for_data():
                batch = next(batches, end)
            if batch is end:
                return
            yield batch

    @property
    def data_wait_s(self) -> float:
        """Seconds so far in which no step could run because its data was not there yet."""
        return self._steps.data_wait_s

    def _runs(self, batches: Iterable[Any] | None, steps: int | None, in_run: StepsInRun) -> Iterator[list[StepResult]]:
        """The results of runs on arrays, or on the workers' dataset."""
        if self._steps.data is None or self._signature.data is None:
            if batches is None:
                raise InputError(NO_DATA)
            return self._runs_on_batches(_limited(batches, steps), in_run)
        if batches is not None:
            raise InputError(DATA_IS_THERE)
        if steps is None and self._signature.data.infinite:
            raise InputError("the dataset has no end: say how many steps, run(steps=...) or --steps")
        return self._runs_on_data(steps, in_run)

    def _runs_on_batches(self, batches: Iterator[Any], in_run: StepsInRun) -> Iterator[list[StepResult]]:
        while True:
            count, drawn, failure = self.steps_in_run(in_run.count), [], None
            try:
                for batch in self._waited_for(itertools.islice(batches, count)):
                    drawn.append(self._steps.split(batch) if count == 1 else self._steps.split(batch).copied())
            except Exception as error:  # of the caller's code, or of a batch that does not fit: after those before it
                failure = error
            for some in [drawn] if len(drawn) == count else [[batch] for batch in drawn]:
                yield self._run_drawn(some)
            if failure is not None:
                raise failure
            if len(drawn) < count:
                return

    @_one_at_a_time
    def _run_drawn(self, batches: Sequence[Batch]) -> list[StepResult]:
        self._refuse_after_failure()
        return self._steps.on_batches(batches)

    def _runs_on_data(self, steps: int | None, in_run: StepsInRun) -> Iterator[list[StepResult]]:
        done = 0
        while steps is None or done < steps:
            count = self.steps_in_run(in_run.count)
            is_left_over = steps is not None and steps - done < count
            try:
                results = self.steps_together(1 if is_left_over else count)
            except EndOfData:
                if steps is None and done > 0:
                    return
                continue  # the present pass had ended already
            done += len(results)
            yield results

    @_one_at_a_time
    def restart_data(self) -> None:
        """Let the next step take the first batch of a new pass over the workers' dataset.

        Raises:
            InputError: there is no such dataset.
        """
        self._data_on_workers().restart()

    @_one_at_a_time
    def skip_data_passes(self, batches_read: Sequence[int | None]) -> None:
        """Let the next step take the first batch of a new pass, as if further passes had come before it.

        Args:
            batches_read: number of batches that were read of each of these passes, None if that is not known. It
                matters only where a pass draws seeds for its shuffles after its beginning.

        Raises:
            InputError: there is no dataset on the workers, or it matters and is not known.
            DataError: the pipeline failed.
        """
        self._data_on_workers().skip_passes(batches_read)

    def _data_on_workers(self) -> WorkerData:
        self._refuse_when_closed()
        if self._steps.data is None:
            raise InputError("there is no dataset on the workers: it is given as data= to caramel.capture")
        return self._steps.data

    @_one_at_a_time
    def flush(self) -> bool:
        """Apply the updates that the last step has left to the next one, or exchange what workers have trained alone.

        Whatever reads or writes values from outside of a step (saving, evaluating, `values`, `assign`) does so first.

        Returns:
            Whether anything was left to do.
        """
        self._refuse_after_failure()
        return self._steps.flush()

    # -- evaluation --------------------------------------------------------------------------

    @_one_at_a_time
    def evaluate(self, *args: Any, fetches: Any = None, **kwargs: Any) -> Any:
        """Compute something from worker 0's variables.

        Args:
            args: arrays for the evaluation's inputs, or a dict; never split.
            fetches: the values to compute: for a graph a tensor, a name, or a nest of these; for a step a
                function with an input_signature. Default: the evaluation that was declared at capture.
            kwargs: arrays by name.

        Returns:
            Arrays in the structure of the declared evaluation or of ``fetches``.

        Raises:
            CaptureError: there is nothing to evaluate, or it cannot be captured.
            InputError: the arrays do not fit.
        """
        self.flush()
        evaluation, signature = self._evaluation(fetches)
        arrays = bound_arrays(signature.feeds, args, kwargs, unused=self._input_names)
        feeds = {feed.placeholders[0]: arrays[feed.name] for feed in signature.feeds if feed.name in arrays}
        tensors = [tensor for _, tensor in signature.fetches]
        values = self._executor.run(tensors, signature.targets, feeds, self._timeout_s)
        return evaluation.pack(values) if evaluation.pack is not None else values

    def _evaluation(self, fetches: Any) -> tuple[Any, Any]:
        if fetches is None and self._distributed.evaluation is not None:
            return self._distributed.evaluation, self._signature.evaluation
        key = _hashable(fetches)
        if key not in self._evaluations:
            evaluation = self._distributed.context.evaluation_for(fetches)
            scope = f"caramel/evaluation_{len(self._evaluations) + 1}/"
            graph = evaluation_graph(evaluation, self._model, self._distributed.plan, scope)
            self._executor.extend(graph.to_bytes())
            self._evaluations[key] = (evaluation, evaluation_signature(evaluation, scope), fetches)
        return self._evaluations[key][:2]

    # -- state -------------------------------------------------------------------------------

    @_one_at_a_time
    def values(self) -> dict[str, np.ndarray]:
        """The value of every saved variable on worker 0, by the user's name."""
        self.flush()
        return self._state.values(self.step_count)

    @_one_at_a_time
    def give_values(self, names: Iterable[str], take: Callable[[str, np.ndarray], object]) -> None:
        """Give the values of variables on worker 0 to a function, one after the other; large ones need less room so.

        Args:
            names: the user's names of the variables.
            take: function of a name and an array.
        """
        self.flush()
        self._state.give_values(self.step_count, names, take)

    @_one_at_a_time
    def assign(self, values: Mapping[str, Any]) -> None:
        """Give some variables new values, on every worker.

        Args:
            values: arrays by the user's names of the variables; a learning rate, for one. Random states
                are offset by rank, so that workers go on drawing differently.

        Raises:
            InputError: there is no such variable, or a value does not fit it; nothing has changed.
        """
        self.flush()
        self._state.assign(values, lambda nodes: self._executor.extend(Graph(nodes).to_bytes()))

    @_one_at_a_time
    def begin_again(
        self, values: Mapping[str, np.ndarray], pipeline: Pipeline | None = None, loads: bool = True
    ) -> None:
        """Go on as a session does that was just opened, with other values and other data.

        Workers that train by themselves keep what each has of its own, if what is trained has the values that it has
        there: nothing but totals, and what no step writes, is then given to them.

        Args:
            values: arrays by the names of the variables; others get the program's initial values.
            pipeline: other pipelines that fit those so far (see `caramel.data.pipeline.Pipeline.fits`).
            loads: whether the workers need its arrays.

        Raises:
            StepError: a step failed before.
        """
        self.flush()
        is_local = self._signature.sync_every > 0
        changed = self._state.changed_beside_training(values, self.step_count) if is_local else None
        if changed is None:
            step_count = self._state.begin_again(values, pipeline if loads else None)
        else:
            step_count = self.step_count
            self.assign(changed)
            if pipeline is not None and loads:
                self._state.load_data(pipeline)
        self._steps.begin(step_count, pipeline or self._distributed.pipeline)

    @_one_at_a_time
    def write_back(self) -> None:
        """Give the trained values to the user's own variables (a Keras model and its optimizer).

        Raises:
            InputError: the program is a graph, which has no variables of its own.
        """
        self.flush()
        self._state.write_back(self.step_count)

    @_one_at_a_time
    def save(self, path: str | os.PathLike[str]) -> str:
        """Write a checkpoint that the single-device program can restore, too.

        It also has the position in the workers' dataset, if they have one. It has the program's own
        variable names; with ``checkpoint=`` given at capture it has that
        object's format. What is local to the other workers is kept beside it under other names.

        Args:
            path: prefix of the checkpoint. Files of that name are replaced only once all is written.

        Returns:
            The prefix, for `restore`.

        Raises:
            InputError: the path is no prefix of this machine.
            CheckpointError: it cannot be written; what was there is untouched.
        """
        self.flush()
        if self._steps.data is None:
            saved = self._state.save(path, self.step_count)
        else:
            with self._steps.data.saved_position() as position:
                saved = self._state.save(path, self.step_count, position)
        _logger.info("saved step %d to %s", self.step_count, saved)
        return saved

    @_one_at_a_time
    def check_saves_to(self, directory: str | os.PathLike[str]) -> None:
        """Check that checkpoints can be saved to a directory: that worker 0 and this process see the same files there.

        Args:
            directory: path of a directory that exists.

        Raises:
            CheckpointError: worker 0 cannot write there, or has another directory of that name.
        """
        self._state.check_saves_to(Path(directory), lambda nodes: self._executor.extend(Graph(nodes).to_bytes()))

    @_one_at_a_time
    def restore(self, path: str | os.PathLike[str]) -> None:
        """Restore a checkpoint of this program, distributed or single-device, by any number of workers.

        A save to this prefix whose process was killed is finished first.

        Args:
            path: the checkpoint's prefix.

        Raises:
            InputError: the path is no prefix of this machine.
            CheckpointError: it is missing, damaged or does not fit; then nothing has changed. If a part of it is
                with the workers by then (only the position in the data is damaged, or worker 0 sees the values and
                not the files beside them), the session does not go on without another restore.
            DataError: the input pipeline failed on its way to the position; likewise.
        """
        self._refuse_when_closed()
        with readable(checked_prefix(path)) as prefix:
            before, self._steps.failure = self._steps.failure, _PARTIAL_RESTORE
            try:
                self._steps.step_count = self._state.restore(prefix)
            except (InputError, CheckpointError):
                if not self._state.has_changed:
                    self._steps.failure = before
                raise
            self._steps.leave_nothing()
            if self._steps.data is not None:
                self._steps.data.restore(self._state.last_read)
            self._steps.failure = None

    def _refuse_elsewhere(self) -> None:
        """Refuse what a fork of the process does: it has none of the threads that run the session."""
        if not is_in_process(self._owner_pid):
            raise ClusterError(
                f"the session was opened in process {self._owner_pid}, and process {os.getpid()} is a fork of it, "
                "which cannot use it: open a session of its own there, or start the process anew (spawn)"
            )

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise ClusterError("the session is closed: start a new one")

    def _refuse_after_failure(self) -> None:
        self._refuse_when_closed()
        if self._steps.failure is not None:
            raise StepError(self._steps.failure)


def _limited(batches: Iterable[Any], steps: int | None) -> Iterator[Any]:
    count = 0
    if not isinstance(batches, Iterable):
        raise InputError(f"batches must be an iterable of batches, got {type(batches).__name__}")
    iterator = iter(batches)
    while steps is None or count < steps:
        try:
            batch = next(iterator)
        except StopIteration:
            if steps is not None:
                raise InputError(
                    f"there are {count} batches for {steps} steps: give more data or fewer steps"
                ) from None
            if count == 0 and iterator is batches:
                raise InputError("there is no batch: an iterator gives its batches once only") from None
            return
        yield batch
        count += 1


def _hashable(fetches: Any) -> Any:
    """Equal for the same tensors in the same structure, which is that of the result."""
    if isinstance(fetches, Mapping):
        return type(fetches), tuple((key, _hashable(value)) for key, value in fetches.items())
    if isinstance(fetches, (list, tuple)):
        return type(fetches), tuple(_hashable(value) for value in fetches)
    return fetches if isinstance(fetches, (str, type(None))) else id(fetches)
