"""Marks on ops that may add up examples, and on the gradients that enter them.

Where a loss is not linear in what such an op adds up, the workers' sums are added before the loss goes on (see
`caramel.frontend.roles.forward_sums`), and the gradient that enters the op's own gradient function is that of the
whole sum. In a finished graph it cannot be told where that is, so each such place gets an Identity while the program
is watched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import count
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.eager import record
from tensorflow.python.framework import ops as tf_ops
from tensorflow.python.framework.func_graph import FuncGraph

from caramel.frontend.attributes import (
    ASKED_ATTRIBUTE,
    ENTRY_ATTRIBUTE,
    FORWARD_ATTRIBUTE,
    GATHERED_ATTRIBUTE,
    OVER_WORKERS_ATTRIBUTE,
    SIZED_ATTRIBUTE,
    TOTAL_ATTRIBUTE,
)
from caramel.frontend.captured import Entry
from caramel.graph.functions import Library
from caramel.graph.graph import Graph, NodeDef, control_texts, copied, node_of, tensor_name

_MARKED_OPS = frozenset(
    {"Sum", "Mean", "L2Loss", "UnsortedSegmentSum", "MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum"}
)
"""Ops that may add up examples."""

_PREFIX = "Caramel"
"""Prefix of the op type under which TensorFlow differentiates a marked op."""

_numbers = count(1)
"""Numbers of marked ops; no two captures share one."""


def mark(op: Any) -> None:
    """Give an op of a graph a number, if it may add up examples and the program has not chosen its gradient."""
    if op.type not in _MARKED_OPS or _attribute(op, "_gradient_op_type") is not None:
        return
    _number(op)


def _number(op: Any) -> None:
    number(op)
    op._set_attr("_gradient_op_type", attr_value_pb2.AttrValue(s=(_PREFIX + op.type).encode()))


def number(op: Any) -> None:
    """Give an op a number, whose gradient function tells by `entered` where the gradient enters it."""
    op._set_attr(TOTAL_ATTRIBUTE, attr_value_pb2.AttrValue(i=next(_numbers)))


def over_replicas(tensor: Any, kind: str) -> Any:
    """The value of an all-reduce that a program asks for: a marked Identity of its part.

    Args:
        tensor: the part that the program has.
        kind: ``"sum"`` or ``"mean"`` over the replicas.
    """
    return _of_all_workers(tensor, "caramel_all_reduce", ASKED_ATTRIBUTE, attr_value_pb2.AttrValue(s=kind.encode()))


def gathered(tensor: Any, axis: int, batches: int) -> Any:
    """A marked Identity of a worker's part, which stands for the parts of all workers.

    Args:
        tensor: the part.
        axis: axis of the examples.
        batches: number of batches along it.
    """
    place = attr_value_pb2.AttrValue()
    place.list.i.extend((axis, batches))
    shape = None if tensor.shape.rank is None else [None if i == axis else n for i, n in enumerate(tensor.shape)]
    return _of_all_workers(tensor, "caramel_gathered", GATHERED_ATTRIBUTE, place, shape)


def sized(tensor: Any, rows: int) -> Any:
    """A marked Identity of what is made of sizes, which stands for that of the sizes of all workers.

    Args:
        tensor: what is made of sizes.
        rows: number of a part's examples, of which all workers have more; 0 where it is not known.
    """
    if rows:  # no static shape is to follow from it; see `carried`
        shape = [None if rows > 1 and n and n % rows == 0 else n for n in tensor.shape]
        whole = tf.raw_ops.PlaceholderWithDefault(input=tensor, shape=shape, name="caramel_sized")
    else:
        whole = tf.identity(tensor, name="caramel_sized")
    whole.op._set_attr(SIZED_ATTRIBUTE, attr_value_pb2.AttrValue(b=True))
    return whole


def _of_all_workers(
    tensor: Any, name: str, attribute: str, value: Any, shape: Sequence[int | None] | None = None
) -> Any:
    whole = carried(tensor, name, attribute, value, shape)
    whole.op._set_attr(OVER_WORKERS_ATTRIBUTE, attr_value_pb2.AttrValue(b=True))
    return whole


def carried(tensor: Any, name: str, attribute: str, value: Any, shape: Sequence[int | None] | None = None) -> Any:
    """An Identity with an attribute, behind which a tensor is differentiated like the ops that are marked.

    Args:
        tensor: tensor of a graph.
        name: name of the Identity.
        attribute: name of the attribute.
        value: its value.
        shape: static shape of the result, where it says less than that of the tensor; an Identity would keep that one,
            so that this is a PlaceholderWithDefault, until `remove_capture_attributes`.
    """
    with record.stop_recording():
        if shape is None or tensor.shape.as_list() == list(shape):
            whole = tf.identity(tensor, name=name)
        else:
            whole = tf.raw_ops.PlaceholderWithDefault(input=tensor, shape=shape, name=name)
    whole.op._set_attr(attribute, value)
    _number(whole.op)

    def backward(*upstream: Any) -> list[Any]:
        return [entered(each, whole.op) for each in upstream]

    record.record_operation(_PREFIX + "Identity", [whole], [tensor], backward)
    return whole


def record_gradient(op_type: str, inputs: Any, outputs: Any) -> bool:
    """Let tapes differentiate an op behind Identities that tell where the gradient enters it.

    Args:
        op_type: type of the op.
        inputs: tensors that it takes.
        outputs: tensors that it gives.

    Returns:
        Whether that was done; else the op is differentiated as it is.
    """
    if op_type not in _MARKED_OPS or isinstance(outputs[0], tf.__internal__.EagerTensor):
        return False
    op = outputs[0].op
    if _number_of(op) is None:
        return False
    scope = tf_ops.get_name_scope()

    def backward(*upstream: Any) -> Any:
        with tf_ops.name_scope(f"gradient_tape/{scope}/" if scope else "gradient_tape/"):
            gradients = _differentiated(op_type, op, *upstream)
        return list(gradients) if isinstance(gradients, (list, tuple)) else [gradients]

    record.record_operation(op_type, outputs, inputs, backward)
    return True


def _number_of(op: Any) -> int | None:
    """The number of an op; None for one that is not marked."""
    return _attribute(op, TOTAL_ATTRIBUTE)


def _attribute(op: Any, name: str) -> Any:
    try:
        return op.get_attr(name)
    except ValueError:
        return None


def _with_entry(kind: str) -> Callable[..., Any]:
    """The gradient function of an op type, behind an Identity that tells where the gradient enters it."""

    def gradient(op: Any, *upstream: Any) -> Any:
        return _differentiated(kind, op, *upstream)

    return gradient


def _differentiated(kind: str, op: Any, *upstream: Any) -> Any:
    return tf_ops.gradient_registry.lookup(kind)(op, *(entered(each, op) for each in upstream))


def entered(gradient: Any, forward: Any) -> Any:
    """A gradient behind an Identity that tells that it enters an op there.

    Args:
        gradient: gradient of the op's output.
        forward: the op.
    """
    of_forward = _number_of(forward)
    if of_forward is None or of_forward < 0 or gradient is None:
        return gradient
    if isinstance(gradient, tf.IndexedSlices) and (forward.type == "Identity" or gradient.dense_shape is not None):
        # Of gathered examples a worker takes its own rows, and a sum has few rows.
        gradient = tf.convert_to_tensor(gradient)
    if not isinstance(gradient, tf.Tensor) or isinstance(gradient, tf.__internal__.EagerTensor):
        # Slices cannot be scaled in one place: the op is left out.
        forward._set_attr(TOTAL_ATTRIBUTE, attr_value_pb2.AttrValue(i=-1))
        return gradient
    with _after_forward(forward):
        entry = tf.identity(gradient, name="caramel_entry")
    entry.op._set_attr(ENTRY_ATTRIBUTE, attr_value_pb2.AttrValue(i=of_forward))
    return entry


def _after_forward(forward: Any) -> Any:
    """The context in which a gradient of an op in a function waits for the op: each call's gradient for its own.

    Within loops and branches, whose gradients would have to keep another value of each turn, nothing waits; nor in what
    is called only once, the program itself.
    """
    graph = tf.compat.v1.get_default_graph()
    is_called = forward.graph is not graph or isinstance(getattr(graph, "outer_graph", None), FuncGraph)
    if not (is_called and _is_function(forward.graph) and _is_function(graph)):
        return nullcontext()
    output = tf.identity(forward.outputs[0], name="caramel_forward")
    output.op._set_attr(FORWARD_ATTRIBUTE, attr_value_pb2.AttrValue(b=True))
    return tf.control_dependencies([output])


def _is_function(graph: Any) -> bool:
    """Whether a graph is one of a function, and neither in a loop nor in a branch."""
    while type(graph) is FuncGraph:
        graph = graph.outer_graph
    return not isinstance(graph, FuncGraph)


for _kind in ("Identity", *sorted(_MARKED_OPS)):
    tf.RegisterGradient(_PREFIX + _kind)(_with_entry(_kind))


def taken_out(graph: Graph) -> tuple[Graph, dict[str, tuple[Entry, ...]]]:
    """The graph without the marked Identities, and where gradients enter the marked ops.

    Args:
        graph: nodes of a captured program.

    Returns:
        The graph, and the entries by the name of the op; an op without a gradient has none. Of a function that was
        called several times, ops of which that cannot be told are left out; so are those whose gradient enters in a
        function that stays one.
    """
    forward: dict[int, list[str]] = {}
    marks: dict[str, int] = {}
    waited_for: set[str] = set()
    for node in graph:
        if FORWARD_ATTRIBUTE in node.attr:
            waited_for.add(node.name)
        if TOTAL_ATTRIBUTE in node.attr and node.attr[TOTAL_ATTRIBUTE].i > 0:
            forward.setdefault(node.attr[TOTAL_ATTRIBUTE].i, []).append(node.name)
        if ENTRY_ATTRIBUTE in node.attr:
            marks[node.name] = node.attr[ENTRY_ATTRIBUTE].i
    owners = {name: _owner(graph, name, forward.get(number, ())) for name, number in marks.items()}
    untold = {number for name, number in marks.items() if owners[name] is None} | _entered_in_functions(graph)
    entries: dict[str, list[Entry]] = {
        n: [] for number, names in forward.items() if number not in untold for n in names
    }
    kept = {name for name in marks if node_of(graph[name].input[0]) in marks}  # they tell two places apart
    changed: dict[str, NodeDef] = {}
    for name in marks:
        source = name if name in kept else graph[name].input[0]
        readers = []
        for reader, position in graph.consumers[name]:
            text = graph[reader].input[position]
            changed.setdefault(reader, copied(graph[reader]))
            if text.startswith("^"):
                changed[reader].input[position] = "^" + node_of(source)
            else:
                changed[reader].input[position] = source
                readers.append((reader, position))
        owner = owners[name]
        if owner in entries and readers:
            entries[owner].append(Entry(tensor_name(source), tuple(readers)))
    told = {name: tuple(found) for name, found in entries.items()}
    if not marks and not waited_for:
        return graph, told
    waited_for = {each for each in waited_for if not graph.data_readers(each)}  # vectorised, some wait for no entry
    for name in (name for each in waited_for for name, _ in graph.consumers[each]):
        changed.setdefault(name, copied(graph[name]))
        inputs = [text for text in changed[name].input if not (text.startswith("^") and node_of(text) in waited_for)]
        del changed[name].input[:]
        changed[name].input.extend(inputs)
    removed = (marks.keys() - kept) | waited_for
    nodes = [changed.get(n.name, n) for n in graph if n.name not in removed]
    return Graph(nodes, graph.library, graph.versions), told


def _entered_in_functions(graph: Graph) -> set[int]:
    """Numbers of the ops whose gradients enter in functions that the graph calls."""
    library = Library(graph)
    inner_nodes = (inner for call in graph for _, inner in library.inner_nodes(call))
    return {inner.attr[ENTRY_ATTRIBUTE].i for inner in inner_nodes if ENTRY_ATTRIBUTE in inner.attr}


def _owner(graph: Graph, entry: str, names: Sequence[str]) -> str | None:
    """The op that a gradient enters; None if that cannot be told.

    Args:
        graph: nodes of a captured program.
        entry: name of the Identity of the gradient.
        names: names of the ops that have its number: several, if their function was called several times.
    """
    if len(names) == 1:
        return names[0]
    for text in control_texts(graph[entry]):
        if FORWARD_ATTRIBUTE in graph[node_of(text)].attr:
            found = node_of(graph[node_of(text)].input[0])
            while found not in names and graph[found].op == "Identity":
                found = node_of(graph[found].input[0])
            return found if found in names else None
    return None
