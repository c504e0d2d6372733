"""The training steps of a session: single ones, and several in one run, on what is fed or on the workers' data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from caramel.compiler.distributed_model import DistributedModel
from caramel.data.pipeline import Pipeline
from caramel.errors import ClusterError, InputError, StepError, listed
from caramel.runtime.executor import Executor, Run
from caramel.runtime.feeds import Batch, bound_arrays, split_batch, step_feeds, step_fetches, warn_of_idle_workers
from caramel.runtime.packed_feeds import PackedFeeds
from caramel.runtime.row_errors import with_row
from caramel.runtime.server_errors import with_servers
from caramel.runtime.step_result import StepResult, step_results
from caramel.runtime.steps_per_execution import OPTIMIZED_S_PER_NODE, READY_S_PER_NODE, worthwhile_steps
from caramel.runtime.unrolled_steps import StepsTogether, UnrolledSteps
from caramel.runtime.worker_data import WorkerData

StepRun = Callable[[Sequence[str], Sequence[str], Mapping[str, Any], float], list[np.ndarray]]
"""A function like `Executor.run`."""

NO_DATA = "there is no dataset on the workers: give the batches, or data= to caramel.capture"

DATA_IS_THERE = (
    "the workers read the dataset that was given at capture: call run(steps=...) without batches, or capture the "
    "program without data="
)


class TrainingSteps:
    """What trains the variables of a distributed model on its cluster, and what a step has left behind.

    Args:
        distributed: the distributed model.
        executor: runs its graph.
        packed: what is fed to each worker in one array; None where each tensor is fed by itself.
        is_optimized: whether TensorFlow has nothing to optimise in the graph.
        is_elsewhere: whether the workers are in other processes.
        timeout_s: seconds that a step may take.

    Attributes:
        step_count: number of steps that the variables have seen.
        data: the workers' data; None where the driver feeds all.
        failure: why no step may be taken; None if one may.
        data_wait_s: seconds so far in which no step could run because its data was not there yet.
        unrolled: the steps that may be one run.
    """

    def __init__(
        self,
        distributed: DistributedModel,
        executor: Executor,
        packed: PackedFeeds | None,
        is_optimized: bool,
        is_elsewhere: bool,
        timeout_s: float,
    ) -> None:
        self._distributed = distributed
        self._signature = distributed.signature
        self._executor = executor
        self._packed = packed
        self._is_optimized = is_optimized
        self._timeout_s = timeout_s
        self._is_pending = self._has_run = False
        self._steps_since_flush = 0
        self._on_metadata: Callable[[bytes], None] | None = None
        self.step_count = 0
        self.failure: str | None = None
        self.data_wait_s = 0.0
        self.data: WorkerData | None = None
        self.unrolled = UnrolledSteps(distributed, executor.extend, is_elsewhere)

    def begin(self, step_count: int, pipeline: Pipeline | None) -> None:
        """Begin with variables that were just given their values, and with the workers' data at its beginning.

        Args:
            step_count: number of steps that the variables have seen.
            pipeline: the workers' pipelines; None where the driver feeds all.
        """
        self.step_count, self._on_metadata = step_count, None
        self.data = None
        if self._signature.data is not None and pipeline is not None:
            self.data = WorkerData(self._signature, self._run_each, pipeline.seed)

    def _run_each(self, runs: Sequence[Run], steps: int) -> list[list[np.ndarray] | StepError]:
        return self._executor.run_each(runs, self._timeout_s * steps)

    def trace_next(self, on_metadata: Callable[[bytes], None]) -> None:
        """See `Session.trace_next`."""
        self._on_metadata = on_metadata

    # -- single steps ------------------------------------------------------------------------

    def step(self, args: Sequence[Any], kwargs: Mapping[str, Any], run: StepRun | None = None) -> StepResult:
        """One training step.

        Args:
            args: arrays; see `Session.step`.
            kwargs: arrays by name.
            run: function that runs the step; None for the executor's.
        """
        with self._naming_steps():
            return self._step_on(self._batch(args, kwargs), run or self._run_step)

    def _run_step(
        self, fetches: Sequence[str], targets: Sequence[str], feeds: Mapping[str, Any], timeout_s: float
    ) -> list[np.ndarray]:
        on_metadata, self._on_metadata = self._on_metadata, None
        if on_metadata is None:
            return self._executor.run(fetches, targets, feeds, timeout_s)
        values, metadata = self._executor.run_traced(fetches, targets, feeds, timeout_s)
        on_metadata(metadata)
        return values

    @contextmanager
    def _naming_steps(self, count: int = 1) -> Iterator[None]:
        """Say which of the next steps, that run together, cannot go on or have failed."""
        first = self.step_count + 1
        steps = f"step {first}" if count == 1 else f"steps {first} to {first + count - 1}"
        try:
            yield
        except ClusterError as error:
            raise ClusterError(f"{steps} cannot go on: {with_servers(str(error), self._signature)}") from error
        except StepError as error:
            which = steps if count == 1 else f"one of the {steps}"
            told = with_row(str(error), self._distributed.model, self._distributed.plan)
            raise StepError(f"{which} failed: {told}") from error

    def _step_on(self, batch: Batch, run: StepRun, takes_next: bool = False) -> StepResult:
        """One training step, on a batch that is cut into the workers' parts."""
        counts, advance = self._run_ahead() if takes_next else ((), ())
        feeds = step_feeds(self._signature, batch, is_packed=self._packed is not None)
        if self._packed is not None:
            feeds = self._packed.feeds(feeds)
        fetches = [*step_fetches(self._signature), *counts]
        values = self._train(fetches, [*self._signature.step, *advance], feeds, run)
        if self.data is not None:
            self.data.took_ahead(values[len(fetches) - len(counts) :])
        return self._noted([batch], values)[0]

    def _run_ahead(self) -> tuple[Sequence[str], Sequence[str]]:
        """See `WorkerData.run_ahead`. A step that is traced runs without anything beside it."""
        return ((), ()) if self.data is None or self._on_metadata is not None else self.data.run_ahead()

    def _noted(self, batches: Sequence[Batch], values: Sequence[np.ndarray]) -> list[StepResult]:
        """The results of steps that have run."""
        results = step_results(self._signature, batches, values, self.step_count)
        if not self._has_run:  # a later batch may be a last one, of few examples
            self._has_run = True
            warn_of_idle_workers(batches[0])
        self.step_count += len(results)
        self._is_pending = bool(self._signature.flush)
        self._steps_since_flush += len(results)
        if self._signature.sync_every and self._steps_since_flush >= self._signature.sync_every:
            self.flush()
        return results

    def _train(
        self, fetches: Sequence[str], targets: Sequence[str], feeds: Mapping[str, Any], run: StepRun
    ) -> list[np.ndarray]:
        """Run ops that write variables."""
        try:
            return run(fetches, targets, feeds, self._timeout_s)
        except BaseException as error:  # an interrupted step, too, may have written some variables
            self.failure = (
                "a step failed before, so some variables may have seen it and some not; restore a checkpoint first. "
                f"(It failed with: {str(error) or type(error).__name__})"
            )
            raise

    # -- what a step leaves ------------------------------------------------------------------

    def flush(self) -> bool:
        """See `Session.flush`."""
        if not self._is_pending:
            return False
        self._train([], self._signature.flush, {}, self._executor.run)
        self.leave_nothing()
        return True

    def leave_nothing(self) -> None:
        """Note that no update is left to the next step."""
        self._is_pending, self._steps_since_flush = False, 0

    # -- several steps in one run --------------------------------------------------------------

    def on_data(self, steps: int) -> list[StepResult]:
        """Some of the next steps on the workers' data, in one run; see `Session.steps_together`.

        Args:
            steps: largest number of steps.
        """
        if self.data is None:
            raise InputError(NO_DATA)
        chunk = self._most_together(steps)
        if chunk > 1:
            return self._run_on_data(self.data, chunk)
        # What is left over between unrolled steps takes nothing that these would have to find.
        return [self._step_on_data(takes_next=not self.unrolled.is_used)]

    def on_batches(self, batches: Sequence[Batch]) -> list[StepResult]:
        """Steps on batches of the driver, in as few runs as may be."""
        results: list[StepResult] = []
        while left := batches[len(results) :]:
            chunk = self._most_together(len(left))
            if chunk > 1 and len(left) >= chunk and self.unrolled.fits(left[:chunk]):
                results += self._run_together(self.unrolled.steps(chunk), left[:chunk])
            else:
                with self._naming_steps():
                    results.append(self._step_on(left[0], self._run_step))
        return results

    def in_run(self, wanted: int) -> int:
        """See `Session.steps_in_run`."""
        is_fed_besides = self.data is not None and any(not feed.optional for feed in self._signature.feeds)
        return 1 if wanted == 1 or is_fed_besides else self.unrolled.most(wanted)

    def ready_s(self, steps: int) -> float:
        """See `Session.ready_s`."""
        return 0.0 if steps == 1 or self.unrolled.has(steps) else steps * self._nodes_s

    def worthwhile(self, step_s: float, steps: int) -> int:
        """See `Session.worthwhile_steps`."""
        most = self.in_run(steps)
        if most == 1:
            return 1
        run_s = self.unrolled.empty_run_s(lambda ops: self._executor.run([], ops, {}, self._timeout_s))
        return worthwhile_steps(step_s, run_s, steps, self._nodes_s, most)

    @property
    def _nodes_s(self) -> float:
        """Seconds that it takes to get ready for the nodes of an unrolled step."""
        node_s = READY_S_PER_NODE if self._is_optimized else READY_S_PER_NODE + OPTIMIZED_S_PER_NODE
        return self.unrolled.nodes * node_s

    def _most_together(self, steps: int) -> int:
        """Number of steps that the next run may have; a step that is traced runs by itself."""
        if self._signature.sync_every:  # an exchange comes between two runs
            steps = min(steps, self._signature.sync_every - self._steps_since_flush)
        return 1 if self._on_metadata is not None else self.in_run(steps)

    def _step_on_data(self, takes_next: bool) -> StepResult:
        """A step in a run of its own on the workers' data.

        Args:
            takes_next: whether its run may take the elements of the next step, too.
        """
        with self._naming_steps():
            return self._step_on(self._batch((), {}), self._run_step, takes_next)

    def _run_on_data(self, data: WorkerData, steps: int) -> list[StepResult]:
        """Run unrolled steps on the workers' data; fewer where a pass ends."""
        with self.waiting_for_data():
            shares = data.advance_several(lambda: self.unrolled.elements(steps), steps)
        if not shares:  # elements are taken one by one for now
            return [self._step_on_data(takes_next=False)]
        batches = [Batch({}, each, self._signature.reduction) for each in shares]
        is_followed = not self._signature.sync_every or self._signature.sync_every % steps == 0  # by as many steps
        return self._run_together(self.unrolled.steps(steps), batches, takes_next=is_followed)

    def _run_together(
        self, together: StepsTogether, batches: Sequence[Batch], takes_next: bool = False
    ) -> list[StepResult]:
        """Run the first of some unrolled steps, as many as there are batches.

        Args:
            together: the steps.
            batches: batch of each of them.
            takes_next: whether the run may take the elements of as many next steps, too.
        """
        timeout_s = self._timeout_s * len(batches)
        counts, advance = self.data.run_ahead(together.elements) if takes_next and self.data is not None else ((), ())

        def run(fetches: Sequence[str], targets: Sequence[str], feeds: Mapping[str, Any], _: float) -> list[np.ndarray]:
            return self._executor.run(fetches, targets, feeds, timeout_s)

        fetches, targets, feeds = together.run_of(batches)
        with self._naming_steps(len(batches)):
            values = self._train([*fetches, *counts], [*targets, *advance], feeds, run)
        if self.data is not None:
            self.data.took_ahead(values[len(fetches) :], together.elements)
        return self._noted(batches, values[: len(fetches)])

    # -- batches -----------------------------------------------------------------------------

    def split(self, batch: Any) -> Batch:
        """A batch of the driver, a tuple of arrays or a dict, cut into the workers' parts."""
        if self.data is not None:
            raise InputError(DATA_IS_THERE)
        return split_batch(self._signature, self._bound(batch if isinstance(batch, tuple) else (batch,), {}))

    def _batch(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Batch:
        """The feeds of a step; with a dataset, the workers take its next element."""
        if self.data is None or self._signature.data is None:
            return split_batch(self._signature, self._bound(args, kwargs))
        if (args and not self._signature.feeds) or set(kwargs) & set(self._signature.data.inputs):
            raise InputError(
                f"the workers read the inputs {listed(self._signature.data.inputs)} from the dataset that was given at "
                "capture, so they cannot be fed: call step() without arrays, or capture the program without data="
            )
        split_feeds = split_batch(self._signature, self._bound(args, kwargs))
        with self.waiting_for_data():
            counts = self.data.advance()
        return Batch(split_feeds.feeds, counts, self._signature.reduction)

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        model = self._distributed.model
        order = () if self.data is not None else model.input_order
        return bound_arrays(self._signature.feeds, args, kwargs, model.unused_inputs, order)

    @contextmanager
    def waiting_for_data(self) -> Iterator[None]:
        """Count the time in `data_wait_s`."""
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self.data_wait_s += time.perf_counter() - began_s
