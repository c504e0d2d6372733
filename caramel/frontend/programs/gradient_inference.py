"""Finding the differentiation in a finished tf.Graph that was built before Caramel could watch.

TensorFlow's gradient code puts all ops of one differentiation under one name scope, and in it the ops
that differentiate op X under X_grad. (In the process that made the graph, such an op also has a reference
to X; a file does not have that.) The scope gives the region of ops that belong to the differentiation;
tensors that leave the region towards a variable's update are the gradients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from caramel.errors import CaptureError
from caramel.frontend.captured import RawGradient, RawVariable
from caramel.graph import ops
from caramel.graph.graph import Graph, node_of, parse_input, tensor_name
from caramel.graph.shapes import Shape, static_shape

_GRADIENT_SUFFIX = "_grad/"
"""Text that TensorFlow adds to an op's name for the scope of the ops that differentiate it."""


def infer_differentiation(
    graph: Any, nodes: Graph, variables: Mapping[str, RawVariable], train_op: str
) -> tuple[tuple[RawGradient, ...], tuple[tuple[str, int], ...]]:
    """Gradients and differentiated tensors of a finished graph.

    Args:
        graph: the tf.Graph (its Python operations know which op they differentiate).
        nodes: nodes of the graph.
        variables: the program's variables by handle node.
        train_op: name of the training op.

    Returns:
        The gradients, and pairs (differentiated tensor, number of the call).

    Raises:
        CaptureError: no differentiation can be found, or a gradient's variable is ambiguous.
    """
    forward = _forward_ops(graph)
    scopes = _scopes(forward)
    if not scopes:
        raise CaptureError(
            "no differentiation was found in the finished graph (nothing was made by tf.gradients): "
            "build the graph inside 'with caramel.capture()' instead, or name the gradients="
        )
    step = nodes.ancestors([train_op])
    gradients: list[RawGradient] = []
    differentiated: list[tuple[str, int]] = []
    for call, scope in enumerate(scopes, start=1):
        region = {name for name in step if name.startswith(scope)}
        scope_gradients = _gradients(nodes, variables, step, region, scope, call)
        if any(forward.get(name, "").startswith(scope) for name in step if not name.startswith(scope)):
            # A later differentiation goes through this one. Gradients of examples may look like a variable's.
            scope_gradients = [
                replace(g, differentiated_again=True)
                for g in scope_gradients
                if _is_whole(static_shape(nodes, g.tensor))
            ]
        gradients.extend(scope_gradients)
        differentiated.extend((tensor, call) for tensor in _targets(forward, nodes, region, scope))
    return tuple(gradients), tuple(differentiated)


def _forward_ops(graph: Any) -> dict[str, str]:
    """For each op that differentiates a forward op, the name of the forward op."""
    forward_of: dict[str, str] = {}
    operations = {op.name: op for op in graph.get_operations()}
    for name, op in operations.items():
        forward = getattr(op, "_original_op", None)
        if forward is not None:
            forward_of[name] = forward.name
            continue
        end = name.rfind(_GRADIENT_SUFFIX)
        start = name.find("/") + 1
        while 0 < start <= end:
            if name[start:end] in operations:
                forward_of[name] = name[start:end]
                break
            start = name.find("/", start) + 1
    return forward_of


def _scopes(forward: Mapping[str, str]) -> list[str]:
    """Name scopes of the differentiations, with a trailing slash, in the order of the graph."""
    candidates: dict[str, None] = {}
    for name, differentiated in forward.items():
        position = name.rfind(f"/{differentiated}{_GRADIENT_SUFFIX}")
        if position >= 0:
            candidates[name[: position + 1]] = None
    scopes = list(candidates)
    return [s for s in scopes if not any(s != other and s.startswith(other) for other in scopes)]


