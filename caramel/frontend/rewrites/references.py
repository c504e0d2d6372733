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
from caramel.frontend.attributes import remove_capture_attributes
from caramel.frontend.rewrites.aliases import FORWARDING_OPS, HANDLE_OPS, Aliases, Tensor
from caramel.frontend.rewrites.resource_ops import Counterpart, advice, counterpart
from caramel.graph import ops
from caramel.graph.graph import Graph, NodeDef, control_texts, copied, format_input, parse_input, tensor_name
from caramel.graph.nodes import node as new_node
from caramel.graph.nodes import shape_attribute
from caramel.graph.shapes import SHAPES_ATTRIBUTE

_SCALAR_SHAPE = shape_attribute(()).shape
"""Shape of a handle."""


def replace_references(graph: Graph, fetches: Sequence[str] = ()) -> tuple[Graph, tuple[str, ...]]:
    """Rewrite every reference variable as a resource variable of the same name.

    Nodes keep their names. An op that has no counterpart for resource variables stays as it is; `refuse_reference`
    names it where a step needs it.

    Args:
        graph: nodes with ``_output_shapes`` attributes, which the resulting graph has, too.
        fetches: names of the tensors to fetch; some may be references.

    Returns:
        The graph, and for each fetch the name of the tensor that has its value.
    """
    if not any(node.op in ops.REFERENCE_VARIABLES for node in graph):
        return graph, tuple(fetches)
    return _Rewriting(graph).result(fetches)


