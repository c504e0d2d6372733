"""Reference variables of TensorFlow 1, rewritten as resource variables.

Reading a reference variable makes no copy. `w/read`, an Identity, shares the variable's buffer, and an op that takes it
sees what the buffer holds when that op runs: after an update that it waits for, the new value, even where `w/read`
itself ran before. What a resource variable's read gives does not change. So every op gets a read that runs after just
those writes of the variable that the op runs after. What the program leaves open stays open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tensorflow.core.framework import attr_value_pb2

from caramel.errors import UnsupportedError
from caramel.frontend.attributes import strip
from caramel.frontend.rewrites.aliases import PASSED, PLAIN, Aliases, Tensor
from caramel.frontend.rewrites.resource_ops import Counterpart, advice, counterpart
from caramel.graph import ops
from caramel.graph.graph import Graph, NodeDef, control_texts, copied, format_input, parse_input, tensor_name
from caramel.graph.nodes import node as new_node
from caramel.graph.nodes import shape_attribute
from caramel.graph.shapes import SHAPES_ATTRIBUTE

_SCALAR = shape_attribute(()).shape


def replace_references(graph: Graph, fetches: Sequence[str] = ()) -> tuple[Graph, tuple[str, ...]]:
    """Rewrite every reference variable as a resource variable of the same name.

    Nodes keep their names. What has no counterpart for resource variables stays as it is, for `refuse_reference` to
    name where a step needs it.

    Args:
        graph: the nodes, with ``_output_shapes`` attributes, which the result has, too.
        fetches: tensors whose values are wanted; some may be references.

    Returns:
        The graph, and for each of the fetches the tensor that has its value.
    """
    if not any(node.op in ops.REFERENCE_VARIABLES for node in graph):
        return graph, tuple(fetches)
    return _Rewriting(graph).result(fetches)


def refuse_reference(node: NodeDef, what: str) -> None:
    """Refuse an op on references that could not be rewritten.

    Args:
        node: the op.
        what: how to name it.

    Raises:
        UnsupportedError: always, with what to do instead.
    """
    raise UnsupportedError(
        f"{what} works on references of TensorFlow 1 and has no counterpart for resource variables, so it cannot be "
        f"replicated. {advice(node)}"
    )


class _Rewriting:
    """One graph on its way from references to resources."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._facts = Aliases(graph)
        self._added: dict[str, NodeDef] = {}
        self._made: dict[object, str] = {}

    def result(self, fetches: Sequence[str]) -> tuple[Graph, tuple[str, ...]]:
        changed = {node.name: self._rewritten(node) for node in self._graph}
        values = tuple(self._fetched(text) for text in fetches)
        return self._graph.replaced(changed, list(self._added.values())), values

    def _fetched(self, text: str) -> str:
        tensor = parse_input(text)
        return tensor_name(self._read(tensor, []) if tensor in self._facts.references else text)

    # -- nodes -------------------------------------------------------------------------------

    def _rewritten(self, node: NodeDef) -> NodeDef:
        if node.op in ops.REFERENCE_VARIABLES:
            return self._handle_node(node)
        if not self._facts.can_be_rewritten(node):
            return node
        if node.op == "Identity" and self._facts.source(node, 0) in self._facts.references:
            handle, after = self._handle(self._facts.source(node, 0))
            return self._read_node(node.name, node, [handle, *_once([*after, *control_texts(node)])])
        inputs = self._inputs(node)
        other = counterpart(node.op)
        if other is not None:
            return self._counterpart(node, other, inputs)
        if node.op in PLAIN:
            return self._passing_handles(node, inputs)
        return node if inputs == list(node.input) else _copy(node, inputs)

    def _handle_node(self, node: NodeDef) -> NodeDef:
        made = _copy(node, list(node.input), ops.VARIABLE)
        if not made.attr["shared_name"].s:  # then handles, unlike references, are not told apart by their nodes' names
            made.attr["shared_name"].s = node.name.encode()
        _set_shapes(made, [_SCALAR])
        return made

    def _counterpart(self, node: NodeDef, other: Counterpart, inputs: list[str]) -> NodeDef:
        made = new_node(node.name, other.op, inputs, node.device)
        for name, renamed in other.attributes:
            if name in node.attr:
                made.attr[renamed].CopyFrom(node.attr[name])
        for name in node.attr:
            if name.startswith("_") and (name != SHAPES_ATTRIBUTE or ops.op_def(other.op).output_arg):
                made.attr[name].CopyFrom(node.attr[name])
        return made

    def _passing_handles(self, node: NodeDef, inputs: list[str]) -> NodeDef:
        made = _copy(node, inputs, PLAIN[node.op])
        made.attr["T"].type = ops.DT_RESOURCE
        _set_shapes(made, [_SCALAR for _ in ops.op_def(made.op).output_arg])
        return made

    def _read_node(self, name: str, like: NodeDef, inputs: list[str]) -> NodeDef:
        """A read, where the variable is, that has the shape of a node's first output."""
        variable = self._graph[self._facts.references[parse_input(inputs[0])]]
        made = new_node(name, "ReadVariableOp", inputs, variable.device, dtype=variable.attr["dtype"])
        for attribute in like.attr:
            if attribute.startswith("_"):
                made.attr[attribute].CopyFrom(like.attr[attribute])
        return made

    # -- inputs ------------------------------------------------------------------------------

    def _inputs(self, node: NodeDef) -> list[str]:
        """The node's inputs: handles for references, and values as they are when the node runs."""
        data: list[str] = []
        control: list[str] = []
        references = self._facts.positions(node)
        for position, text in enumerate(node.input):
            tensor = parse_input(text)
            if tensor[1] < 0:
                control.append(text)
            elif node.op == "RefMerge":
                data.append(self._ordered_handle(tensor))
            elif position in references:
                handle, after = self._handle(tensor)
                data.append(handle)
                control += after
            else:
                data.append(self._value(text, node))
        return [*data, *_once(control)]

    def _handle(self, tensor: Tensor) -> tuple[str, list[str]]:
        """The handle behind a reference, and control inputs for what the reference waits for."""
        node = self._graph[tensor[0]]
        if node.op in ops.REFERENCE_VARIABLES or node.op in ("RefSwitch", "RefMerge"):
            return format_input(*tensor), []
        handle, _ = self._handle(parse_input(node.input[0]))
        return handle, ["^" + node.name]

    def _ordered_handle(self, tensor: Tensor) -> str:
        """The handle behind a reference as a tensor that waits for what the reference waits for."""
        handle, after = self._handle(tensor)
        if not after:
            return handle
        return self._once_made(
            ("handle", tensor),
            f"{tensor[0]}/caramel_handle",
            lambda name: _identity(name, [handle, *after], ops.DT_RESOURCE, _SCALAR),
        )

    def _value(self, text: str, node: NodeDef) -> str:
        """What a node takes instead of a reference, or of a value that shares a variable's buffer."""
        tensor = parse_input(text)
        variable = self._facts.references.get(tensor)
        if variable is not None:
            return self._read(tensor, [] if node.op == "Merge" else self._facts.writes_before(node, variable))
        variable = self._facts.aliases.get(tensor)
        if variable is None or node.op == "Merge":  # the inputs of a Merge are in different branches
            return text
        if self._facts.before(node.name, variable) == self._facts.before(tensor[0], variable):
            return text
        return self._again(tensor, self._facts.writes_before(node, variable))

    def _again(self, tensor: Tensor, after: list[str]) -> str:
        """A value that shares a variable's buffer, as it is after these control inputs."""
        if tensor in self._facts.references:
            return self._read(tensor, after)
        node, source = self._graph[tensor[0]], self._facts.source(self._graph[tensor[0]], tensor[1])
        if node.op in PASSED:
            return self._again(source, _once([*after, *self._waiting_for(node, tensor)]))
        return self._once_made(
            (tensor, tuple(after)),
            f"{node.name}/caramel_again",
            lambda name: self._like(node, name, [self._again(source, after), *self._inputs(node)[1:]]),
        )

    @staticmethod
    def _like(node: NodeDef, name: str, inputs: list[str]) -> NodeDef:
        made = _copy(node, inputs, name=name)
        strip(made)  # what the marks say is of the node itself
        return made

    def _waiting_for(self, node: NodeDef, tensor: Tensor) -> list[str]:
        """Control inputs that keep what it means to take the value from this node, and not from further up."""
        if node.op == "Switch":  # nothing runs in the branch that is not taken
            pivot = self._once_made(
                ("pivot", tensor),
                f"{node.name}/caramel_branch",
                lambda name: _identity(
                    name,
                    [format_input(*tensor)],
                    node.attr["T"].type,
                    node.attr[SHAPES_ATTRIBUTE].list.shape[tensor[1]],
                ),
            )
            return ["^" + pivot]
        has_order = bool(control_texts(node)) or self._facts.is_after_a_write(node.name)
        return ["^" + node.name] if has_order else []

    def _read(self, tensor: Tensor, after: list[str]) -> str:
        """A read of the variable that a reference refers to, after these control inputs."""
        handle, own = self._handle(tensor)
        controls = _once([*own, *after])
        variable = self._facts.references[tensor]
        return self._once_made(
            (handle, frozenset(controls)),
            f"{variable}/caramel_read",
            lambda name: self._read_node(name, self._graph[variable], [handle, *controls]),
        )

    def _once_made(self, key: object, name: str, make: Callable[[str], NodeDef]) -> str:
        """The name of an added node, made when it is first wanted."""
        if key not in self._made:
            unique, number = name, 1
            while unique in self._graph or unique in self._added:
                unique, number = f"{name}_{number}", number + 1
            self._added[unique] = make(unique)
            self._made[key] = unique
        return self._made[key]


def _once(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _copy(node: NodeDef, inputs: Sequence[str], op: str = "", name: str = "") -> NodeDef:
    made = copied(node, inputs)
    made.name, made.op = name or node.name, op or node.op
    return made


def _identity(name: str, inputs: Sequence[str], dtype: int, shape: Any) -> NodeDef:
    made = new_node(name, "Identity", inputs, T=attr_value_pb2.AttrValue(type=dtype))
    _set_shapes(made, [shape])
    return made


def _set_shapes(node: NodeDef, shapes: Sequence[Any]) -> None:
    node.attr[SHAPES_ATTRIBUTE].CopyFrom(attr_value_pb2.AttrValue())
    node.attr[SHAPES_ATTRIBUTE].list.shape.extend(shapes)
