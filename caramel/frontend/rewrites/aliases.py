"""Which tensors refer to a reference variable of TensorFlow 1 or share its buffer; which writes run before an op."""

from __future__ import annotations

from caramel.frontend.attributes import GRADIENT_ATTRIBUTE
from caramel.frontend.rewrites.resource_ops import counterpart, is_reference_write, references_of
from caramel.graph import ops
from caramel.graph.graph import Graph, NodeDef, data_texts, node_of, parse_input

Tensor = tuple[str, int]
"""Name of a node, and index of its output; -1 for a control input."""

FORWARDING_OPS = frozenset({"Identity", "IdentityN", "StopGradient", "PreventGradient", "Switch"})
"""Ops that forward an input as it is, and do nothing else."""

HANDLE_OPS = {"RefIdentity": "Identity", "RefSwitch": "Switch", "RefMerge": "Merge"}
"""The op that forwards a handle, for each op that forwards a reference."""

VIEW_OPS = frozenset({"Reshape", "Squeeze", "ExpandDims", "EnsureShape", "CheckNumerics", "Bitcast"})
"""Ops whose result is another view of the buffer of their first input."""

_BUFFER_SHARING_OPS = FORWARDING_OPS | VIEW_OPS
"""Ops whose result shares the buffer of an input."""


class Aliases:
    """Facts about the reference variables of a graph.

    Attributes:
        references: variable to which a tensor is a reference, by the tensor.
        aliases: variable whose buffer a value shares (that of an Identity, say), by the value's tensor.

    Args:
        graph: nodes with reference variables among them.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._bits: dict[str, int] = {}
        self._writes: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self.references: dict[Tensor, str] = {}
        self.aliases: dict[Tensor, str] = {}
        for node in graph.loop_order():
            before = 0
            for text in node.input:
                before |= self._up_to(node_of(text))
            self._before[node.name] = before
            self._note(node)

    def _note(self, node: NodeDef) -> None:
        variables = self._variables(node)
        if node.op in ops.REFERENCE_VARIABLES:
            self.references[node.name, 0] = node.name
        elif is_reference_write(node.op) and variables is not None:
            resource_op = counterpart(node.op)
            self._bits[node.name] = 1 << len(self._bits)
            for variable in variables:
                self._writes[variable] = self._writes.get(variable, 0) | self._bits[node.name]
            if resource_op is not None and resource_op.returns_reference:
                self.references[node.name, 0] = variables[0]
        elif node.op in HANDLE_OPS and variables is not None and len(set(variables)) == 1:
            for index in range(2 if node.op == "RefSwitch" else 1):
                self.references[node.name, index] = variables[0]
        elif node.op in _BUFFER_SHARING_OPS and GRADIENT_ATTRIBUTE not in node.attr:
            for index in range(2 if node.op == "Switch" else len(data_texts(node)) if node.op == "IdentityN" else 1):
                source = self.forwarded_tensor(node, index)
                shared = self.references.get(source) or self.aliases.get(source)
                if shared is not None:
                    self.aliases[node.name, index] = shared

    def _variables(self, node: NodeDef) -> list[str] | None:
        """The variables that the op's reference inputs refer to; None if one is unknown."""
        variables = [
            self.references.get(parse_input(node.input[position])) for position in self.reference_positions(node)
        ]
        return None if None in variables else [variable for variable in variables if variable is not None]

    @staticmethod
    def reference_positions(node: NodeDef) -> tuple[int, ...]:
        """Positions of the inputs that are references."""
        return tuple(range(len(data_texts(node)))) if node.op == "RefMerge" else references_of(node.op)

    def can_be_rewritten(self, node: NodeDef) -> bool:
        """Whether the op takes no references, or has a counterpart and the variables of its references are known."""
        if node.op in HANDLE_OPS:
            return (node.name, 0) in self.references
        if references_of(node.op):
            return counterpart(node.op) is not None and self._variables(node) is not None
        return True

    @staticmethod
    def forwarded_tensor(node: NodeDef, index: int) -> Tensor:
        """The input that a forwarding op forwards as an output.

        Args:
            node: the forwarding op.
            index: index of the output.
        """
        return parse_input(node.input[index if node.op == "IdentityN" else 0])

    def _up_to(self, name: str) -> int:
        return self._before.get(name, 0) | self._bits.get(name, 0)

    def write_bits_before(self, name: str, variable: str) -> int:
        """Bit set of the writes of a variable after which an op runs.

        Args:
            name: name of the op's node.
            variable: name of the variable.
        """
        return self._before[name] & self._writes.get(variable, 0)

    def is_after_a_write(self, name: str) -> bool:
        """Whether the op runs after a write of any variable."""
        return self._before[name] != 0

    def writes_before(self, node: NodeDef, variable: str) -> list[str]:
        """Control inputs that make a read run after the same writes of the variable as the op.

        They are inputs of the op: each of them runs whenever the op does, even if a write is in a branch.

        Args:
            node: the op.
            variable: name of the variable.
        """
        wanted = self.write_bits_before(node.name, variable)
        controls: list[str] = []
        for text in node.input:
            new = self._up_to(node_of(text)) & wanted
            if new:
                controls.append("^" + node_of(text))
                wanted &= ~new
        return controls
