"""Names of what a traced step captures: variables, and tensors that are treated as such."""

from __future__ import annotations

import gc
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable, _UnreadVariable

from caramel.errors import UnsupportedError
from caramel.frontend.captured import RawVariable


@dataclass(frozen=True)
class Snapshot:
    """Initial values copied when the program was captured."""

    values: Mapping[str, np.ndarray]

    def load(self) -> Mapping[str, np.ndarray]:
        """The values."""
        return self.values


class Naming:
    """One name and one handle node for each captured variable, over all traced functions."""

    def __init__(self) -> None:
        self._by_handle: dict[int, RawVariable] = {}
        self.objects: dict[str, Any] = {}
        self._constants: dict[str, np.ndarray] = {}

    def copy(self) -> Naming:
        """The same names; more of them do not get into these."""
        made = Naming()
        made._by_handle.update(self._by_handle)
        made.objects.update(self.objects)
        made._constants.update(self._constants)
        return made

    @property
    def variables(self) -> tuple[RawVariable, ...]:
        """All variables seen, in the order of capture."""
        return tuple(self._by_handle.values())

    def of_handle(self, handle: Any) -> RawVariable | None:
        """The variable of a resource handle."""
        return self._by_handle.get(id(handle))

    def variable(self, handle: Any, used: UsedVariables) -> RawVariable:
        """Name the variable behind a captured resource.

        Raises:
            UnsupportedError: it is no variable, or one without a static shape.
        """
        known = self.of_handle(handle)
        if known is not None:
            return known
        found = used.of_handle(handle)
        if found.shape.rank is None or None in found.shape.as_list():
            raise UnsupportedError(f"variable {found.name!r} has no static shape; create it with a fixed shape")
        raw = self._add(
            id(handle),
            found.name.partition(":")[0],
            found.dtype.name,
            tuple(found.shape.as_list()),
            bool(found.trainable),
        )
        self.objects[raw.name] = found
        return raw

    def constant(self, tensor: Any, name: str) -> RawVariable:
        """Treat a captured eager tensor as a variable that nothing writes."""
        known = self._by_handle.get(id(tensor))
        if known is not None:
            return known
        raw = self._add(id(tensor), f"constants/{name}", tensor.dtype.name, tuple(tensor.shape.as_list()), False)
        self._constants[raw.name] = tensor.numpy()
        self.objects.setdefault(raw.name, tensor)  # keeps the tensor alive, so that its id stays its own
        return raw

    def _add(self, key: int, name: str, dtype: str, shape: tuple[int, ...], trainable: bool) -> RawVariable:
        unique = _unique(name, {v.name for v in self._by_handle.values()})
        node = "caramel.variables/" + re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", unique)
        node = _unique(node, {v.node for v in self._by_handle.values()})  # "a b" and "a_b" are two names
        raw = RawVariable(unique, node, dtype, shape, trainable)
        self._by_handle[key] = raw
        return raw

    def snapshot(self) -> Snapshot:
        """Copy the current values."""
        values = dict(self._constants)
        for name, variable in self.objects.items():
            if name not in values:
                values[name] = variable.numpy().copy()
        return Snapshot(values)

    @property
    def live(self) -> dict[str, Any]:
        """The user's variable objects by name."""
        return {name: v for name, v in self.objects.items() if name not in self._constants}


class UsedVariables:
    """The variables whose handles a traced function captures.

    Args:
        func_graph: of the function.
    """

    def __init__(self, func_graph: Any) -> None:
        self._func_graph = func_graph
        self._named = _by_handle(func_graph.variables)

    def of_handle(self, handle: Any) -> Any:
        """The variable with a handle that was captured.

        Raises:
            UnsupportedError: it is that of something else.
        """
        found = self._named.get(id(handle))
        if found is None:
            found = self._all.get(id(handle))
        if found is None:
            reader = _reader(self._func_graph, handle)
            raise UnsupportedError(
                f"op {reader.name!r} ({reader.type}) uses a resource that is no variable (a lookup table, an iterator "
                "or a queue), which cannot be copied to every worker yet. Look values up outside the step and feed "
                "them; pass a dataset as data= to caramel.capture, and let the step take its elements"
            )
        return found

    @cached_property
    def _all(self) -> Mapping[int, Any]:
        """The variables of this process by their handles; finding them takes a tenth of a second and more.

        TensorFlow tells a function's variables by their being read or assigned through the object. Optimizers of
        TensorFlow 1 give their slots' handles to ops themselves.
        """
        return _by_handle(each for each in gc.get_objects() if issubclass(type(each), BaseResourceVariable))


def _by_handle(variables: Iterable[Any]) -> Mapping[int, Any]:
    """The variables by their handles' ids, the first one of each.

    What an assignment returned is none: it has the variable's handle, but no name of its own. Nor is what has no handle
    because it could not be made.
    """
    found: dict[int, Any] = {}
    for variable in variables:
        handle = getattr(variable, "handle", None)
        if handle is not None and not isinstance(variable, _UnreadVariable):
            found.setdefault(id(handle), variable)
    return found


def _unique(name: str, taken: Collection[str]) -> str:
    """A name that is not taken: this one, or this one with a number."""
    unique, number = name, 1
    while unique in taken:
        unique, number = f"{name}_{number}", number + 1
    return unique


def _reader(func_graph: Any, external: Any) -> Any:
    """The first op that reads a captured tensor."""
    internal = next(i for e, i in func_graph.captures if e is external)
    return next(iter(internal.consumers()), internal.op)
