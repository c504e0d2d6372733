"""The steps of epochs, in the order of Keras' own `fit`, and the transfer of values between workers and model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

import numpy as np

from caramel.errors import EndOfData
from caramel.keras.data_passes import DataPasses
from caramel.keras.fed_batches import FedBatches
from caramel.keras.metrics import DistributedMetrics
from caramel.runtime.session import Session
from caramel.runtime.step_rate import StepTimes
from caramel.runtime.step_result import StepResult
from caramel.runtime.steps_per_execution import StepsInRun
from caramel.util.arrays import array_of, same_values
from caramel.util.user_warnings import warn_user


@dataclass
class ModelValues:
    """The variables of a Keras model, and the workers' values of them.

    Attributes:
        session: session that runs the workers.
        live: the model's tf.Variables by name, without those of metrics.
        known: initial values on the workers, by name.
    """

    session: Session
    live: Mapping[str, Any]
    known: InitVar[Mapping[str, np.ndarray]]
    _known: dict[str, Any] = field(init=False)  # arrays, or tensors, which need no room until their variable changes
    _in_model: bool = field(init=False, default=True)

    def __post_init__(self, known: Mapping[str, np.ndarray]) -> None:
        self._known = {name: known[name] for name in self.live}

    def trained(self) -> None:
        """Note that the workers have trained further."""
        self._in_model = False

    def copy_to_model(self) -> None:
        """Give the model the workers' values, if the workers have trained further since the last time."""
        if self._in_model:
            return

        def take(name: str, value: np.ndarray) -> None:
            self.live[name].assign(value)
            self._known[name] = self.live[name].read_value()

        self.session.give_values(self.live, take)
        self._in_model = True

    def copy_changes_to_workers(self) -> None:
        """Give the workers the values that callbacks have changed in the model."""
        now = {name: variable.read_value() for name, variable in self.live.items()}
        changed = {name: value for name, value in now.items() if not _are_equal(value, self._known[name])}
        self.session.assign({name: value.numpy() for name, value in changed.items()})
        self._known.update(changed)


def _are_equal(value: Any, known: Any) -> bool:
    """Whether a variable has a value, both as arrays or tensors; what is no number is equal to itself."""
    return same_values(array_of(value), array_of(known))


