"""What a model keeps in Python, as it was before its step was traced."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

_OF_KERAS = frozenset({"built", "compiled", "stop_training", "train_function", "test_function", "predict_function"})
"""Attributes of any model that Keras changes."""


class PythonAttributes:
    """Numbers, texts and lists of these that are attributes of a model.

    Keras traces a step once, and what that changes in Python is changed once. Here a step may be traced several times:
    each begins with what was there before the first. A model that is not built yet may work out numbers as it is built,
    so it begins with what it has once it is; and what no model of its class has before stays.

    Args:
        model: a Keras model.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._before = _values_of(model) if model.built else None

    def restore(self) -> None:
        """Let the model have what it had, where that has changed; to be called before each trace."""
        if not self._model.built:
            return
        if self._before is None:
            self._before = _values_of(self._model)
            return
        for name, value in _values_of(self._model).items():
            if name not in self._before:
                if hasattr(type(self._model), name):  # what all models of the class have before
                    delattr(self._model, name)
            elif self._before[name] != value:
                setattr(self._model, name, _copied(self._before[name]))


def _values_of(model: Any) -> dict[str, Any]:
    """Copies of the numbers, texts and lists of these that are attributes of a model, by their names."""
    own = {name: value for name, value in vars(model).items() if not name.startswith("_") and name not in _OF_KERAS}
    return {name: _copied(value) for name, value in own.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    return value is None or isinstance(value, (numbers.Number, str, bytes))


def _copied(value: Any) -> Any:
    """A copy that nothing else changes; Keras has kinds of lists and dicts of its own."""
    if isinstance(value, list):
        return [_copied(each) for each in value]
    if isinstance(value, set):
        return set(value)
    return {key: _copied(each) for key, each in value.items()} if isinstance(value, Mapping) else value
