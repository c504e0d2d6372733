"""The Session: steps, evaluation and checkpoints of a distributed model on a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from caramel.armodel import evaluation_signature
from caramel.errors import ClusterError, InputError, StepError
from caramel.modifiers.evaluate import evaluation_nodes
from caramel.runtime.cluster import Cluster, placed_nodes
from caramel.runtime.feeds import Batch, bind, split
from caramel.runtime.progress import progress_over
from caramel.runtime.state import State

if TYPE_CHECKING:
    from caramel.armodel import ARModel

DEFAULT_STEP_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class StepResult:
    """What one step gave.

    Attributes:
        step: number of steps that the variables have seen, this one included.
        loss: over all workers: the weighted mean of their losses, or their sum.
        worker_losses: of each worker.
        examples: number of examples in the step (0 where no input is split).
        outputs: further results of the step function: the values of each worker, by name.
    """

    step: int
    loss: float
    worker_losses: tuple[float, ...]
    examples: int
    outputs: Mapping[str, tuple[np.ndarray, ...]]


class Session:
    """A distributed model on a running cluster. Use it in a ``with`` statement.

    Args:
        armodel: the model.
        cluster: where to run it.
        step_timeout_s: how long a step may take before its workers count as lost.

    Raises:
        ClusterError: the cluster cannot be started.
    """

    def __init__(self, armodel: ARModel, cluster: Cluster, *, step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S) -> None:
        if isinstance(cluster, (str, type)) or not hasattr(cluster, "start"):
            raise InputError(f"a session runs on a cluster such as caramel.InProcess(), got {cluster!r}")
        if step_timeout_s <= 0:
            raise InputError(f"step_timeout_s must be positive, got {step_timeout_s}")
        self._armodel = armodel
        self._model = armodel.model
        self._signature = armodel.signature
        self._timeout_s = step_timeout_s
        self._failure: str | None = None
        self._closed = False
        self._input_names = {*(i.name for i in self._model.inputs), *self._model.unused_inputs}
        self._evaluations: dict[Any, Any] = {}
        self._executor = cluster.start(armodel.graph_def, armodel.signature.devices, step_timeout_s)
        try:
            self._state = State(armodel, self._run_op)
            self._step_count = self._state.initialise()
        except BaseException:
            self._executor.close()
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the cluster; what was not saved is gone. Safe to call twice."""
        self._closed = True
        self._executor.close()

    def _run_op(self, target: str, feeds: Mapping[str, np.ndarray]) -> None:
        self._executor.run([], [target], feeds, self._timeout_s)

    @property
    def step_count(self) -> int:
        """Steps that the variables have seen: the program's own counter, if it has one."""
        return self._step_count

    # -- training ----------------------------------------------------------------------------

    def step(self, *args: Any, **kwargs: Any) -> StepResult:
        """One training step on a global batch, split over the workers.

        Args:
            args: arrays in the order of the program's inputs, or a dict from placeholders or names.
            kwargs: arrays by the inputs' names.

        Returns:
            The loss over all workers and more.

        Raises:
            InputError: the batch does not fit; nothing has run.
            StepError: the program failed; restore a checkpoint before going on.
            ClusterError: a worker is lost.
        """
        self._refuse_after_failure()
        batch = split(self._signature, bind(self._signature.feeds, args, kwargs, self._model.unused_inputs))
        feeds = dict(batch.feeds)
        feeds.update((name, np.float64(w)) for name, w in zip(self._signature.weights, batch.weights))
        names = [name for name, _ in self._signature.outputs]
        fetches = [*self._signature.losses, *(t for _, tensors in self._signature.outputs for t in tensors)]
        try:
            values = self._executor.run(fetches, self._signature.step, feeds, self._timeout_s)
        except BaseException as error:  # an interrupted step, too, may have written some variables
            self._failure = str(error) or type(error).__name__
            raise
        self._step_count += 1
        workers = self._signature.workers
        losses = tuple(float(np.sum(v, dtype=_sum_dtype(v))) for v in values[:workers])
        rest = values[workers:]
        outputs = {name: tuple(rest[n * workers : (n + 1) * workers]) for n, name in enumerate(names)}
        return StepResult(self._step_count, self._combined(losses, batch), losses, sum(batch.shares), outputs)

    def _combined(self, losses: Sequence[float], batch: Batch) -> float:
        if self._signature.reduction == "sum":
            return float(sum(losses))
        return sum(w * value for w, value in zip(batch.weights, losses)) / len(losses)

    def run(
        self,
        batches: Iterable[Any],
        steps: int | None = None,
        *,
        progress: bool = True,
        on_step: Callable[[StepResult], None] | None = None,
    ) -> list[StepResult]:
        """Train on many batches.

        Args:
            batches: each a tuple of arrays, or a dict; see `step`.
            steps: how many at most; None for all.
            progress: whether to show a progress bar (on a terminal only).
            on_step: called after every step.

        Returns:
            The result of each step.

        Raises:
            InputError: fewer batches than steps, or a batch that does not fit.
        """
        results: list[StepResult] = []
        with progress_over(steps, progress) as report:
            for batch in _limited(batches, steps):
                result = self.step(*batch) if isinstance(batch, tuple) else self.step(batch)
                results.append(result)
                report(len(results), f"loss {result.loss:.4g}")
                if on_step is not None:
                    on_step(result)
        return results

    def flush(self) -> None:
        """Apply updates that are postponed to the next step. Nothing is ever postponed yet."""
        self._refuse_after_failure()

    # -- evaluation --------------------------------------------------------------------------

    def evaluate(self, *args: Any, fetches: Any = None, **kwargs: Any) -> Any:
        """Compute something from worker 0's variables.

        Args:
            args: arrays for the evaluation's inputs, or a dict; never split.
            fetches: what to compute: for a graph a tensor, a name, or a nest of these; for a step a
                function with an input_signature. Default: what was declared at capture.
            kwargs: arrays by name.

        Returns:
            Arrays in the structure of what was declared or fetched.

        Raises:
            CaptureError: there is nothing to evaluate, or it cannot be captured.
            InputError: the arrays do not fit.
        """
        self._refuse_after_failure()
        evaluation, signature = self._evaluation(fetches)
        arrays = bind(signature.feeds, args, kwargs, unused=self._input_names)
        feeds = {feed.placeholders[0]: arrays[feed.name] for feed in signature.feeds if feed.name in arrays}
        tensors = [tensor for _, tensor in signature.fetches]
        values = self._executor.run(tensors, signature.targets, feeds, self._timeout_s)
        return evaluation.pack(values) if evaluation.pack is not None else values

    def _evaluation(self, fetches: Any) -> tuple[Any, Any]:
        if fetches is None and self._armodel.evaluation is not None:
            return self._armodel.evaluation, self._signature.evaluation
        key = _hashable(fetches)
        if key not in self._evaluations:
            evaluation = self._armodel.context.evaluation_for(fetches)
            scope = f"caramel/evaluation_{len(self._evaluations) + 1}/"
            nodes = evaluation_nodes(evaluation, self._model, self._signature.devices[0], scope)
            self._executor.extend(placed_nodes(nodes))
            self._evaluations[key] = (evaluation, evaluation_signature(evaluation, scope), fetches)
        return self._evaluations[key][:2]

    # -- state -------------------------------------------------------------------------------

    def values(self) -> dict[str, np.ndarray]:
        """The value of every saved variable on worker 0, by the user's name."""
        self._refuse_after_failure()
        return self._state.values(self._step_count)

    def write_back(self) -> None:
        """Give the trained values to the user's own variables (a Keras model and its optimizer).

        Raises:
            InputError: the program is a graph, which has no variables of its own.
        """
        self._refuse_after_failure()
        self._state.write_back(self._step_count)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint that the single-device program can restore, too.

        It has the program's own variable names; with ``checkpoint=`` given at capture it has that
        object's format. What is local to the other workers is kept beside it under other names.

        Args:
            path: the checkpoint's prefix. Files of that name are replaced only once all is written.

        Raises:
            InputError: the path is no prefix.
            CheckpointError: it cannot be written; what was there is untouched.
        """
        self._refuse_after_failure()
        self._state.save(path, self._step_count)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Restore a checkpoint of this program, distributed or single-device, by any number of workers.

        Args:
            path: the checkpoint's prefix.

        Raises:
            InputError: the path is no prefix.
            CheckpointError: it is missing, damaged or does not fit; then nothing has changed.
        """
        self._refuse_when_closed()
        self._step_count = self._state.restore(path)
        self._failure = None

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise ClusterError("the session is closed: start a new one")

    def _refuse_after_failure(self) -> None:
        self._refuse_when_closed()
        if self._failure is not None:
            raise StepError(
                "a step failed before, so some variables may have seen it and some not; restore a checkpoint first. "
                f"(It failed with: {self._failure})"
            )


def _limited(batches: Iterable[Any], steps: int | None) -> Iterator[Any]:
    if steps is not None and steps < 0:
        raise InputError(f"steps must be at least 0, got {steps}")
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
            return
        yield batch
        count += 1


def _sum_dtype(value: np.ndarray) -> Any:
    return np.float64 if np.asarray(value).dtype.kind != "c" else np.complex128


def _hashable(fetches: Any) -> Any:
    if isinstance(fetches, Mapping):
        return tuple((key, _hashable(value)) for key, value in fetches.items())
    if isinstance(fetches, (list, tuple)):
        return tuple(_hashable(value) for value in fetches)
    return fetches if isinstance(fetches, (str, type(None))) else id(fetches)