def _gradients(
    nodes: Graph,
    variables: Mapping[str, RawVariable],
    step: set[str],
    region: set[str],
    scope: str,
    call: int,
) -> list[RawGradient]:
    leaving: dict[str, list[str]] = {}
    for name in nodes.nodes:
        if name not in region:
            continue
        for reader, position in nodes.consumers[name]:
            text = nodes[reader].input[position]
            if reader in step and reader not in region and not text.startswith("^"):
                leaving.setdefault(tensor_name(text), []).append(reader)
    gradients: list[RawGradient] = []
    rows: dict[str, dict[str, list[str]]] = {}  # integers that leave towards a variable's update, with their readers
    location = f"scope {scope!r} of the finished graph"
    for tensor, readers in leaving.items():
        are_rows = _are_rows(nodes, tensor)
        shape = None if are_rows else static_shape(nodes, tensor)
        for variable, variable_readers in _by_variable(nodes, variables, tensor, readers, shape, scope).items():
            if are_rows:
                rows.setdefault(variable, {})[tensor] = variable_readers
            else:
                gradients.append(RawGradient(variable, tensor, tuple(variable_readers), call, location))
    order = {handle: position for position, handle in enumerate(variables)}
    found = [_with_rows(gradient, rows) for gradient in _joined(gradients)]
    of_variables = [
        gradient for gradient in found if _may_be_by_variable(gradient, static_shape(nodes, gradient.tensor))
    ]
    return sorted(of_variables, key=lambda g: (order[g.variable], g.tensor))


def _by_variable(
    nodes: Graph,
    variables: Mapping[str, RawVariable],
    tensor: str,
    readers: Sequence[str],
    shape: Shape | None,
    scope: str,
) -> dict[str, list[str]]:
    """The readers of a tensor, by the variable (handle node) whose gradient the tensor is for these readers.

    A reader that is as near to several updates (a global norm, where shapes are not known) counts with the
    first variable that the other readers settle.
    """
    readers_of: dict[str, list[str]] = {}
    unclear: list[str] = []
    rivals: list[str] = []
    for reader in readers:
        nearest = _nearest_updates(nodes, variables, reader, shape)
        if len(nearest) == 1:
            readers_of.setdefault(nearest[0], []).append(reader)
        elif nearest:
            unclear.append(reader)
            rivals = nearest
    if unclear and not readers_of:
        raise CaptureError(
            f"the gradient {tensor!r} (in {scope!r}) updates {variables[rivals[0]].name!r} and "
            f"{variables[rivals[1]].name!r}: which one it belongs to cannot be told from a "
            "finished graph; build it inside 'with caramel.capture()', or name the gradients="
        )
    if unclear:
        next(iter(readers_of.values())).extend(unclear)
    return readers_of


def _are_rows(nodes: Graph, tensor: str) -> bool:
    """Whether a tensor may hold the row numbers of a sparse gradient."""
    name, index = parse_input(tensor)
    dtype = ops.dtype_name(ops.output_types(nodes[name])[index])
    shape = static_shape(nodes, tensor)
    return dtype in ("int32", "int64") and (shape is None or len(shape) == 1)


def _with_rows(gradient: RawGradient, rows: Mapping[str, Mapping[str, Sequence[str]]]) -> RawGradient:
    """A gradient with the row numbers that leave the differentiation together with it, which make it sparse."""
    variable_rows = rows.get(gradient.variable, {})
    if len(variable_rows) > 1:
        raise CaptureError(
            f"{gradient.location} has several sparse gradients for {gradient.variable!r}: which rows belong to which "
            "cannot be told from a finished graph; build it inside 'with caramel.capture()'"
        )
    for tensor, readers in variable_rows.items():
        consumers = tuple(dict.fromkeys((*gradient.consumers, *readers)))
        return replace(gradient, indices=tensor, consumers=consumers)
    return gradient


def differentiation_scopes(graph: Any) -> list[str]:
    """Name scopes of the differentiations of a tf.Graph, with a trailing slash."""
    return _scopes(_forward_ops(graph))


def readers_outside(nodes: Graph, tensors: Sequence[str], scopes: Sequence[str]) -> tuple[str, ...]:
    """The nodes that read tensors of a differentiation from outside its scope; all readers of a tensor without scope.

    Args:
        nodes: nodes of the graph.
        tensors: names of the tensors.
        scopes: name scopes of the differentiations, with a trailing slash.
    """
    outside: dict[str, None] = {}
    for tensor in tensors:
        inside = tuple(scope for scope in scopes if tensor.startswith(scope))
        outside |= dict.fromkeys(r for r in nodes.readers(tensor) if not (inside and r.startswith(inside)))
    return tuple(outside)


