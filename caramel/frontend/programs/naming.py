"""Names of the variables that a traced step captures, and of the tensors that it treats as variables."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable, _UnreadVariable

from caramel.errors import UnsupportedError
from caramel.frontend.captured import RawTable, RawVariable
from caramel.frontend.programs.keras_names import keras_names
from caramel.frontend.programs.tables import table_behind
from caramel.frontend.recording.automatic_names import Renaming
from caramel.graph.nodes import free_name
from caramel.util.arrays import array_of


@dataclass(frozen=True)
class Snapshot:
    """Initial values as they were when the program was captured.

    Attributes:
        values: arrays by variable name, or tensors, which stay as they are when TensorFlow changes their variables, and
            need no room of their own until then if they are on this host.
    """

    values: dict[str, Any]

    def forget(self, names: Iterable[str]) -> None:
        """Give up values that nobody will ask for, of variables that are about to change.

        Args:
            names: names of variables.
        """
        for name in names:
            self.values.pop(name, None)

    def load(self) -> Mapping[str, np.ndarray]:
        """The initial values by variable name; the arrays must not be written to."""
        return {name: array_of(value) for name, value in self.values.items()}


class Naming:
    """One name and one handle node for each captured variable, over all traced functions.

    Args:
        renaming: names that variables have in plans and traces.

    Attributes:
        objects: the captured variable objects, and the captured tensors that are treated as variables, by name.
    """

    def __init__(self, renaming: Renaming) -> None:
        self._renaming = renaming
        self._by_handle: dict[Any, RawVariable] = {}
        self.objects: dict[str, Any] = {}
        self._constants: dict[str, np.ndarray] = {}
        self._tables: dict[int, RawTable] = {}

    def copy(self) -> Naming:
        """A copy of the names; names that are added to it do not get into the original."""
        naming = Naming(self._renaming)
        naming._by_handle.update(self._by_handle)
        naming.objects.update(self.objects)
        naming._constants.update(self._constants)
        naming._tables.update(self._tables)
        return naming

    @property
    def tables(self) -> tuple[RawTable, ...]:
        """All lookup tables seen, in the order of capture."""
        return tuple(self._tables.values())

    @property
    def variables(self) -> tuple[RawVariable, ...]:
        """All variables seen, in the order of capture."""
        return tuple(self._by_handle.values())

    def of_handle(self, handle: Any) -> RawVariable | None:
        """The variable of a resource handle; None for a handle that has no name yet."""
        return self._by_handle.get(id(handle))

    def table(self, handle: Any) -> RawTable | None:
        """Name the lookup table behind a captured resource; None where it is none.

        Its keys and values are treated as variables that nothing writes, and checkpoints do not have.
        """
        if id(handle) in self._tables:
            return self._tables[id(handle)]
        content = table_behind(handle)
        if content is None:
            return None
        name = f"tables/{len(self._tables)}"
        parts = {}
        arrays = {"keys": (content.key_dtype, content.keys), "values": (content.value_dtype, content.values)}
        for part, (dtype, array) in arrays.items():
            raw = self._add((id(handle), part), f"{name}/{part}", dtype, array.shape, False, saved=False)
            self._constants[raw.name] = array
            self.objects[raw.name] = handle  # keeps it alive, so that its id stays its own
            parts[part] = raw
        table = RawTable(f"caramel.tables/{len(self._tables)}", parts["keys"], parts["values"])
        self._tables[id(handle)] = table
        return table

    def variable(self, handle: Any, used: UsedVariables) -> RawVariable:
        """Name the variable behind a captured resource.

        Args:
            handle: the captured resource handle.
            used: variables whose handles the traced function captures.

        Raises:
            UnsupportedError: it is no variable, or one without a static shape.
        """
        known_variable = self.of_handle(handle)
        if known_variable is not None:
            return known_variable
        variable = used.of_handle(handle)
        if variable.shape.rank is None or None in variable.shape.as_list():
            raise UnsupportedError(f"variable {variable.name!r} has no static shape; create it with a fixed shape")
        raw = self._add(
            id(handle),
            used.name_of(variable),
            variable.dtype.name,
            tuple(variable.shape.as_list()),
            bool(variable.trainable),
        )
        self.objects[raw.name] = variable
        return raw

    def constant(self, tensor: Any, name: str) -> RawVariable:
        """Treat a captured eager tensor as a variable that nothing writes.

        Args:
            tensor: the eager tensor.
            name: name of its placeholder in the traced function.
        """
        known_variable = self._by_handle.get(id(tensor))
        if known_variable is not None:
            return known_variable
        raw = self._add(id(tensor), f"constants/{name}", tensor.dtype.name, tuple(tensor.shape.as_list()), False)
        self._constants[raw.name] = tensor.numpy()
        self.objects.setdefault(raw.name, tensor)  # keeps the tensor alive, so that its id stays its own
        return raw

    def _add(
        self, key: Any, name: str, dtype: str, shape: tuple[int, ...], trainable: bool, saved: bool = True
    ) -> RawVariable:
        unique = free_name(name, {v.name for v in self._by_handle.values()})
        plan_name = free_name(self._renaming.of(unique), {v.plan_name for v in self._by_handle.values()})
        node = "caramel.variables/" + re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", plan_name)
        node = free_name(node, {v.node for v in self._by_handle.values()})  # "a b" and "a_b" are two names
        renamed = None if plan_name == unique else plan_name
        raw = RawVariable(unique, node, dtype, shape, trainable, saved, renamed=renamed)
        self._by_handle[key] = raw
        return raw

    def snapshot(self) -> Snapshot:
        """The current values of all variables."""
        values: dict[str, Any] = dict(self._constants)
        with tf.device("CPU:0"):
            for name, variable in self.objects.items():
                if name not in values:
                    values[name] = tf.identity(variable.read_value())
        return Snapshot(values)

    @property
    def live(self) -> dict[str, Any]:
        """The user's variable objects by name."""
        return {name: v for name, v in self.objects.items() if name not in self._constants}


