"""A step that changes Python state and uses it: on one device it runs in Python for each batch, here it is traced once.

What a plain Python function counts or draws in Python (a number of updates, noise of NumPy) is a constant of its
graph. Tracing it a second time shows that: the graph has another constant.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import numbers
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.errors import CaptureError, listed
from caramel.frontend.attributes import is_capture_attribute

MOST_DEPTH = 4
"""Depth of attributes and items below a function's own names to which its state is looked through."""

MOST_OBJECTS = 5_000
"""Number of objects that are looked through; with more, changed state may go without its name in the message."""

_MAX_ARRAY_BYTES = 2**20
"""Bytes of the largest array that is looked at; a larger one is data."""

_LIBRARIES = frozenset({"tensorflow", "keras", "numpy", "caramel", "absl", "scipy"})
"""Packages whose modules and classes keep no state that a step would use as a number."""

_RANDOM = ("random", "numpy.random")
"""Paths of the states of random numbers."""

_OF_KERAS = ("built",)
"""Attributes that Keras changes when it traces a model or an optimizer for the first time."""

_NAMES_ONLY = frozenset(
    {"_class", "_gradient_op_type", "_XlaScope", "shared_name", "container", "_output_shapes", "_user_specified_name"}
)
"""Attributes that may differ between two traces of one program."""


def python_values(function: Callable[..., Any]) -> dict[str, Any]:
    """The numbers, strings, flags and arrays that a function can reach, by a path such as ``adam.updates``.

    The states of Python's and NumPy's own random numbers are among them; an iterator counts as changed whenever it
    is looked at.

    Args:
        function: a Python function, method or callable object.
    """
    values: dict[str, Any] = {"random": random.getstate(), "numpy.random": repr(np.random.get_state(legacy=False))}
    seen: set[int] = set()
    stack: list[tuple[str, Any, int]] = list(reached(function, "self"))
    while stack and len(seen) < MOST_OBJECTS:
        path, value, depth = stack.pop()
        if isinstance(value, (numbers.Number, str, bytes, type(None))):
            values[path] = value
            continue
        if id(value) in seen or tf.is_tensor(value):
            continue
        seen.add(id(value))
        state = _state(value)
        if state is not None:
            values[path] = state
        elif isinstance(value, (FunctionType, MethodType)):
            stack += reached(value, path, depth)
        elif depth < MOST_DEPTH:
            stack += [(f"{path}{key}", child, depth + 1) for key, child in children(value)]
    return values


def _state(value: Any) -> Any:
    """What tells whether an object has changed that is not looked into; None for one that is."""
    if isinstance(value, Iterator):
        return object()  # it cannot be told: taken for changed
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return repr(value.get_state(legacy=False))
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.ndarray) and value.nbytes <= _MAX_ARRAY_BYTES:
        return repr(value.tolist()) if value.dtype == object else value.tobytes()
    if isinstance(value, (set, frozenset)):
        return len(value)
    return None


def reached(function: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Any, int]]:
    """What a function refers to: its object, defaults and attributes, what it closes over and the globals it names.

    Args:
        function: a Python function, method or callable object.
        path: how it is reached.
        depth: how deep it is.

    Returns:
        Triples of path, object and depth.
    """
    if isinstance(function, MethodType):
        yield "self", function.__self__, depth
        function = function.__func__
    if not isinstance(function, FunctionType):
        yield path, function, depth
        yield path, type(function).__call__, depth
        return
    own = dict(zip(reversed(_arguments(function.__code__)), reversed(function.__defaults__ or ())))
    own.update(function.__kwdefaults__ or {})
    own.update({f"{function.__name__}.{key}": value for key, value in vars(function).items()})
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        with suppress(ValueError):  # not assigned yet
            own[name] = cell.cell_contents
    names = sorted(_names(function.__code__))
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            own.update({f"{name}.{key}": vars(value)[key] for key in names if _is_users(value) and key in vars(value)})
        elif name in function.__globals__:
            own[name] = value
    for name, value in own.items():
        yield name, value, depth


def _arguments(code: CodeType) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount]


def _names(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*(_names(c) for c in inner))


def children(value: Any) -> Iterable[tuple[str, Any]]:
    """The items and attributes of an object, each with what leads to it.

    Args:
        value: the object.
    """
    if isinstance(value, Mapping):
        return [(" (its length)", len(value)), *((f"[{key!r}]", child) for key, child in list(value.items())[:100])]
    if isinstance(value, (list, tuple, deque)):
        items = list(itertools.islice(value, 100))
        return [(" (its length)", len(value)), *((f"[{number}]", child) for number, child in enumerate(items))]
    if isinstance(value, functools.partial):
        return [(f"({value.func.__name__})", value.func), ("", value.args), ("", value.keywords)]
    if isinstance(value, ModuleType):
        return []
    if isinstance(value, type):
        return _of_class(value)
    slots = [name for kind in type(value).__mro__ for name in _slots_of(kind) if hasattr(value, name)]
    attributes = getattr(value, "__dict__", None)
    own = dict(attributes) if isinstance(attributes, dict) else {}
    own.update({name: getattr(value, name) for name in slots})
    return [*((f".{key}", child) for key, child in own.items()), *_of_class(type(value))]


def _of_class(kind: type) -> list[tuple[str, Any]]:
    """The attributes of a class of the user's that are values, not methods."""
    if not _is_users(sys.modules.get(kind.__module__)):
        return []
    values = {key: child for key, child in vars(kind).items() if not key.startswith("__")}
    return [(f".{key}", child) for key, child in values.items() if not hasattr(child, "__get__")]


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if not name.startswith("__"))


def _is_users(module: Any) -> bool:
    """Whether a module is a file outside of the libraries that look at no state of a training step's."""
    package = getattr(module, "__name__", "").partition(".")[0]
    return package != "" and package not in _LIBRARIES and package not in sys.stdlib_module_names


@contextmanager
def random_numbers_kept() -> Iterator[None]:
    """Put the random numbers of Python and NumPy back to where they were before the context."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def changed_names(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The paths whose values differ, those of the user's own objects first.

    Args:
        before: values as `python_values` found them before a trace.
        after: those after it.
    """
    changed = [p for p in after if p in before and (type(before[p]), before[p]) != (type(after[p]), after[p])]
    return sorted(changed, key=lambda path: ("._" in path, path))


def is_own(path: str) -> bool:
    """Whether a path that `python_values` has found leads to something that a person has named.

    Args:
        path: the path.
    """
    is_private = "._" in path or path.startswith("_")
    return not is_private and path not in _RANDOM and path.rpartition(".")[2] not in _OF_KERAS


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
    refusal = CaptureError(
        f"the training step {name!r} {what}: its graph is another each time it is traced, and a captured step is "
        "traced once, so the value would stay as it is now. Keep it in a tf.Variable, draw random numbers with "
        "tf.random, or wrap the step in tf.function if it should stay"
    )
    refusal.may_pass_later = True
    raise refusal


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
