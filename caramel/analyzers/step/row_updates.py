"""Row updates: which embedding tables can be divided by rows, so that each row is read and updated where it is.

A step looks up the rows of its examples, and its update of a row needs that row of the parameter, of the slots and of
the gradient, and numbers that are the same for all. So one worker can have a row, hand it to who asks, and update it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caramel.analyzers.step.kept import once_per_model
from caramel.analyzers.step.row_lookups import GATHERS, gathers_rows, might_be_at_once
from caramel.analyzers.step.update_graph import ELEMENT_WISE, ELEMENT_WISE_WRITES, UpdateGraph, update_graph
from caramel.errors import InputError
from caramel.graph import ops
from caramel.graph.graph import NodeDef, format_input, node_of, tensor_name
from caramel.model import Gradient, Model, Variable

_SPARSE_WRITES = frozenset(
    {
        *("ResourceScatterAdd", "ResourceScatterSub", "ResourceScatterMul", "ResourceScatterDiv"),
        *("ResourceScatterMin", "ResourceScatterMax", "ResourceScatterUpdate"),
        *("ResourceSparseApplyAdadelta", "ResourceSparseApplyAdagrad", "ResourceSparseApplyAdagradDA"),
        *("ResourceSparseApplyAdagradV2", "ResourceSparseApplyCenteredRMSProp", "ResourceSparseApplyFtrl"),
        *("ResourceSparseApplyFtrlV2", "ResourceSparseApplyKerasMomentum", "ResourceSparseApplyMomentum"),
        *("ResourceSparseApplyProximalAdagrad", "ResourceSparseApplyProximalGradientDescent"),
        "ResourceSparseApplyRMSProp",
    }
)
"""Ops that write some rows of a variable, each from the same row of the inputs."""

SLICE_OPS = frozenset({*_SPARSE_WRITES, "Unique", "UnsortedSegmentSum"})
"""Ops of updates that take the longer the more slices there are."""

_KNOWN = frozenset(
    {
        *ELEMENT_WISE,
        *ELEMENT_WISE_WRITES,
        *_SPARSE_WRITES,
        *GATHERS,
        *("ReadVariableOp", "Shape", "Size", "StridedSlice", "Unique", "UnsortedSegmentSum"),
    }
)
"""Ops that may be part of the update of a table."""


class _What(enum.Enum):
    """What a tensor of an update has, as far as rows go."""

    ROWS = "a row for each index"
    TABLE = "all rows"
    INDEX = "indices of rows"
    POSITION = "places in other indices"
    COUNT = "the number of indices"
    SHAPE = "the shape of indices"


_Kind = tuple[_What, str]
"""What a tensor has, and the tensor of the indices that it is about."""


@dataclass(frozen=True)
class Lookup:
    """An op that looks up rows.

    Attributes:
        node: name of the op.
        indices: tensor with their indices, of any shape.
        index_dtype: its element type.
    """

    node: str
    indices: str
    index_dtype: str


@dataclass(frozen=True)
class RowUpdate:
    """A table that can be divided by rows, and its update, by names of the Model's graph.

    Attributes:
        gradient: name of the gradient.
        parameter: name of the table.
        slots: names of the variables that only the update uses, with a row for each of the table.
        lookups: ops of the step that look up rows, all of them before the update.
        shapes: ops that have the shape of the table.
        nodes: ops of the update, which work on rows.
        counts: inputs of these ops that are the number of rows of the table, as (op, position).
        writers: ops among the nodes that write the table or a slot.
        whole: ops among the nodes that work on all rows, not only on those that examples have.
        other_bits: why a part may have other bits than the same rows of the whole; "" where it has not.
    """

    gradient: str
    parameter: str
    slots: tuple[str, ...]
    lookups: tuple[Lookup, ...]
    shapes: tuple[str, ...]
    nodes: frozenset[str]
    counts: tuple[tuple[str, int], ...]
    writers: tuple[str, ...]
    whole: frozenset[str] = frozenset()
    other_bits: str = ""


@once_per_model
def row_updates(model: Model) -> tuple[Mapping[str, RowUpdate], Mapping[str, str]]:
    """The tables that can be divided by rows, and why others cannot, by the names of their sparse gradients.

    Args:
        model: the single-device step.
    """
    updates, reasons = {}, {}
    for gradient in model.gradients:
        if gradient.is_sparse:
            try:
                updates[gradient.name] = _update(update_graph(model), gradient)
            except InputError as error:
                reasons[gradient.name] = str(error)
    return updates, reasons


def _update(whole: UpdateGraph, gradient: Gradient) -> RowUpdate:
    """The update of a sparse gradient.

    Raises:
        InputError: its table cannot be divided; with the reason.
    """
    parameter = whole.parameter(gradient)
    if parameter.part is not None:
        raise InputError("it is a part of a larger table")
    if gradient.sources:
        raise InputError("the program adds up several gradients of it before it uses them")
    if gradient.shared_rows:
        raise InputError("all workers need the same rows of it")
    return _Update(whole, gradient, parameter).found()


class _Update:
    """What belongs to the update of one table: what follows from the gradient, and what uses the table or a slot."""

    def __init__(self, whole: UpdateGraph, gradient: Gradient, parameter: Variable) -> None:
        self._whole, self._graph, self._gradient, self._parameter = whole, whole.graph, gradient, parameter
        self._values, self._indices = tensor_name(gradient.tensor), tensor_name(gradient.indices or "")
        self._nodes: dict[str, None] = {}
        self._pending: list[str] = []
        self._slots: dict[str, None] = {}  # handles
        self._lookups: dict[str, Lookup] = {}
        self._shapes: dict[str, None] = {}
        self._counts: list[tuple[str, int]] = []
        self._kinds: dict[str, list[_Kind]] = {}

    def found(self) -> RowUpdate:
        """See `RowUpdate`."""
        for tensor in (self._values, self._indices):
            for reader in self._graph.readers(tensor):
                if not self._gradient.consumers or reader in self._gradient.consumers:
                    self._add(reader)
        self._follow()
        for user, _ in self._graph.consumers[self._parameter.node]:
            self._use(user)
        self._follow()
        for name in self._graph.order:
            if name in self._nodes:
                self._kinds[name] = self._kinds_of(self._graph[name])
        writers = tuple(n for n in self._nodes if ops.is_variable_write(self._graph[n]))
        if not any(self._whole.writes(name, self._parameter.node) for name in writers):
            raise InputError("nothing that it is used for writes its parameter")
        for name in self._nodes:  # which has turned out to be a part of the update
            self._lookups.pop(name, None)
        for name in (*self._lookups, *self._shapes):
            self._whole.check(self._graph[name])
        self._check_before(writers)
        return RowUpdate(
            self._gradient.name,
            self._parameter.name,
            tuple(self._whole.variable(handle).name for handle in self._slots),
            tuple(self._lookups.values()),
            tuple(self._shapes),
            frozenset(self._nodes),
            tuple(self._counts),
            writers,
            frozenset(name for name in self._nodes if self._is_about_table(name)),
            min((reason for n in self._nodes if (reason := self._whole.other_bits(n, self._nodes))), default=""),
        )

    def _is_about_table(self, name: str) -> bool:
        """Whether an op works on all rows."""
        return self._graph[name].op in ELEMENT_WISE_WRITES or (_What.TABLE, "") in self._kinds[name]

    def _check_before(self, writers: Sequence[str]) -> None:
        """Refuse a lookup of rows that the step has already updated: the asker would have to wait for their owners."""
        own = {name for name in writers if self._whole.writes(name, self._parameter.node)}
        for name, lookup in self._lookups.items():
            if not own.isdisjoint(self._graph.ancestors([name])):
                raise InputError(f"op {name!r} ({self._graph[name].op}) looks up rows after their update")
            read = node_of(self._graph[name].input[0])
            if read != self._parameter.node and not might_be_at_once(self._whole.model, read, name):
                raise InputError(f"op {name!r} ({self._graph[name].op}) needs what is written after the table was read")
            if node_of(lookup.indices) in self._nodes:
                raise InputError(f"op {name!r} ({self._graph[name].op}) needs a part of the update")

    # -- which ops there are -----------------------------------------------------------------

    def _add(self, name: str) -> None:
        if name in self._nodes:
            return
        node = self._graph[name]
        if node.op not in _KNOWN:
            raise InputError(f"op {name!r} ({node.op}) does not work on one row at a time")
        self._whole.check(node)
        self._nodes[name] = None
        self._pending.append(name)

    def _follow(self) -> None:
        """Add what follows from the ops that there are, and what uses their variables."""
        while self._pending:
            name = self._pending.pop()
            for producer, _ in ops.data_inputs(self._graph[name]):
                if self._graph[producer].op == ops.VARIABLE and producer != self._parameter.node:
                    self._add_handle(name, producer)
            is_read = self._is_read(name)
            for reader in self._graph.data_readers(name):
                if is_read:
                    self._use_value(name, reader)
                else:
                    self._add(reader)

    def _is_read(self, name: str) -> bool:
        """Whether an op reads the whole table."""
        node = self._graph[name]
        return node.op == "ReadVariableOp" and node_of(node.input[0]) == self._parameter.node

    def _add_handle(self, name: str, handle: str) -> None:
        variable = self._whole.variable(handle)
        if handle in self._slots:
            return
        if len(variable.shape) != len(self._parameter.shape) or variable.shape[0] != self._parameter.shape[0]:
            if self._whole.writes(name, handle):
                raise InputError(f"op {name!r} ({self._graph[name].op}) writes {variable.name!r}, of another shape")
            return
        self._whole.check_slot(name, variable)
        self._slots[handle] = None
        for user, _ in self._graph.consumers[handle]:
            self._add(user)

    def _use(self, name: str) -> None:
        """Take what uses the handle of the table."""
        node = self._graph[name]
        if name in self._nodes:
            return
        if node.op == "ResourceGather":
            self._look_up(node)
        elif node.op == "VariableShape":
            self._shapes[name] = None
        elif self._is_read(name):
            for reader in self._graph.data_readers(name):
                self._use_value(name, reader)
        else:
            self._add(name)

    def _use_value(self, read: str, name: str) -> None:
        """Take what uses the value of the whole table."""
        node = self._graph[name]
        if name in self._nodes:
            self._add(read)
        elif node.op == "GatherV2" and node_of(node.input[0]) == read:
            self._look_up(node)
        elif node.op == "Shape":
            self._shapes[name] = None
        else:
            self._add(name)
            self._add(read)

    def _look_up(self, node: NodeDef) -> None:
        if not gathers_rows(self._graph, node):
            raise InputError(f"op {node.name!r} ({node.op}) looks up something else than rows")
        dtype = ops.dtype_name(node.attr["Tindices"].type)
        self._lookups[node.name] = Lookup(node.name, tensor_name(node.input[1]), dtype)

    # -- what they work on -------------------------------------------------------------------

    def _kinds_of(self, node: NodeDef) -> list[_Kind]:
        """What the results of an op of the update have.

        Raises:
            InputError: it does not work on one row at a time.
        """
        inputs = [self._kind(producer, index) for producer, index in ops.data_inputs(node)]
        result: Sequence[_Kind] | None
        if node.op == "ReadVariableOp":
            result = [(_What.TABLE, "")]
        elif node.op in ELEMENT_WISE:
            result = self._of_elements(node, inputs)
        elif node.op in ELEMENT_WISE_WRITES:
            result = [] if {kind for kind in inputs if kind} == {(_What.TABLE, "")} and self._fits(node) else None
        elif node.op in _SPARSE_WRITES:
            result = self._of_sparse_write(node, inputs)
        else:
            result = self._of_structure(node, inputs)
        if result is None:
            raise InputError(f"op {node.name!r} ({node.op}) does not work on one row at a time")
        return list(result)

    def _kind(self, producer: str, index: int) -> _Kind | None:
        """What an input has; None for what does not depend on rows."""
        tensor = tensor_name(format_input(producer, index))
        if tensor == self._values:
            return _What.ROWS, self._indices
        if tensor == self._indices:
            return _What.INDEX, self._indices
        if producer in self._kinds:
            return self._kinds[producer][index]
        if producer == self._parameter.node or producer in self._slots:
            return _What.TABLE, ""
        return None

    def _fits(self, node: NodeDef) -> bool:
        """Whether the inputs of an op that do not depend on rows are the same for each row."""
        rank = len(self._parameter.shape)
        for producer, index in ops.data_inputs(node):
            if self._kind(producer, index) is None and self._graph[producer].op != ops.VARIABLE:
                shape = self._whole.shape(tensor_name(format_input(producer, index)))
                if shape is None or not (len(shape) < rank or (len(shape) == rank and shape[0] == 1)):
                    return False
        return True

    def _of_elements(self, node: NodeDef, inputs: Sequence[_Kind | None]) -> Sequence[_Kind] | None:
        kinds = {kind for kind in inputs if kind is not None}
        if (
            len(kinds) != 1
            or not self._fits(node)
            or (node.op == "Select" and not self._chooses_elements(node, inputs))
        ):
            return None
        ((what, _),) = kinds
        if what is _What.INDEX:
            return [*kinds] if node.op in ("Cast", "Identity") else None
        return [*kinds] if what in (_What.ROWS, _What.TABLE) else None

    def _chooses_elements(self, node: NodeDef, inputs: Sequence[_Kind | None]) -> bool:
        """Whether an op of TensorFlow 1 chooses between elements, and not between rows, as it does by a vector."""
        condition = tensor_name(node.input[0])
        return (inputs[0] is not None and inputs[0] == inputs[1]) or self._whole.shape(condition) == ()

    def _of_sparse_write(self, node: NodeDef, inputs: Sequence[_Kind | None]) -> Sequence[_Kind] | None:
        sets = {indices for kind in inputs if kind and kind[0] in (_What.INDEX, _What.ROWS) for indices in [kind[1]]}
        whats = [kind[0] for kind in inputs if kind]
        allowed = {_What.TABLE, _What.INDEX, _What.ROWS}
        if len(sets) != 1 or set(whats) != allowed or whats.count(_What.INDEX) != 1 or whats.count(_What.ROWS) != 1:
            return None
        return [] if self._fits(node) else None

    def _of_structure(self, node: NodeDef, inputs: Sequence[_Kind | None]) -> Sequence[_Kind] | None:
        """What the results of an op have that is about indices."""
        first = inputs[0]
        if node.op in GATHERS and len(inputs) >= 2 and first == (_What.TABLE, ""):
            second = inputs[1]
            is_index = second is not None and second[0] is _What.INDEX
            return [(_What.ROWS, second[1])] if second and is_index and gathers_rows(self._graph, node) else None
        if node.op == "UnsortedSegmentSum":
            return self._of_sum(node, inputs)
        if first is None or any(inputs[1:]):
            return None
        what, indices = first
        if node.op == "Unique" and what is _What.INDEX:
            return [(_What.INDEX, tensor_name(node.name)), (_What.POSITION, tensor_name(node.name))]
        if node.op == "Shape" and what is _What.INDEX:
            return [(_What.SHAPE, indices)]
        if node.op == "Size" and what is _What.INDEX:
            return [(_What.COUNT, indices)]
        if node.op == "StridedSlice" and what is _What.SHAPE and self._whole.shape(tensor_name(node.name)) == ():
            return [(_What.COUNT, indices)]
        return None

    def _of_sum(self, node: NodeDef, inputs: Sequence[_Kind | None]) -> Sequence[_Kind] | None:
        """What a sum of slices by their indices has: a row for each different index, or all rows of a table."""
        values, places, count = inputs
        if values is None or places is None or values[0] is not _What.ROWS:
            return None
        if count is not None:
            is_sum = places == (_What.POSITION, count[1]) and count[0] is _What.COUNT
            return [(_What.ROWS, count[1])] if is_sum and self._source(count[1]) == values[1] else None
        shape = self._whole.shape(tensor_name(node.name))
        if places != (_What.INDEX, values[1]) or not shape or shape[0] != self._parameter.shape[0]:
            return None
        self._counts.append((node.name, 2))
        return [(_What.TABLE, "")]

    def _source(self, indices: str) -> str | None:
        """The indices of which a tensor has the different ones."""
        producer = self._graph[node_of(indices)]
        kind = self._kind(*next(iter(ops.data_inputs(producer)))) if producer.op == "Unique" else None
        return kind[1] if kind else None