class UsedVariables:
    """The variables whose handles a traced function captures.

    Args:
        func_graph: FuncGraph of the traced function.
        function: the Python function that was traced.
    """

    def __init__(self, func_graph: Any, function: Any) -> None:
        self._func_graph = func_graph
        self._function = function
        self._named = _by_handle(func_graph.variables)

    def of_handle(self, handle: Any) -> Any:
        """The variable object of a captured handle.

        Raises:
            UnsupportedError: the handle is not that of a variable.
        """
        variable = self._named.get(id(handle))
        if variable is None:
            variable = self._all.get(id(handle))
        if variable is None:
            reader = _reader(self._func_graph, handle)
            raise UnsupportedError(
                f"op {reader.name!r} ({reader.type}) uses a resource that is no variable and no lookup table (an "
                "iterator, a queue, a table of tensors), which cannot be copied to every worker. Feed the step its "
                "results; pass a dataset as data= to caramel.capture, and let the step take its elements"
            )
        return variable

    def name_of(self, variable: Any) -> str:
        """The name of a variable: that of Keras, if it is one of its, else TensorFlow's.

        TensorFlow's has no part of the layer where that makes its variables in a function that is traced.

        Args:
            variable: the variable object.
        """
        path = self._keras_names.get(id(variable))
        return str(variable.name).partition(":")[0] if path is None else path

    @cached_property
    def _keras_names(self) -> Mapping[int, str]:
        return keras_names(self._function)

    @cached_property
    def _all(self) -> Mapping[int, Any]:
        """All variables of this process by the ids of their handles; the search takes a tenth of a second and more.

        TensorFlow lists a function's variable only if the function reads or assigns it through the object. Optimizers
        of TensorFlow 1 give their slots' handles to ops themselves.
        """
        return _by_handle(
            candidate for candidate in gc.get_objects() if issubclass(type(candidate), BaseResourceVariable)
        )


def _by_handle(variables: Iterable[Any]) -> Mapping[int, Any]:
    """The variables by the ids of their handles; of several with one handle the first.

    The result of an assignment is not a variable: it has the variable's handle, but no name of its own. An object
    without a handle, because its construction failed, is not one either.
    """
    by_handle_id: dict[int, Any] = {}
    for variable in variables:
        handle = getattr(variable, "handle", None)
        if handle is not None and not isinstance(variable, _UnreadVariable):
            by_handle_id.setdefault(id(handle), variable)
    return by_handle_id


def _reader(func_graph: Any, external: Any) -> Any:
    """The first op that reads a captured tensor."""
    internal = next(i for e, i in func_graph.captures if e is external)
    return next(iter(internal.consumers()), internal.op)
