"""The values of a model on workers that evaluate or predict, and what callbacks change in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from caramel.keras.callbacks import listed_callbacks, may_look_at_values
from caramel.keras.epochs import ModelValues
from caramel.keras.kept_sessions import KeptSession


@dataclass(frozen=True)
class ForwardValues:
    """The values that a model and its workers exchange in an evaluation or a prediction.

    Attributes:
        kept: the session.
        known: values with which the workers have begun, by name.
        may_change: whether there are callbacks, which may give the model other values.
        looks_at_values: whether one may do so around batches.
    """

    kept: KeptSession
    known: Mapping[str, Any]
    may_change: bool
    looks_at_values: bool

    @classmethod
    def of(cls, kept: KeptSession, callbacks: Any, what: str) -> ForwardValues:
        """Those of a session that has begun.

        Args:
            kept: the session.
            callbacks: those of the caller.
            what: what is done: ``"test"`` or ``"predict"``.
        """
        listed = listed_callbacks(callbacks)
        looks = any(may_look_at_values(callback, what) for callback in listed)
        return cls(kept, kept.taken_values(), bool(listed), looks)

    @cached_property
    def _of_model(self) -> ModelValues:
        return ModelValues(self.kept.session, self.kept.step.live, self.known)

    def after_hooks(self) -> None:
        """Give the workers what callbacks have changed, such as `keras.callbacks.SwapEMAWeights`."""
        if self.may_change:
            self._of_model.copy_changes_to_workers()

    def around(self, begins: Callable[[int], None]) -> Callable[[int], None]:
        """A hook before each batch that also gives the workers what it, or the one after the batch before, has changed.

        Args:
            begins: the hook, which takes the number of the batch.
        """

        def begin(number: int) -> None:
            begins(number)
            if self.looks_at_values:
                self._of_model.copy_changes_to_workers()

        return begin

    def take(self) -> None:
        """Give the model what the step itself has written besides metrics, such as the state of random numbers."""
        written = {name for name, _ in self.kept.distributed.model.updates}
        live = {name: variable for name, variable in self.kept.step.live.items() if name in written}
        if live:
            values = ModelValues(self.kept.session, live, self.known)
            values.trained()
            values.copy_to_model()
