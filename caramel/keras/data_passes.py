"""The passes over a dataset that Keras' own `fit` makes, so that shuffles give their examples in Keras' order.

A shuffle draws a new order for each iterator over its dataset, and goes on doing so for as long as the dataset lives.
Keras makes an iterator at the start of an epoch and, where it knows the length of the data, another one at its end,
which it leaves unread unless ``steps_per_epoch`` is given. So most epochs have every other order, and a second call
of `fit` on the same dataset goes on where the first has ended. Datasets that are made from one shuffle (batches of it
in several calls, parts of it to train and to validate on) draw from it in turn.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from caramel.data.components import is_dataset
from caramel.errors import InputError
from caramel.runtime.session import Session
from caramel.runtime.step_result import StepResult
from caramel.util.user_warnings import warn_user


@dataclass
class _Pass:
    """An iterator over a dataset.

    Attributes:
        dataset: weak reference to the dataset.
        batches_read: number of batches that were read.
        is_users: whether the user's own code has made it; how much of it was read is not known then.
    """

    dataset: weakref.ref[Any]
    batches_read: int = 0
    is_users: bool = False


_passes_of_shuffle: WeakKeyDictionary[Any, list[_Pass]] = WeakKeyDictionary()
"""For each dataset that draws seeds: the passes over all datasets that are made from it, in order."""


_ANOTHER_ORDER = (
    "the dataset was read before the training, and its shuffles draw more than once in a pass: its examples come in "
    "another order than Keras' own fit would read them in"
)

_ALL = 2**62
"""Number of batches that stands for those of a whole pass."""


@dataclass
class DataPasses:
    """Passes of one training over its dataset.

    Attributes:
        session: session whose workers read the dataset.
        dataset: dataset as the user gave it; a function that makes each worker's own has no passes before this one.
    """

    session: Session
    dataset: Any
    _known_to_workers: int = field(init=False, default=0)  # number of passes that their shuffles have seen
    _present: _Pass | None = field(init=False, default=None)
    _iterator: Any = field(init=False, default=None)  # over the user's own dataset

    def begin(self) -> None:
        """Let the next step take the first batch of a new pass.

        Raises:
            InputError: shuffles have drawn orders for other datasets, too, that cannot be drawn on the workers.
        """
        before = _passes_before(self.dataset) if is_dataset(self.dataset) else []
        if unseen := before[self._known_to_workers :]:
            self._skip(unseen)
        else:
            self.session.restart_data()
        self._known_to_workers = len(before) + 1
        self._present = self._made()

    def _skip(self, passes: Sequence[_Pass]) -> None:
        """Let the workers' shuffles draw what theirs have drawn in passes that the workers have not made."""
        try:
            self.session.skip_data_passes([self._read_of(one) for one in passes])
        except InputError:
            if not any(one.is_users for one in passes):
                raise
            warn_user(_ANOTHER_ORDER)
            self.session.restart_data()

    def leave_one_out(self) -> None:
        """Note a pass that is begun, and never read."""
        self._present = self._made()

    def took(self, batches: int) -> None:
        """Note that batches of the present pass were read."""
        if self._present is None:
            return
        if self._present.batches_read == 0 and len(_shuffles(self.dataset)) > 1:
            next(self._iterator, None)  # a shuffle of a shuffle draws with the first element
        self._present.batches_read += batches

    def steps_in_run(self, wanted: int) -> int:
        """See `Session.steps_in_run`."""
        return self.session.steps_in_run(wanted)

    def steps(self, most: int) -> list[StepResult]:
        """Train on the next batches: one or more, as many as are one run.

        Args:
            most: largest number of batches.

        Raises:
            EndOfData: the pass has no further batch.
        """
        return self.session.steps_together(most)

    def epoch_begins(self) -> None:
        """The workers' data has no hooks."""

    def epoch_ends(self) -> None:
        """The workers' data has no hooks."""

    def _read_of(self, one: _Pass) -> int | None:
        return one.batches_read if one.dataset() is self.dataset and not one.is_users else None

    def _made(self) -> _Pass | None:
        """Let the user's own dataset move on, too, for whoever reads it next."""
        if not is_dataset(self.dataset):
            return None
        self._iterator = iter(self.dataset)
        return note_pass(self.dataset)


def note_pass(dataset: Any) -> _Pass:
    """Note an iterator over a dataset.

    Args:
        dataset: a tf.data.Dataset.

    Returns:
        The pass, in which to count what is read.
    """
    made = _Pass(weakref.ref(dataset))
    for shuffle in _shuffles(dataset):
        _passes_of_shuffle.setdefault(shuffle, []).append(made)
    return made


def note_read(dataset: Any) -> None:
    """Note an iterator that the user's own code has made: to look at a batch, or for a layer to adapt to the data.

    Args:
        dataset: a tf.data.Dataset.
    """
    note_pass(dataset).is_users = True


def note_evaluation(data: Any, steps: int | None, steps_at_once: int) -> None:
    """Note the iterators that Keras' ``evaluate`` makes.

    Args:
        data: what it evaluates on; only a tf.data.Dataset counts.
        steps: number of steps; None for a pass over the data.
        steps_at_once: ``steps_per_execution`` of the model.
    """
    if not is_dataset(data):
        return
    note_pass(data).batches_read = _ALL if steps is None else steps
    length = int(data.cardinality())
    if length >= 0 and (steps is None or -(-steps // steps_at_once) * steps_at_once >= length):
        note_pass(data)  # made at the end of data whose length is known, and never read


def _passes_before(dataset: Any) -> list[_Pass]:
    """The passes that the shuffles of a dataset have seen."""
    histories = [_passes_of_shuffle.get(shuffle, []) for shuffle in _shuffles(dataset)]
    if _are_uneven(histories) and any(one.is_users for history in histories for one in history):
        warn_user(_ANOTHER_ORDER)
        histories = [[one for one in history if not one.is_users] for history in histories]
    if _are_uneven(histories):
        raise InputError(
            "the dataset is made from several shuffles, of which one has been read for another dataset, too: its next "
            "order cannot be drawn on the workers. Make that other dataset, or this one, from shuffles of its own"
        )
    return histories[0] if histories else []


def _are_uneven(histories: Sequence[Sequence[_Pass]]) -> bool:
    return any(len(history) != len(histories[0]) for history in histories)


def _shuffles(dataset: Any) -> list[Any]:
    """The datasets in a pipeline that draw seeds for each iterator, each once."""
    return list({id(one): one for one in _pipeline(dataset) if _draws(one)}.values())


def _draws(dataset: Any) -> bool:
    return bool(getattr(dataset, "_reshuffle_each_iteration", False) or getattr(dataset, "_rerandomize", False))


def _pipeline(dataset: Any) -> Iterator[Any]:
    yield dataset
    for source in dataset._inputs():
        yield from _pipeline(source)
