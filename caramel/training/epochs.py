"""The steps of epochs, in the order of Keras' own `fit`, and the way of values between workers and model."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from caramel.errors import EndOfData
from caramel.runtime.session import Session
from caramel.training.counts import Counts


class Values:
    """The variables of a Keras model, and the workers' values of them.

    Args:
        session: runs the workers.
        live: the model's tf.Variables by name, without those of metrics.
        known: what the workers have.
    """

    def __init__(self, session: Session, live: Mapping[str, Any], known: Mapping[str, np.ndarray]) -> None:
        self._session = session
        self._live = live
        self._known = {name: known[name] for name in live}
        self._in_model = True

    def trained(self) -> None:
        """Note that the workers have gone on."""
        self._in_model = False

    def bring_back(self) -> None:
        """Give the model what the workers have, if they have gone on since then."""
        if self._in_model:
            return
        values = self._session.values()
        for name, variable in self._live.items():
            variable.assign(values[name])
            self._known[name] = values[name]
        self._in_model = True

    def take_changes(self) -> None:
        """Give the workers what callbacks have changed in the model."""
        now = {name: v.numpy() for name, v in self._live.items()}
        changed = {n: value for n, value in now.items() if not np.array_equal(value, self._known[n], equal_nan=True)}
        self._session.assign(changed)
        self._known.update(changed)


class Epochs:
    """Runs the epochs of a training.

    A dataset whose length is known ends where Keras takes it to end. Of others the end is only seen by
    asking for more, after the callbacks were told that a batch begins.

    Args:
        model: the Keras model.
        session: runs the workers.
        hooks: the CallbackList.
        counts: the metrics.
        values: the variables.
        looks_at_values: whether a callback wants the values around batches, or may change them there.
        length: number of batches in the dataset, if it is known.
    """

    def __init__(
        self,
        model: Any,
        session: Session,
        hooks: Any,
        counts: Counts,
        values: Values,
        looks_at_values: bool,
        length: int | None,
    ) -> None:
        self._model = model
        self._session = session
        self._hooks = hooks
        self._counts = counts
        self._values = values
        self._looks_at_values = looks_at_values
        self._length = length
        self._taken = 0  # of the present pass
        self._ended = False

    def run(self, epoch: int, steps: int | None) -> dict[str, Any]:
        """Train for an epoch, without its validation.

        Args:
            epoch: its number.
            steps: how many steps; None for a pass over the dataset.

        Returns:
            Its logs.
        """
        self._model.reset_metrics()
        self._counts.reset(self._session)
        self._hooks.on_epoch_begin(epoch)
        self._values.take_changes()  # a learning rate; what was put back at the end of the epoch before
        logs: Any = {}
        for first in self._firsts(steps):
            self._before(first)
            done, logs = self._some_steps(logs)
            if not done:
                self._ran_out(steps)
                break
            self._after(first, logs)
            if self._model.stop_training:
                break
        if self._taken == self._length:
            self._begin_again()
        self._values.bring_back()
        return self._counts.logs(logs)

    def _firsts(self, steps: int | None) -> Iterable[int]:
        """The numbers of the steps before which callbacks are called."""
        number, at_once = 0, self._model.steps_per_execution
        wanted = self._length if steps is None else steps
        while wanted is None or number < wanted:
            if self._taken == self._length:
                self._ran_out(steps)
                return
            yield number
            number += at_once

    def _begin_again(self) -> None:
        self._taken, self._ended = 0, False

    def _ran_out(self, steps: int | None) -> None:
        self._begin_again()
        if steps is not None:
            warnings.warn(
                f"the data ended before the {steps} steps of an epoch: the epoch ends there, and the next one begins "
                "the data again. Repeat the dataset (dataset.repeat()) if it should go on",
                stacklevel=5,
            )

    def _before(self, number: int) -> None:
        self._hooks.on_train_batch_begin(number)
        if self._looks_at_values:
            self._counts.changed()
            self._values.take_changes()

    def _some_steps(self, logs: Any) -> tuple[int, Any]:
        """The steps between two calls of callbacks: how many there were, and the logs of the last."""
        done = 0
        while done < self._model.steps_per_execution and not self._ended:
            try:
                result = self._session.step()
            except EndOfData:
                if self._taken == 0 and done == 0:
                    continue  # the end of the pass before; the next step begins another
                self._ended = True
                break
            done += 1
            self._taken += 1
            self._values.trained()
            logs = self._counts.after(result)
        return done, logs

    def _after(self, first: int, logs: Any) -> None:
        if self._looks_at_values:
            self._values.bring_back()
        self._hooks.on_train_batch_end(first + self._model.steps_per_execution - 1, logs)