def refuse_reference(node: NodeDef, what: str) -> None:
    """Refuse an op on references that could not be rewritten.

    Args:
        node: node of the op.
        what: noun for the op in the message, such as "op 'w/Assign' (Assign)".

    Raises:
        UnsupportedError: always; the message says what to do instead.
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
        self._added_names: dict[object, str] = {}

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
        if node.op == "Identity" and self._facts.forwarded_tensor(node, 0) in self._facts.references:
            handle, after = self._handle(self._facts.forwarded_tensor(node, 0))
            return self._read_node(node.name, node, [handle, *_once([*after, *control_texts(node)])])
        inputs = self._inputs(node)
        resource_op = counterpart(node.op)
        if resource_op is not None:
            return self._counterpart(node, resource_op, inputs)
        if node.op in HANDLE_OPS:
            return self._passing_handles(node, inputs)
        return node if inputs == list(node.input) else _copy(node, inputs)

    def _handle_node(self, node: NodeDef) -> NodeDef:
        handle = _copy(node, list(node.input), ops.VARIABLE)
        # Without a shared name, handles, unlike references, are not told apart by their nodes' names.
        if not handle.attr["shared_name"].s:
            handle.attr["shared_name"].s = node.name.encode()
        _set_shapes(handle, [_SCALAR_SHAPE])
        return handle

    def _counterpart(self, node: NodeDef, resource_op: Counterpart, inputs: list[str]) -> NodeDef:
        rewritten = new_node(node.name, resource_op.op, inputs, node.device)
        for name, renamed in resource_op.attributes:
            if name in node.attr:
                rewritten.attr[renamed].CopyFrom(node.attr[name])
        for name in node.attr:
            if name.startswith("_") and (name != SHAPES_ATTRIBUTE or ops.op_def(resource_op.op).output_arg):
                rewritten.attr[name].CopyFrom(node.attr[name])
        return rewritten

    def _passing_handles(self, node: NodeDef, inputs: list[str]) -> NodeDef:
        rewritten = _copy(node, inputs, HANDLE_OPS[node.op])
        rewritten.attr["T"].type = ops.DT_RESOURCE
        _set_shapes(rewritten, [_SCALAR_SHAPE for _ in ops.op_def(rewritten.op).output_arg])
        return rewritten

    def _read_node(self, name: str, like: NodeDef, inputs: list[str]) -> NodeDef:
        """A read on the variable's device that has the shape of a node's first output."""
        variable = self._graph[self._facts.references[parse_input(inputs[0])]]
        read = new_node(name, "ReadVariableOp", inputs, variable.device, dtype=variable.attr["dtype"])
        for attribute in like.attr:
            if attribute.startswith("_"):
                read.attr[attribute].CopyFrom(like.attr[attribute])
        return read

    # -- inputs ------------------------------------------------------------------------------

    def _inputs(self, node: NodeDef) -> list[str]:
        """The node's new inputs: handles for references, and values as they are when the node runs."""
        data: list[str] = []
        control: list[str] = []
        references = self._facts.reference_positions(node)
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
        """The handle behind a reference, and control inputs for the nodes that the reference waits for."""
        node = self._graph[tensor[0]]
        if node.op in ops.REFERENCE_VARIABLES or node.op in ("RefSwitch", "RefMerge"):
            return format_input(*tensor), []
        handle, _ = self._handle(parse_input(node.input[0]))
        return handle, ["^" + node.name]

    def _ordered_handle(self, tensor: Tensor) -> str:
        """The handle behind a reference, as a tensor that waits for the same nodes as the reference."""
        handle, after = self._handle(tensor)
        if not after:
            return handle
        return self._once_made(
            ("handle", tensor),
            f"{tensor[0]}/caramel_handle",
            lambda name: _identity(name, [handle, *after], ops.DT_RESOURCE, _SCALAR_SHAPE),
        )

    def _value(self, text: str, node: NodeDef) -> str:
        """The input that replaces a reference, or a value that shares a variable's buffer, at a node."""
        tensor = parse_input(text)
        variable = self._facts.references.get(tensor)
        if variable is not None:
            return self._read(tensor, [] if node.op == "Merge" else self._facts.writes_before(node, variable))
        variable = self._facts.aliases.get(tensor)
        if variable is None or node.op == "Merge":  # the inputs of a Merge are in different branches
            return text
        if self._facts.write_bits_before(node.name, variable) == self._facts.write_bits_before(tensor[0], variable):
            return text
        return self._again(tensor, self._facts.writes_before(node, variable))

    def _again(self, tensor: Tensor, after: list[str]) -> str:
        """A second computation of a value that shares a variable's buffer, after these control inputs."""
        if tensor in self._facts.references:
            return self._read(tensor, after)
        node, source = self._graph[tensor[0]], self._facts.forwarded_tensor(self._graph[tensor[0]], tensor[1])
        if node.op in FORWARDING_OPS:
            return self._again(source, _once([*after, *self._waiting_for(node, tensor)]))
        return self._once_made(
            (tensor, tuple(after)),
            f"{node.name}/caramel_again",
            lambda name: self._like(node, name, [self._again(source, after), *self._inputs(node)[1:]]),
        )

    @staticmethod
    def _like(node: NodeDef, name: str, inputs: list[str]) -> NodeDef:
        duplicate = _copy(node, inputs, name=name)
        remove_capture_attributes(duplicate)  # what the marks say is of the node itself
        return duplicate

    def _waiting_for(self, node: NodeDef, tensor: Tensor) -> list[str]:
        """Control inputs that keep the order and the branch of a node whose value is now read from further up."""
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
        handle, reference_controls = self._handle(tensor)
        controls = _once([*reference_controls, *after])
        variable = self._facts.references[tensor]
        return self._once_made(
            (handle, frozenset(controls)),
            f"{variable}/caramel_read",
            lambda name: self._read_node(name, self._graph[variable], [handle, *controls]),
        )

    def _once_made(self, key: object, name: str, make: Callable[[str], NodeDef]) -> str:
        """The name of an added node, which the first request for its key creates."""
        if key not in self._added_names:
            unique, number = name, 1
            while unique in self._graph or unique in self._added:
                unique, number = f"{name}_{number}", number + 1
            self._added[unique] = make(unique)
            self._added_names[key] = unique
        return self._added_names[key]


def _once(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _copy(node: NodeDef, inputs: Sequence[str], op: str = "", name: str = "") -> NodeDef:
    duplicate = copied(node, inputs)
    duplicate.name, duplicate.op = name or node.name, op or node.op
    return duplicate


def _identity(name: str, inputs: Sequence[str], dtype: int, shape: Any) -> NodeDef:
    identity = new_node(name, "Identity", inputs, T=attr_value_pb2.AttrValue(type=dtype))
    _set_shapes(identity, [shape])
    return identity


def _set_shapes(node: NodeDef, shapes: Sequence[Any]) -> None:
    node.attr[SHAPES_ATTRIBUTE].CopyFrom(attr_value_pb2.AttrValue())
    node.attr[SHAPES_ATTRIBUTE].list.shape.extend(shapes)
