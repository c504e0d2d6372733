"""Element updates: which updates work on one element at a time, so that each worker can make its own part of one.

Such an update of some elements of a parameter needs these elements of the gradient, of the parameter and of its slots,
and numbers that are the same for all. So a worker that owns some elements needs only their slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caramel.analyzers.step.kept import once_per_model
from caramel.analyzers.step.update_graph import ELEMENT_WISE, ELEMENT_WISE_WRITES, UpdateGraph, update_graph
from caramel.errors import InputError
from caramel.graph import ops
from caramel.graph.graph import format_input, node_of, tensor_name
from caramel.model import Gradient, Model, Variable


@dataclass(frozen=True)
class ElementUpdate:
    """An update of which each worker can make a part, by names of the Model's graph.

    Attributes:
        gradient: name of the gradient.
        parameter: name of the variable that it updates.
        slots: names of the variables that only the update uses, of the parameter's shape.
        nodes: ops that work on elements, and so on a part of them.
        reads: those among them that read the parameter, for nothing but the update.
        shared_reads: tensors with the parameter's value that others read, too; no update of the step is in them.
        writers: ops among the nodes that write the parameter.
        after: the writers, and those among the nodes that come after one.
        other_bits: why a part may have other bits than the same elements of the whole; "" where it has not.
    """

    gradient: str
    parameter: str
    slots: tuple[str, ...]
    nodes: frozenset[str]
    reads: tuple[str, ...]
    shared_reads: tuple[str, ...]
    writers: tuple[str, ...]
    after: frozenset[str]
    other_bits: str = ""


@once_per_model
def element_updates(model: Model) -> tuple[Mapping[str, ElementUpdate], Mapping[str, str]]:
    """The updates that can be sharded, and why others cannot, by the names of their gradients.

    Args:
        model: the single-device step.
    """
    whole, updates, reasons = update_graph(model), {}, {}
    for gradient in model.gradients:
        try:
            updates[gradient.name] = _update(whole, gradient)
        except InputError as error:
            reasons[gradient.name] = str(error)
    return updates, reasons


def _update(whole: UpdateGraph, gradient: Gradient) -> ElementUpdate:
    """The update of a gradient.

    Raises:
        InputError: it cannot be sharded; with the reason.
    """
    if gradient.is_sparse or gradient.shape != whole.model.variable_by_name[gradient.parameter].shape:
        raise InputError("it is sparse")
    parameter = whole.parameter(gradient)
    if not parameter.shape:
        raise InputError("it is that of a single number")
    if gradient.is_rounded:
        raise InputError("its sum is rounded to float16, as it is on one device")
    return _Update(whole, gradient, parameter).found()


class _Update:
    """What belongs to one update: found forward from the gradient, and backward from what is written."""

    def __init__(self, whole: UpdateGraph, gradient: Gradient, parameter: Variable) -> None:
        self._whole, self._graph, self._gradient, self._parameter = whole, whole.graph, gradient, parameter
        self._tensor = tensor_name(gradient.tensor)
        self._nodes: dict[str, None] = {}
        self._slots: dict[str, None] = {}  # handles
        self._pending: list[str] = []

    def found(self) -> ElementUpdate:
        """See `ElementUpdate`."""
        readers = self._graph.readers(self._gradient.tensor)
        for reader in readers:
            if not self._gradient.consumers or reader in self._gradient.consumers:
                self._add(reader)
        self._add_users(self._parameter.node, writers_only=True)
        while self._pending:
            self._expand(self._pending.pop())
        reads, shared_reads = self._reads()
        for tensor in shared_reads:
            del self._nodes[node_of(tensor)]  # it reads all of the parameter, as ever
        self._whole.check_by_itself(self._gradient, self._nodes)
        writers = tuple(n for n in self._nodes if self._whole.writes(n, self._parameter.node))
        if not writers:
            raise InputError("nothing that it is used for writes its parameter")
        after = self._graph.descendants(writers)
        return ElementUpdate(
            self._gradient.name,
            self._parameter.name,
            tuple(self._whole.variable(handle).name for handle in self._slots),
            frozenset(self._nodes),
            reads,
            shared_reads,
            writers,
            frozenset(n for n in self._nodes if n in after),
            min((reason for n in self._nodes if (reason := self._whole.other_bits(n, self._nodes))), default=""),
        )

    def _add(self, name: str) -> None:
        if name in self._nodes:
            return
        node = self._graph[name]
        if node.op not in ELEMENT_WISE and node.op not in ELEMENT_WISE_WRITES and node.op != "ReadVariableOp":
            raise InputError(f"op {name!r} ({node.op}) does not work on one element at a time")
        self._whole.check(node)
        self._nodes[name] = None
        self._pending.append(name)

    def _add_users(self, handle: str, writers_only: bool) -> None:
        for user, _ in self._graph.consumers[handle]:
            if not writers_only or self._whole.writes(user, handle):
                self._add(user)

    def _expand(self, name: str) -> None:
        """What an op of the update needs of elements, and what follows from its result."""
        node = self._graph[name]
        for producer, index in ops.data_inputs(node):
            tensor = tensor_name(format_input(producer, index))
            if tensor == self._tensor:
                continue
            if self._graph[producer].op == ops.VARIABLE:
                self._add_handle(name, producer)
            elif self._is_whole(name, tensor):
                self._add(producer)
        if node.op == "ReadVariableOp" and node_of(node.input[0]) == self._parameter.node:
            return  # whoever else reads it gets the value as it was, see `_reads`
        for reader in self._graph.data_readers(name):
            self._add(reader)

    def _add_handle(self, name: str, handle: str) -> None:
        variable = self._whole.variable(handle)
        if handle == self._parameter.node or handle in self._slots:
            return
        if variable.shape != self._parameter.shape:
            if self._whole.writes(name, handle):
                raise InputError(f"op {name!r} ({self._graph[name].op}) writes {variable.name!r}, of another shape")
            return
        self._whole.check_slot(name, variable)
        self._slots[handle] = None
        self._add_users(handle, writers_only=False)

    def _is_whole(self, name: str, tensor: str) -> bool:
        """Whether an input has the parameter's elements; otherwise it is one number.

        Raises:
            InputError: it is neither.
        """
        shape = self._whole.shape(tensor)
        if shape == self._parameter.shape and shape != ():
            return True
        if shape == ():
            return False
        raise InputError(
            f"op {name!r} ({self._graph[name].op}) needs {tensor!r}, of shape {'unknown' if shape is None else shape}"
        )

    def _reads(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Reads of the parameter for the update only, and the tensors of those for others, too."""
        own, shared = [], []
        handle = self._parameter.node
        after_writes = self._graph.descendants(
            user for user, _ in self._graph.consumers[handle] if self._whole.writes(user, handle)
        )
        for name in self._nodes:
            node = self._graph[name]
            if node.op != "ReadVariableOp" or node_of(node.input[0]) != handle:
                continue
            readers = self._graph.data_readers(name)
            if all(reader in self._nodes for reader in readers):
                own.append(name)
                continue
            if name in after_writes:
                raise InputError(f"op {name!r} reads the parameter after a part of its update, also for others")
            shared.append(tensor_name(name))
        return tuple(own), tuple(shared)


def writers_before_gradient(model: Model, update: ElementUpdate) -> list[str]:
    """The ops of an update that write the parameter whether there is a gradient or not, such as a weight decay.

    They stay in their own step where the update waits for the next one.

    Args:
        model: the single-device step.
        update: the update.
    """
    graph = model.graph
    (gradient,) = (g for g in model.gradients if g.name == update.gradient)
    readers = {r for r in graph.readers(gradient.tensor) if not gradient.consumers or r in gradient.consumers}
    after = graph.descendants(readers)
    return [name for name in update.writers if name not in after]


def summary(reasons: Mapping[str, str], names: Sequence[str]) -> str:
    """Why some updates are not sharded, as one text.

    Args:
        reasons: reason by the name of the gradient.
        names: names of the gradients that it is about.
    """
    by_reason: dict[str, list[str]] = {}
    for name in names:
        by_reason.setdefault(reasons[name], []).append(name)
    return "; ".join(
        f"{names[0]!r}{f' and {len(names) - 1} others' if len(names) > 1 else ''}: {reason}"
        for reason, names in by_reason.items()
    )
