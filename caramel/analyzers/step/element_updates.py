"""Element updates: which updates work on one element at a time, so that each worker can make its own part of one.

Such an update of some elements of a parameter needs these elements of the gradient, of the parameter and of its slots,
and numbers that are the same for all. So a worker that owns some elements needs only their slots.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from caramel.errors import InputError
from caramel.graph import ops
from caramel.graph.graph import Graph, NodeDef, format_input, node_of, tensor_name
from caramel.graph.guards import guards_of
from caramel.graph.shapes import Shape, static_shape, with_inferred_shapes
from caramel.model import Gradient, Model, Variable, VariableClass

_ELEMENT_WISE = frozenset(
    {
        *("Abs", "Add", "AddN", "AddV2", "Cast", "ClipByValue", "Cos", "Digamma", "Div", "DivNoNan", "Equal", "Erf"),
        *("Exp", "Expm1", "FloorDiv", "FloorMod", "Greater", "GreaterEqual", "Identity", "Inv", "IsFinite", "IsInf"),
        *("IsNan", "Less", "LessEqual", "Log", "Log1p", "LogicalAnd", "LogicalNot", "LogicalOr", "Maximum", "Minimum"),
        *("Mul", "MulNoNan", "Neg", "NotEqual", "OnesLike", "Pow", "PreventGradient", "RealDiv", "Reciprocal", "Relu"),
        *("Round", "Rsqrt", "Select", "SelectV2", "Sigmoid", "Sign", "Sin", "Snapshot", "Softplus", "Sqrt", "Square"),
        *("SquaredDifference", "StopGradient", "Sub", "Tanh", "Xdivy", "Xlogy", "ZerosLike"),
    }
)
"""Ops of which each element of the result needs the same element of the inputs, or inputs that are one number."""

_ELEMENT_WISE_WRITES = frozenset(
    {
        *("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"),
        *("ResourceApplyGradientDescent", "ResourceApplyMomentum", "ResourceApplyKerasMomentum", "ResourceApplyAdam"),
        *("ResourceApplyAdamWithAmsgrad", "ResourceApplyAdaMax", "ResourceApplyAdagrad", "ResourceApplyAdagradV2"),
        *("ResourceApplyAdagradDA", "ResourceApplyAdadelta", "ResourceApplyRMSProp", "ResourceApplyCenteredRMSProp"),
        *("ResourceApplyFtrl", "ResourceApplyFtrlV2", "ResourceApplyProximalGradientDescent"),
        *("ResourceApplyProximalAdagrad", "ResourceApplyAddSign", "ResourceApplyPowerSign"),
    }
)
"""Ops that write a variable's elements each from the same element of the inputs."""


_APPROXIMATE = frozenset(
    {
        *(
            "Cos",
            "Digamma",
            "Erf",
            "Exp",
            "Expm1",
            "Log",
            "Inv",
            "Log1p",
            "Pow",
            "Reciprocal",
            "Rsqrt",
            "Sigmoid",
            "Sin",
            "Softplus",
        ),
        *("Tanh", "Xdivy", "Xlogy", "ResourceApplyAdagrad", "ResourceApplyAdagradV2", "ResourceApplyAdagradDA"),
        *("ResourceApplyAdadelta", "ResourceApplyRMSProp", "ResourceApplyCenteredRMSProp", "ResourceApplyFtrl"),
        *("ResourceApplyFtrlV2", "ResourceApplyProximalAdagrad", "ResourceApplyAddSign", "ResourceApplyPowerSign"),
    }
)
"""Ops that compute, or may compute, what IEEE 754 does not round in one way: another code path may have other bits."""

_GROUPED = frozenset({"Add", "AddV2", "Div", "Mul", "RealDiv", "Sub"})
"""Ops of which several in a row may be grouped otherwise."""


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


def element_updates(model: Model) -> tuple[Mapping[str, ElementUpdate], Mapping[str, str]]:
    """The updates that can be sharded, and why others cannot, by the names of their gradients.

    Args:
        model: the single-device step.
    """
    kept = vars(model)  # the graph is gone through once, whoever asks
    if _KEPT not in kept:
        finder = _Finder(model)
        updates, reasons = {}, {}
        for gradient in model.gradients:
            try:
                updates[gradient.name] = finder.update(gradient)
            except InputError as error:
                reasons[gradient.name] = str(error)
        kept[_KEPT] = updates, reasons
    found: tuple[Mapping[str, ElementUpdate], Mapping[str, str]] = kept[_KEPT]
    return found


