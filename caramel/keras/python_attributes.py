"""What a model keeps in Python, as it was before its step was traced."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from typing import Any

_OF_KERAS = frozenset({"built", "compiled", "stop_training", "train_function", "test_function", "predict_function"})
"""Attributes of any model that Keras changes."""

_ABSENT = object()


class PythonAttributes:
    """Numbers, texts and lists of these that are attributes of a model.

    Keras traces a step once, and what that changes in Python is changed once. Here a step may be traced several times:
    each begins with what was there before the first.

    Args:
        model: a Keras model.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._before = {name: _copied(value) for name, value in _plain(model)}

    def restore(self) -> None:
        """Let the model have what it had, where that has changed."""
        for name, value in dict(_plain(self._model)).items():
            before = self._before.get(name, _ABSENT)
            if before is _ABSENT:
                delattr(self._model, name)
            elif before != value:
                setattr(self._model, name, _copied(before))


def _plain(model: Any) -> Iterator[tuple[str, Any]]:
    for name, value in vars(model).items():
        if not name.startswith("_") and name not in _OF_KERAS and _is_plain(value):
            yield name, value


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
