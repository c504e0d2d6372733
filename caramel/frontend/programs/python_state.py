"""A step that changes Python state and uses it: on one device it runs in Python for each batch, here it is traced once.

What a plain Python function counts or draws in Python (a number of updates, noise of NumPy) is a constant of its
graph. Tracing it a second time shows that: the graph has another constant.
"""

from __future__ import annotations

import hashlib
import numbers
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.errors import CaptureError, listed
from caramel.frontend.attributes import is_capture_attribute

_MAX_DEPTH = 4
"""Depth of attributes and items below a function's own names to which its state is looked through."""

_MAX_OBJECTS = 5_000
"""Number of objects that are looked through; with more, changed state may go without its name in the message."""

_NAMES_ONLY = frozenset({"_class", "_gradient_op_type", "_XlaScope", "shared_name", "container", "_output_shapes"})
"""Attributes that may differ between two traces of one program."""


def python_values(function: Callable[..., Any]) -> dict[str, Any]:
    """The numbers, strings and flags that a function can reach, by a path such as ``adam.updates``.

    The states of Python's and NumPy's own random numbers are among them; an iterator counts as changed whenever it
    is looked at.

    Args:
        function: a Python function, method or callable object.
    """
    values: dict[str, Any] = {"random": random.getstate(), "numpy.random": repr(np.random.get_state(legacy=False))}
    seen: set[int] = set()
    stack: list[tuple[str, Any, int]] = list(_reached(function))
    while stack and len(seen) < _MAX_OBJECTS:
        path, value, depth = stack.pop()
        if isinstance(value, (numbers.Number, str, bytes, type(None))):
            values[path] = value
            continue
        if id(value) in seen or isinstance(value, (ModuleType, type)) or tf.is_tensor(value):
            continue
        seen.add(id(value))
        if isinstance(value, Iterator):
            values[path] = object()
        elif isinstance(value, np.random.Generator):
            values[path] = repr(value.bit_generator.state)
        elif isinstance(value, (FunctionType, MethodType)):
            stack += _reached(value, depth)
        elif depth < _MAX_DEPTH:
            stack += [(f"{path}{key}", child, depth + 1) for key, child in _children(value)]
    return values


def _reached(function: Any, depth: int = 0) -> Iterator[tuple[str, Any, int]]:
    """What a function refers to: its object, the variables that it closes over and the globals that it names."""
    if isinstance(function, MethodType):
        yield "self", function.__self__, depth
        function = function.__func__
    if not isinstance(function, FunctionType):
        yield "self", function, depth
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents, depth
        except ValueError:  # not assigned yet
            continue
    for name in sorted(_names(function.__code__)):
        if name in function.__globals__:
            yield name, function.__globals__[name], depth


def _names(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*(_names(c) for c in inner))


def _children(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(" (its length)", len(value)), *((f"[{key!r}]", child) for key, child in list(value.items())[:100])]
    if isinstance(value, (list, tuple)):
        return [(" (its length)", len(value)), *((f"[{number}]", child) for number, child in enumerate(value[:100]))]
    attributes = getattr(value, "__dict__", None)
    return [(f".{key}", child) for key, child in attributes.items()] if isinstance(attributes, dict) else []


def changed_names(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The paths whose values differ, those of the user's own objects first.

    Args:
        before: values as `python_values` found them before a trace.
        after: those after it.
    """
    changed = [p for p in after if p in before and (type(before[p]), before[p]) != (type(after[p]), after[p])]
    return sorted(changed, key=lambda path: ("._" in path, path))


def refuse_python_state(first: Any, second: Any, changed: list[str], name: str) -> None:
    """Compare two traces of one step.

    Args:
        first: FuncGraph of one trace.
        second: FuncGraph of the other.
        changed: paths of the Python values that the step changed.
        name: name of the step.

    Raises:
        CaptureError: the graphs differ.
    """
    if fingerprint(first) == fingerprint(second):
        return
    what = f"changes {listed(changed, 3)} in Python, and uses it" if changed else "uses Python values that differ"
    raise CaptureError(
        f"the training step {name!r} {what}: its graph is another each time it is traced, and a captured step is "
        "traced once, so the value would stay as it is now. Keep it in a tf.Variable, draw random numbers with "
        "tf.random, or wrap the step in tf.function if it should stay"
    )


def fingerprint(graph: Any) -> str:
    """A digest of what a FuncGraph computes, whatever its nodes and functions are called.

    Args:
        graph: the graph.
    """
    graph_def = graph.as_graph_def()
    library = {f.signature.name: f for f in graph_def.library.function}
    captured = {internal.op.name: id(external) for external, internal in graph.captures}
    return _Digests(library).of(graph_def.node, captured)


class _Digests:
    """Digests of what nodes compute, with the functions that they call."""

    def __init__(self, library: Mapping[str, Any]) -> None:
        self._library = library
        self._by_function: dict[str, str] = {}

    def of(self, nodes: Iterable[Any], given: Mapping[str, int]) -> str:
        """The digest of some nodes; ``given`` has what stands for a name that is an argument or a captured tensor."""
        places = {node.name: number for number, node in enumerate(nodes)}
        hasher = hashlib.sha256()
        for node in nodes:
            inputs = [self._source(text, places, given) for text in node.input]
            op = self._function(node.op) if node.op in self._library else node.op
            attributes = [
                (key, self._attribute(node.attr[key]))
                for key in sorted(node.attr)
                if key not in _NAMES_ONLY and not is_capture_attribute(key)
            ]
            hasher.update(repr((op, given.get(node.name), inputs, attributes)).encode())
        return hasher.hexdigest()

    @staticmethod
    def _source(text: str, places: Mapping[str, int], given: Mapping[str, int]) -> tuple[Any, ...]:
        name, *output = text.lstrip("^").split(":")
        return text.startswith("^"), places.get(name), given.get(name), output

    def _attribute(self, value: Any) -> Any:
        functions = [value.func] if value.WhichOneof("value") == "func" else list(value.list.func)
        if functions:
            return [self._function(f.name) for f in functions]
        return value.SerializeToString(deterministic=True)

    def _function(self, name: str) -> str:
        if name not in self._by_function:
            self._by_function[name] = ""  # for a function that calls itself
            function = self._library.get(name)
            if function is not None:
                arguments = {argument.name: n for n, argument in enumerate(function.signature.input_arg)}
                self._by_function[name] = self.of(function.node_def, arguments)
        return self._by_function[name]
