"""The graph of a step as updates are looked for in it: with shapes, variables by handle, and what a step gives back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property

from caramel.analyzers.step.kept import once_per_model
from caramel.errors import InputError
from caramel.graph import ops
from caramel.graph.graph import Graph, NodeDef, format_input, node_of, tensor_name
from caramel.graph.guards import guards_of
from caramel.graph.shapes import Shape, static_shape, with_inferred_shapes
from caramel.model import Gradient, Model, Variable, VariableClass

ELEMENT_WISE = frozenset(
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

ELEMENT_WISE_WRITES = frozenset(
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
        *("Cos", "Digamma", "Erf", "Exp", "Expm1", "Log", "Inv", "Log1p", "Pow", "Reciprocal", "Rsqrt", "Sigmoid"),
        *("Sin", "Softplus", "Tanh", "Xdivy", "Xlogy"),
        *("ResourceApplyAdagrad", "ResourceApplyAdagradV2", "ResourceApplyAdagradDA"),
        *("ResourceApplyAdadelta", "ResourceApplyRMSProp", "ResourceApplyCenteredRMSProp", "ResourceApplyFtrl"),
        *("ResourceApplyFtrlV2", "ResourceApplyProximalAdagrad", "ResourceApplyAddSign", "ResourceApplyPowerSign"),
    }
)
"""Ops that compute, or may compute, what IEEE 754 does not round in one way: another code path may have other bits."""

_GROUPED = frozenset({"Add", "AddV2", "Div", "Mul", "RealDiv", "Sub"})
"""Ops of which several in a row may be grouped otherwise."""


class UpdateGraph:
    """A step in which updates are looked for.

    Attributes:
        model: the single-device step.
        graph: its graph, with the shapes that can be inferred.

    Args:
        model: see the attributes.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.graph: Graph = with_inferred_shapes(model.graph)
        self._variables = {v.node: v for v in model.variables}
        self._guards = guards_of(model.graph)
        self._shape_of_gradient = {tensor_name(g.tensor): g.shape for g in model.gradients if not g.is_sparse}
        self._wanted = {tensor_name(model.loss), *(tensor_name(tensor) for _, tensor in model.outputs)}

    @cached_property
    def _followed(self) -> Mapping[str, int]:
        """The gradients from whose results each node follows, by data or by order, as the bits of an integer.

        What a reader of a gradient's result gets of it is that gradient's alone.
        """
        readers: dict[tuple[str, str], int] = {}  # by reader and tensor
        for number, gradient in enumerate(self.model.gradients):
            tensors = [gradient.tensor, *([gradient.indices] if gradient.indices is not None else [])]
            for tensor in tensors:
                for reader in self.graph.readers(tensor):
                    if not gradient.consumers or reader in gradient.consumers:
                        readers[reader, tensor_name(tensor)] = 1 << number
        masks: dict[str, int] = {}
        for name in self.graph.order:
            mask = 0
            for text in self.graph[name].input:
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
        own = 1 << next(n for n, each in enumerate(self.model.gradients) if each.name == gradient.name)
        for name in names:
            if others := self._followed[name] & ~own:
                other = self.model.gradients[others.bit_length() - 1].name
                raise InputError(f"op {name!r} ({self.graph[name].op}) needs the gradient {other!r}, or waits for it")

    def parameter(self, gradient: Gradient) -> Variable:
        """The parameter of a gradient.

        Raises:
            InputError: it has others besides, or is no parameter of the gradient's type.
        """
        parameter = self.model.variable_by_name[gradient.parameter]
        if [g.parameter for g in self.model.gradients].count(gradient.parameter) > 1:
            raise InputError("its parameter has several gradients")
        if gradient.dtype != parameter.dtype or parameter.kind is not VariableClass.PARAMETER:
            raise InputError("its parameter is of another type")
        return parameter

    def variable(self, handle: str) -> Variable:
        """The variable of a handle.

        Raises:
            InputError: it is of none of the program's.
        """
        found = self._variables.get(handle)
        if found is None:
            raise InputError(f"{handle!r} is no variable of the program")
        return found

    def check_slot(self, name: str, variable: Variable) -> None:
        """Refuse a variable that cannot be divided between the workers.

        Args:
            name: op of the update that uses it.
            variable: the variable.

        Raises:
            InputError: it cannot.
        """
        if variable.kind.is_local or variable.part is not None:
            raise InputError(
                f"op {name!r} ({self.graph[name].op}) uses {variable.name!r}, of which each worker has a value of its "
                "own, or which is a part of a larger variable"
            )
        if variable.kind is VariableClass.PARAMETER:
            raise InputError(f"op {name!r} ({self.graph[name].op}) uses the parameter {variable.name!r}, too")

    def shape(self, tensor: str) -> Shape | None:
        """The shape of a tensor, if it is known."""
        name = tensor_name(tensor)
        return self._shape_of_gradient.get(name) or static_shape(self.graph, name)

    def writes(self, name: str, handle: str) -> bool:
        """Whether an op writes a variable."""
        node = self.graph[name]
        return ops.is_variable_write(node) and any(producer == handle for producer, _ in ops.data_inputs(node))

    def check(self, node: NodeDef) -> None:
        """Refuse an op that is wanted, or that does not always run.

        Raises:
            InputError: it is one.
        """
        if self._guards.by_node[node.name]:
            raise InputError(f"op {node.name!r} ({node.op}) is in a branch")
        outputs = range(len(ops.output_types(node)))
        if any(tensor_name(format_input(node.name, index)) in self._wanted for index in outputs):
            raise InputError(f"each step gives back the result of op {node.name!r} ({node.op})")

    def other_bits(self, name: str, nodes: Collection[str]) -> str:
        """Why an op may have other bits for a part of the elements; "" where it has not.

        TensorFlow's graph optimizers make x * (c * n) of (x * c) * n, for elements x and numbers c and n, where they
        know the shapes, and x * rsqrt(y) of x / sqrt(y). Functions such as rsqrt and powers are other code for the last
        elements, which fill no register.

        Args:
            name: op of an update.
            nodes: all ops of the update.
        """
        node = self.graph[name]
        if node.op in _APPROXIMATE:
            return f"op {name!r} ({node.op}) may round the last elements of a tensor otherwise"
        inner = [self.graph[producer] for producer, _ in ops.data_inputs(node) if producer in nodes]
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
        return [producer for producer, tensor in tensors if self.shape(tensor) == ()]


@once_per_model
def update_graph(model: Model) -> UpdateGraph:
    """The graph of a step in which updates are looked for; made once, whoever asks.

    Args:
        model: the single-device step.
    """
    return UpdateGraph(model)