_KEPT = "_element_updates"
"""Attribute of a Model with what `element_updates` has found."""


class _Finder:
    def __init__(self, model: Model) -> None:
        self._model = model
        self._graph: Graph = with_inferred_shapes(model.graph)
        self._variables = {v.node: v for v in model.variables}
        self._guards = guards_of(model.graph)
        self._shape_of_gradient = {tensor_name(g.tensor): g.shape for g in model.gradients}
        self._wanted = {tensor_name(model.loss), *(tensor_name(tensor) for _, tensor in model.outputs)}
        self._parameters = [g.parameter for g in model.gradients]

    def update(self, gradient: Gradient) -> ElementUpdate:
        """The update of a gradient.

        Raises:
            InputError: it cannot be sharded; with the reason.
        """
        parameter = self._model.variable_by_name[gradient.parameter]
        if gradient.is_sparse or gradient.shape != parameter.shape:
            raise InputError("it is sparse")
        if self._parameters.count(gradient.parameter) > 1:
            raise InputError("its parameter has several gradients")
        if gradient.dtype != parameter.dtype or parameter.kind is not VariableClass.PARAMETER:
            raise InputError("its parameter is of another type")
        if not parameter.shape:
            raise InputError("it is that of a single number")
        return _Update(self._graph, gradient, parameter, self).found()

    @cached_property
    def _followed(self) -> Mapping[str, int]:
        """The gradients from whose results each node follows, by data or by order, as the bits of an integer.

        What a reader of a gradient's result gets of it is that gradient's alone.
        """
        readers: dict[tuple[str, str], int] = {}  # by reader and tensor
        for number, gradient in enumerate(self._model.gradients):
            tensors = [gradient.tensor, *([gradient.indices] if gradient.indices is not None else [])]
            for tensor in tensors:
                for reader in self._graph.readers(tensor):
                    if not gradient.consumers or reader in gradient.consumers:
                        readers[reader, tensor_name(tensor)] = 1 << number
        masks: dict[str, int] = {}
        for name in self._graph.order:
            mask = 0
            for text in self._graph[name].input:
                own = None if text.startswith("^") else readers.get((name, tensor_name(text)))
                mask |= masks.get(node_of(text), 0) if own is None else own
            masks[name] = mask
        return masks

    def check_by_itself(self, gradient: Gradient, names: Collection[str]) -> None:
        """Refuse an update that needs, or waits for, the result of another gradient, so of another transfer.

        Args:
            gradient: gradient of the update.
            names: its nodes.

        Raises:
            InputError: it does.
        """
        own = 1 << next(n for n, each in enumerate(self._model.gradients) if each.name == gradient.name)
        for name in names:
            if others := self._followed[name] & ~own:
                other = self._model.gradients[others.bit_length() - 1].name
                raise InputError(f"op {name!r} ({self._graph[name].op}) needs the gradient {other!r}, or waits for it")

    def variable(self, handle: str) -> Variable | None:
        """The variable of a handle."""
        return self._variables.get(handle)

    def shape(self, tensor: str) -> Shape | None:
        """The shape of a tensor, if it is known."""
        name = tensor_name(tensor)
        return self._shape_of_gradient.get(name) or static_shape(self._graph, name)

    def check(self, node: NodeDef) -> None:
        """Refuse an op that is wanted, or that does not always run.

        Raises:
            InputError: it is one.
        """
        if self._guards.by_node[node.name]:
            raise InputError(f"op {node.name!r} ({node.op}) is in a branch")
        if any(tensor_name(format_input(node.name, index)) in self._wanted for index in range(_outputs(node))):
            raise InputError(f"each step gives back the result of op {node.name!r} ({node.op})")


