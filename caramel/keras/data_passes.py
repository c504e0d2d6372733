"""The passes over a dataset that Keras' own `fit` makes, so that shuffles give their examples in Keras' order.

A shuffle draws a new order for each iterator over its dataset, and goes on doing so for as long as the dataset lives.
Keras makes an iterator at the start of an epoch and, where it knows the length of the data, another one at its end,
which it leaves unread unless ``steps_per_epoch`` is given. So most epochs have every other order, and a second call
of `fit` on the same dataset goes on where the first has ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from caramel.data.components import is_dataset
from caramel.runtime.session import Session

_batches_read: WeakKeyDictionary[Any, list[int]] = WeakKeyDictionary()
"""For each dataset that was trained on: number of batches that were read of each iterator over it, in order."""


@dataclass
class DataPasses:
    """Passes of one training over its dataset.

    Attributes:
        session: session whose workers read the dataset.
        dataset: dataset as the user gave it; a function that makes each worker's own has no passes before this one.
    """

    session: Session
    dataset: Any
    _unread: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._unread = list(self._history)

    @property
    def _history(self) -> list[int]:
        return _batches_read.setdefault(self.dataset, []) if is_dataset(self.dataset) else []

    def begin(self) -> None:
        """Let the next step take the first batch of a new pass."""
        if self._unread:
            self.session.skip_data_passes(self._unread)
            self._unread = []
        else:
            self.session.restart_data()
        self._make_iterator()

    def leave_one_out(self) -> None:
        """Note a pass that is begun, and never read."""
        if is_dataset(self.dataset):
            self._make_iterator()
            self._unread.append(0)

    def took(self, batches: int) -> None:
        """Note that batches of the present pass were read."""
        if self._history:
            self._history[-1] += batches

    def _make_iterator(self) -> None:
        """Let the user's own dataset move on, too, for whoever reads it next."""
        if is_dataset(self.dataset):
            iter(self.dataset)
            self._history.append(0)