@dataclass
class EpochLoop:
    """The loop over the epochs of a training.

    A dataset whose length is known ends where Keras takes it to end. The end of another dataset is only seen
    by asking for one more batch, after the callbacks were told that a batch begins.

    Attributes:
        model: the Keras model.
        session: session that runs the workers.
        hooks: CallbackList of the training.
        counts: metrics of the model.
        values: variables of the model.
        looks_at_values: whether a callback wants the values around batches, or may change them there.
        length: number of batches in the dataset, if it is known.
        passes: passes over the dataset.
        on_run: function that is called with the results of the steps of each run.
        grouping: how many steps are chosen to be one run; None for as many as the model was compiled with.
        before_first: function that is called before the first step, after the hooks that precede it.
    """

    model: Any
    session: Session
    hooks: Any
    counts: DistributedMetrics
    values: ModelValues
    looks_at_values: bool
    length: int | None
    passes: DataPasses | FedBatches
    on_run: Callable[[Sequence[StepResult]], None]
    grouping: StepsInRun | None = None
    before_first: Callable[[], None] | None = None
    _times: StepTimes = field(init=False, default_factory=StepTimes)
    _batches_taken: int = field(init=False, default=0)  # of the present pass
    _in_pass: bool = field(init=False, default=False)
    _ended: bool = field(init=False, default=False)

    def run(self, epoch: int, steps: int | None, is_interrupted: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """Train for an epoch, without its validation.

        Args:
            epoch: number of the epoch.
            steps: number of steps; None for a pass over the dataset.
            is_interrupted: function that tells after a step whether it is to be the last one; the model then has its
                values.

        Returns:
            The logs of the epoch.
        """
        self.model.reset_metrics()
        self.counts.reset(self.session)
        self.hooks.on_epoch_begin(epoch)
        self.counts.changed()  # an evaluation in it leaves its counts in the metrics, in Keras, too
        self.values.copy_changes_to_workers()  # a learning rate; what was put back at the end of the epoch before
        self.passes.epoch_begins()
        if steps is None or not self._in_pass:
            self._begin_pass()
        logs: Any = {}
        number, length = 0, self.length if steps is None else steps
        while length is None or number < length:
            wanted = self._wanted(number, length)
            done, logs = self._between_calls(number, wanted, logs)
            if not done:
                self._in_pass = self._batches_taken == self.length  # Keras notices the end of the others by an error
                if number == 0:
                    self._end_training()
                elif steps is not None:
                    warn_user(
                        f"the data ended before the {steps} steps of an epoch: the epoch ends there. The next one "
                        "begins a dataset again (dataset.repeat() lets it go on); of a generator nothing is left"
                    )
                break
            if is_interrupted():
                self.values.copy_to_model()
                return self.counts.logs(logs)
            if self.model.stop_training:
                break
            number += wanted if self.grouping is None else done
        if self._batches_taken == self.length and self._in_pass and not self.model.stop_training:
            self._end_of_pass(goes_on=steps is not None)
        if not self.model.stop_training:
            self.passes.epoch_ends()
        self.values.copy_to_model()
        return self.counts.logs(logs)

    @property
    def step_s(self) -> float | None:
        """Median seconds of a step, without the first ones, in which TensorFlow gets ready; None before."""
        return self._times.step_s

    @property
    def data_wait_s(self) -> float:
        """Median seconds of such a step in which it waits for its data."""
        return self._times.data_wait_s

    @property
    def steps_in_run(self) -> int:
        """Number of steps that are one run."""
        return self.passes.steps_in_run(self._steps_between_calls)

    @property
    def _steps_between_calls(self) -> int:
        """Number of steps from one call of callbacks to the next."""
        return self.model.steps_per_execution if self.grouping is None else self.grouping.count

    def _wanted(self, number: int, length: int | None) -> int:
        """Number of steps until the next call of callbacks: in Keras the last ones may go beyond the epoch.

        Args:
            number: number of steps of the epoch before.
            length: number of steps of the epoch, if it is known.
        """
        count = self._steps_between_calls
        return count if self.grouping is None or length is None else min(count, length - number)

    @property
    def ready_s(self) -> float:
        """About how many seconds TensorFlow will take to get ready for such a run; see `Session.ready_s`."""
        return self.session.ready_s(self.steps_in_run)

    def _end_training(self) -> None:
        """End a training whose data is used up; an epoch without a step would have no loss to report."""
        warn_user(
            "the data has ended, so the training does: a generator gives its batches once. Let it give the batches of "
            "all epochs (with steps_per_epoch=), or give a keras.utils.PyDataset, which begins anew in each epoch"
        )
        self.model.stop_training = True

    def _begin_pass(self) -> None:
        self.passes.begin()
        self._batches_taken, self._ended, self._in_pass = 0, False, True

    def _end_of_pass(self, goes_on: bool) -> None:
        """Do what Keras does when it has read all of the data: it makes another iterator, to read it or not."""
        if goes_on:
            self._begin_pass()
        else:
            self.passes.leave_one_out()
            self._in_pass = False

    def _between_calls(self, number: int, wanted: int, logs: Any) -> tuple[int, Any]:
        """The steps between two calls of callbacks, as `_some_steps`; none if the data has ended."""
        if self._batches_taken == self.length:
            return 0, logs
        self._before(number)
        if self.before_first is not None:
            self.before_first()
            self.before_first = None
        done, logs = self._some_steps(wanted, logs)
        if done:
            self._after(number + (wanted if self.grouping is None else done) - 1, logs)
        return done, logs

    def _before(self, number: int) -> None:
        self.hooks.on_train_batch_begin(number)
        if self.looks_at_values:
            self.counts.changed()
            self.values.copy_changes_to_workers()

    def _some_steps(self, wanted: int, logs: Any) -> tuple[int, Any]:
        """Run as many steps as there are between calls of callbacks; their number, and the logs of the last."""
        done = 0
        in_run = self.steps_in_run
        while done < wanted and not self._ended:
            began_s, waited_s = time.perf_counter(), self.session.data_wait_s
            try:
                results = self.passes.steps(in_run if wanted - done >= in_run else 1)
            except EndOfData:
                self._ended = True
                break
            run_s = time.perf_counter() - began_s
            self._times.note(run_s, self.session.data_wait_s - waited_s, len(results))
            done += len(results)
            self._batches_taken += len(results)
            self.passes.took(len(results))
            self.values.trained()
            self.on_run(results)
            if self.grouping is not None:
                self.grouping.note(len(results))
            for result in results:
                logs = self.counts.after(result)
        return done, logs

    def _after(self, last: int, logs: Any) -> None:
        if self.looks_at_values:
            self.values.copy_to_model()
        self.hooks.on_train_batch_end(last, logs)