class _Update:
    """What belongs to one update: found forward from the gradient, and backward from what is written."""

    def __init__(self, graph: Graph, gradient: Gradient, parameter: Variable, finder: _Finder) -> None:
        self._graph, self._gradient, self._parameter, self._finder = graph, gradient, parameter, finder
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
        self._finder.check_by_itself(self._gradient, self._nodes)
        writers = tuple(n for n in self._nodes if self._writes(n, self._parameter.node))
        ancestors = self._graph.ancestors
        if not writers:
            raise InputError("nothing that it is used for writes its parameter")
        return ElementUpdate(
            self._gradient.name,
            self._parameter.name,
            tuple(self._variable(handle).name for handle in self._slots),
            frozenset(self._nodes),
            reads,
            shared_reads,
            writers,
            frozenset(n for n in self._nodes if n in writers or not ancestors([n]).isdisjoint(writers)),
            min((reason for n in self._nodes if (reason := self._other_bits(n))), default=""),
        )

    def _other_bits(self, name: str) -> str:
        """Why an op may have other bits for a part of the elements; "" where it has not.

        TensorFlow's graph optimizers make x * (c * n) of (x * c) * n, for elements x and numbers c and n, where they
        know the shapes, and x * rsqrt(y) of x / sqrt(y). Functions such as rsqrt and powers are other code for the last
        elements, which fill no register.
        """
        node = self._graph[name]
        if node.op in _APPROXIMATE:
            return f"op {name!r} ({node.op}) may round the last elements of a tensor otherwise"
        inner = [self._graph[producer] for producer, _ in ops.data_inputs(node) if producer in self._nodes]
        if node.op in ("Div", "RealDiv") and any(each.op == "Sqrt" for each in inner):
            return f"TensorFlow's optimizers may take a reciprocal square root in op {name!r} ({node.op})"
        if node.op not in _GROUPED or not self._numbers(node):
            return ""
        if any(each.op in _GROUPED and self._numbers(each) for each in inner):
            return f"TensorFlow's optimizers may group the operands of op {name!r} ({node.op}) otherwise"
        return ""

    def _numbers(self, node: NodeDef) -> list[str]:
        """The producers of an op's operands that are single numbers."""
        tensors = [(producer, tensor_name(format_input(producer, index))) for producer, index in ops.data_inputs(node)]
        return [producer for producer, tensor in tensors if self._finder.shape(tensor) == ()]

    def _variable(self, handle: str) -> Variable:
        found = self._finder.variable(handle)
        if found is None:
            raise InputError(f"{handle!r} is no variable of the program")
        return found

    def _writes(self, name: str, handle: str) -> bool:
        node = self._graph[name]
        return ops.is_variable_write(node) and any(producer == handle for producer, _ in ops.data_inputs(node))

    def _add(self, name: str) -> None:
        if name in self._nodes:
            return
        node = self._graph[name]
        if node.op not in _ELEMENT_WISE and node.op not in _ELEMENT_WISE_WRITES and node.op != "ReadVariableOp":
            raise InputError(f"op {name!r} ({node.op}) does not work on one element at a time")
        self._finder.check(node)
        self._nodes[name] = None
        self._pending.append(name)

    def _add_users(self, handle: str, writers_only: bool) -> None:
        for user, _ in self._graph.consumers[handle]:
            if not writers_only or self._writes(user, handle):
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
        for reader, position in self._graph.consumers[name]:
            if not self._graph[reader].input[position].startswith("^"):
                self._add(reader)

    def _add_handle(self, name: str, handle: str) -> None:
        variable = self._variable(handle)
        if handle == self._parameter.node or handle in self._slots:
            return
        if variable.shape != self._parameter.shape:
            if self._writes(name, handle):
                raise InputError(f"op {name!r} ({self._graph[name].op}) writes {variable.name!r}, of another shape")
            return
        if variable.kind.is_local or variable.part is not None:
            raise InputError(
                f"op {name!r} ({self._graph[name].op}) uses {variable.name!r}, of which each worker has a value of its "
                "own, or which is a part of a larger variable"
            )
        if variable.kind is VariableClass.PARAMETER:
            raise InputError(f"op {name!r} ({self._graph[name].op}) uses the parameter {variable.name!r}, too")
        self._slots[handle] = None
        self._add_users(handle, writers_only=False)

    def _is_whole(self, name: str, tensor: str) -> bool:
        """Whether an input has the parameter's elements; otherwise it is one number.

        Raises:
            InputError: it is neither.
        """
        shape = self._finder.shape(tensor)
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
        for name in self._nodes:
            node = self._graph[name]
            if node.op != "ReadVariableOp" or node_of(node.input[0]) != handle:
                continue
            readers = (r for r, p in self._graph.consumers[name] if not self._graph[r].input[p].startswith("^"))
            if all(reader in self._nodes for reader in readers):
                own.append(name)
                continue
            if any(self._writes(before, handle) for before in self._graph.ancestors([name])):
                raise InputError(f"op {name!r} reads the parameter after a part of its update, also for others")
            shared.append(tensor_name(name))
        return tuple(own), tuple(shared)


def _outputs(node: NodeDef) -> int:
    return len(ops.output_types(node))


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
