"""What refers to a reference variable of TensorFlow 1, what shares its buffer, and what is written before what."""

from __future__ import annotations

from caramel.frontend.attributes import GRADIENT_ATTRIBUTE
from caramel.frontend.rewrites.resource_ops import counterpart, is_reference_write, references_of
from caramel.graph import ops
from caramel.graph.graph import Graph, NodeDef, data_texts, node_of, parse_input

Tensor = tuple[str, int]
"""Name of a node, and which of its outputs."""

PASSED = frozenset({"Identity", "IdentityN", "StopGradient", "PreventGradient", "Switch"})
"""Ops that hand on an input as it is, and do nothing else."""

PLAIN = {"RefIdentity": "Identity", "RefSwitch": "Switch", "RefMerge": "Merge"}
"""Ops that hand on a reference, and what hands on a handle."""

SHAPED = frozenset({"Reshape", "Squeeze", "ExpandDims", "EnsureShape", "CheckNumerics", "Bitcast"})
"""Ops whose result is the buffer of their first input, looked at in another way."""

_SHARING = PASSED | SHAPED


class Aliases:
    """Facts about the reference variables of a graph.

    Attributes:
        references: the variable that a tensor is a reference to.
        aliases: the variable whose buffer a value shares (that of an Identity, say).

    Args:
        graph: the nodes, reference variables among them.
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
            other = counterpart(node.op)
            self._bits[node.name] = 1 << len(self._bits)
            for variable in variables:
                self._writes[variable] = self._writes.get(variable, 0) | self._bits[node.name]
            if other is not None and other.returns_reference:
                self.references[node.name, 0] = variables[0]
        elif node.op in PLAIN and variables is not None and len(set(variables)) == 1:
            for index in range(2 if node.op == "RefSwitch" else 1):
                self.references[node.name, index] = variables[0]
        elif node.op in _SHARING and GRADIENT_ATTRIBUTE not in node.attr:
            for index in range(2 if node.op == "Switch" else len(data_texts(node)) if node.op == "IdentityN" else 1):
                source = self.source(node, index)
                shared = self.references.get(source) or self.aliases.get(source)
                if shared is not None:
                    self.aliases[node.name, index] = shared

    def _variables(self, node: NodeDef) -> list[str] | None:
        """The variables that the op's reference inputs refer to; None if one is unknown."""
        found = [self.references.get(parse_input(node.input[position])) for position in self.positions(node)]
        return None if None in found else [variable for variable in found if variable is not None]

    @staticmethod
    def positions(node: NodeDef) -> tuple[int, ...]:
        """Positions of the inputs that are references."""
        return tuple(range(len(data_texts(node)))) if node.op == "RefMerge" else references_of(node.op)

    def can_be_rewritten(self, node: NodeDef) -> bool:
        """Whether the op has a counterpart, if it takes references, and it is known what they refer to."""
        if node.op in PLAIN:
            return (node.name, 0) in self.references
        if references_of(node.op):
            return counterpart(node.op) is not None and self._variables(node) is not None
        return True

    @staticmethod
    def source(node: NodeDef, index: int) -> Tensor:
        """What an op that hands on its input makes an output of."""
        return parse_input(node.input[index if node.op == "IdentityN" else 0])

    def _up_to(self, name: str) -> int:
        return self._before.get(name, 0) | self._bits.get(name, 0)

    def before(self, name: str, variable: str) -> int:
        """A bit for each write of the variable that an op runs after."""
        return self._before[name] & self._writes.get(variable, 0)

    def is_after_a_write(self, name: str) -> bool:
        """Whether the op runs after a write of any variable."""
        return self._before[name] != 0

    def writes_before(self, node: NodeDef, variable: str) -> list[str]:
        """Control inputs for a read that runs after the writes of the variable that the op runs after.

        These are inputs of the op: each of them runs whenever the op does, even if a write is in a branch.
        """
        wanted = self.before(node.name, variable)
        found: list[str] = []
        for text in node.input:
            new = self._up_to(node_of(text)) & wanted
            if new:
                found.append("^" + node_of(text))
                wanted &= ~new
        return found
