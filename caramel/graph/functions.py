"""The functions of a graph's library: their bodies as graphs, and what they do to variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from caramel.errors import InvariantError
from caramel.graph import ops
from caramel.graph.graph import Graph, NodeDef, behind_identities, copied, format_input, node_of


@dataclass(frozen=True)
class Body:
    """A function as a graph.

    Attributes:
        name: name of the function.
        graph: nodes of the function; each argument is a Placeholder of its name.
        arguments: names of the arguments, in order.
        results: names of the tensors that it returns, in order.
        effects: names of nodes that must run although no result needs them.
    """

    name: str
    graph: Graph
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    effects: tuple[str, ...]

    @cached_property
    def inner(self) -> tuple[NodeDef, ...]:
        """The nodes without the arguments."""
        return tuple(n for n in self.graph if n.name not in self.positions)

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Position of each argument, by its name."""
        return {name: position for position, name in enumerate(self.arguments)}

    def argument_of(self, text: str) -> int | None:
        """Position of the argument that a tensor is, if it is one that was only passed on; None otherwise."""
        return self.positions.get(node_of(behind_identities(self.graph, text)))


class Library:
    """The functions that the nodes of a graph call."""

    def __init__(self, graph: Graph) -> None:
        functions = graph.library.function if graph.library is not None else ()
        self._definitions = {f.signature.name: f for f in functions}
        self._bodies: dict[str, Body] = {}
        self._written: dict[str, frozenset[int]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._definitions

    def body(self, name: str) -> Body:
        """The body of a function.

        Raises:
            InvariantError: the graph's library has no such function.
        """
        if name not in self._bodies:
            if name not in self._definitions:
                raise InvariantError(f"function {name!r} is called, but not in the graph's library")
            self._bodies[name] = _body(self._definitions[name])
        return self._bodies[name]

    def called(self, node: NodeDef) -> list[str]:
        """The functions that a node calls by itself."""
        if node.op in self:
            return [node.op]
        return [n for n in ops.functions_of(node) if n in self] if ops.calls_functions(node.op) else []

    def all_called(self, node: NodeDef) -> list[str]:
        """The functions that a node calls, directly or not, in the order of the calls."""
        called: dict[str, None] = {}
        waiting = self.called(node)
        while waiting:
            name = waiting.pop(0)
            if name not in called:
                called[name] = None
                waiting.extend(n for inner in self.body(name).inner for n in self.called(inner))
        return list(called)

    @property
    def names(self) -> tuple[str, ...]:
        """All functions, in order."""
        return tuple(self._definitions)

    def definition(self, name: str) -> Any:
        """The FunctionDef of a function; do not modify it."""
        return self._definitions[name]

    def inner_nodes(self, node: NodeDef) -> Iterator[tuple[str, NodeDef]]:
        """(function, node) for each node that runs inside a call."""
        for name in self.all_called(node):
            for inner in self.body(name).inner:
                yield name, inner

    def written(self, node: NodeDef) -> list[str]:
        """Producers of the handles through which a node writes variables, itself or in a function."""
        is_call = ops.is_call(node)
        if not is_call and not ops.is_variable_write(node):
            return []
        producers = [p for p, _ in ops.data_inputs(node)]
        if is_call:
            positions = self._written_positions(node)
            return [p for position, p in enumerate(producers) if position in positions]
        resources = [t == ops.DT_RESOURCE for _, t in ops.input_types(node)]
        return [p for p, is_resource in zip(producers, resources) if is_resource]

    def _written_positions(self, node: NodeDef) -> frozenset[int]:
        """Which data inputs of a call are handles of variables that it writes."""
        first = arguments_from(node)
        return frozenset(first + position for name in self.called(node) for position in self._written_arguments(name))

    def _written_arguments(self, name: str) -> frozenset[int]:
        if name not in self._written:
            self._written[name] = frozenset()  # a recursive call adds nothing
            body = self.body(name)
            argument_positions = {body.argument_of(handle) for inner in body.inner for handle in self.written(inner)}
            self._written[name] = frozenset(position for position in argument_positions if position is not None)
        return self._written[name]


def arguments_from(node: NodeDef) -> int:
    """Position of the first data input of a call that its functions get as an argument."""
    return 1 if node.op in ops.BRANCHES else 0


def _body(definition: Any) -> Body:
    arguments = tuple(a.name for a in definition.signature.input_arg)
    nodes = [_argument(a) for a in definition.signature.input_arg]
    offsets = {n.name: _offsets(n) for n in definition.node_def}

    def flat(text: str) -> str:
        if text.startswith("^"):
            return text
        name, *rest = text.split(":")
        if not rest:
            return name
        output, index = rest
        return format_input(name, offsets[name][output] + int(index))

    for original in definition.node_def:
        copy = copied(original)
        copy.input[:] = [flat(text) for text in original.input]
        nodes.append(copy)
    results = tuple(flat(definition.ret[a.name]) for a in definition.signature.output_arg)
    effects = tuple(definition.control_ret[name] for name in sorted(definition.control_ret))
    return Body(definition.signature.name, Graph(nodes), arguments, results, effects)


def _argument(argument: Any) -> NodeDef:
    from tensorflow.core.framework import attr_value_pb2  # here, so that analysis is imported without TensorFlow

    from caramel.graph.nodes import node

    return node(argument.name, "Placeholder", dtype=attr_value_pb2.AttrValue(type=argument.type))


def _offsets(node: NodeDef) -> Mapping[str, int]:
    """Index of the first tensor of each output argument."""
    offsets: dict[str, int] = {}
    for position, name in enumerate(ops.output_names(node)):
        offsets.setdefault(name, position)
    return offsets