def _joined(gradients: list[RawGradient]) -> list[RawGradient]:
    """The gradients with those of the same (variable, tensor) merged."""
    merged: dict[tuple[str, str], RawGradient] = {}
    for gradient in gradients:
        previous = merged.get((gradient.variable, gradient.tensor))
        readers = (*previous.consumers, *gradient.consumers) if previous else gradient.consumers
        merged[gradient.variable, gradient.tensor] = RawGradient(
            gradient.variable, gradient.tensor, readers, gradient.call, gradient.location, gradient.indices
        )
    return list(merged.values())


def _nearest_updates(nodes: Graph, variables: Mapping[str, RawVariable], reader: str, shape: Shape | None) -> list[str]:
    """The trainable variables of the gradient's shape whose writes are the fewest ops away from a reader.

    Clipping by a global norm links every gradient with every update; the direct way is shorter.
    """
    seen = {reader}
    waiting = deque([reader])
    while waiting:
        candidates: list[str] = []
        for _ in range(len(waiting)):
            name = waiting.popleft()
            if ops.is_variable_write(nodes[name]):
                candidates.extend(h for h in _written(nodes, name) if h in variables and _fits(variables[h], shape))
            for following, position in nodes.consumers[name]:
                is_flow = not nodes[following].input[position].startswith("^") or _reads_back(nodes, name, following)
                if following not in seen and is_flow:
                    seen.add(following)
                    waiting.append(following)
        trainable = list(dict.fromkeys(h for h in candidates if variables[h].trainable))
        if trainable:
            return trainable
    return []


def _reads_back(nodes: Graph, write: str, reader: str) -> bool:
    """Whether a node reads the variable that a write writes: a slot, on the way to a sparse update."""
    return nodes[reader].op == "ReadVariableOp" and node_of(nodes[reader].input[0]) in _written(nodes, write)


def _written(nodes: Graph, name: str) -> list[str]:
    return [p for p, _ in ops.data_inputs(nodes[name]) if nodes[p].op == ops.VARIABLE]


def _is_whole(shape: Shape | None) -> bool:
    """Whether all sizes are known, as those of variables are, and the number of examples is not."""
    return shape is not None and None not in shape


def _may_be_by_variable(gradient: RawGradient, shape: Shape | None) -> bool:
    """Whether a gradient, by its static shape, may be by a variable; of files no shape may be known.

    An open size is a number of rows, or else of examples, and a variable may have the shape of these by chance.
    """
    return gradient.indices is not None or shape is None or _is_whole(shape)


def _fits(variable: RawVariable, shape: Shape | None) -> bool:
    if shape is None:
        return True
    return len(shape) == len(variable.shape) and all(a in (None, b) for a, b in zip(shape, variable.shape))


def _targets(forward: Mapping[str, str], nodes: Graph, region: set[str], scope: str) -> list[str]:
    """The differentiated tensors: outputs of the forward ops whose gradient ops read the initial gradient.

    The list is empty where the program gave the initial gradient: these tensors alone do not decide the reduction then.
    """
    targets: dict[str, None] = {}
    if any(nodes[name].op == "Identity" for name in region if name.startswith(scope + "grad_ys_")):
        return []
    for name in nodes.nodes:
        if name not in region or not name.startswith(scope + "grad_ys_"):
            continue
        waiting, seen = [name], {name}
        while waiting:
            for reader, _ in nodes.consumers[waiting.pop()]:
                if reader not in region or reader in seen:
                    continue
                seen.add(reader)
                if reader in forward:
                    targets[f"{forward[reader]}:0"] = None
                elif reader.startswith(scope + "grad_ys_"):
                    waiting.append(reader)
    return _last(nodes, list(targets))


def _last(nodes: Graph, tensors: list[str]) -> list[str]:
    """The tensors on which no other of the tensors depends."""
    names = {node_of(t): t for t in tensors}
    behind: set[str] = set()
    for name in names:
        behind |= nodes.ancestors([name], control=False) - {name}
    return [t for n, t in names.items() if n not in behind]
