"""The names that Keras gives its variables, of the models, optimizers and metrics that a step reaches."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any

from caramel.frontend.programs.python_state import MOST_DEPTH, MOST_OBJECTS, children, reached


def keras_names(function: Any) -> Mapping[int, str]:
    """Keras' names of variables, by the ids of TensorFlow's objects of them.

    Args:
        function: the Python function that uses them, once they are there.
    """
    keras = sys.modules.get("keras")
    if keras is None or not hasattr(keras, "Variable"):
        return {}
    names: dict[int, str] = {}
    seen: set[int] = set()
    stack = list(reached(function, ""))
    while stack and len(seen) < MOST_OBJECTS:
        _, value, depth = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (keras.Layer, keras.Optimizer, keras.Metric, keras.Variable)):
            names |= {id(variable.value): variable.path for variable in _variables(value, keras.Variable)}
        elif isinstance(value, (FunctionType, MethodType)):
            stack += reached(value, "", depth)
        elif depth < MOST_DEPTH:
            stack += [("", child, depth + 1) for _, child in children(value)]
    return names


def _variables(value: Any, kind: Any) -> Iterator[Any]:
    """The variables of a Keras object, and those of a model's optimizer and metrics."""
    if isinstance(value, kind):
        yield value
    for part in (value, getattr(value, "optimizer", None), *getattr(value, "metrics", ())):
        yield from getattr(part, "variables", ())
