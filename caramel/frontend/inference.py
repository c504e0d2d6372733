"""Finding the differentiation in a finished tf.Graph that was built before Caramel could watch.

TensorFlow's gradient code records on each op that it makes which forward op it differentiates, and
puts all ops of one differentiation under one name scope. That gives the region of ops that belong
to it; tensors that leave the region towards a variable's update are the gradients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from caramel.errors import CaptureError
from caramel.frontend.raw import RawGradient, RawVariable
from caramel.graph import ops
from caramel.graph.graph import Graph, format_input, node_of, parse_input, tensor_name


def infer_differentiation(
    graph: Any, nodes: Graph, variables: Mapping[str, RawVariable], train_op: str
) -> tuple[tuple[RawGradient, ...], tuple[tuple[str, int], ...]]:
    """Gradients and differentiated tensors of a finished graph.

    Args:
        graph: the tf.Graph (its Python operations know what they differentiate).
        nodes: its nodes.
        variables: by handle node.
        train_op: name of the training op.

    Raises:
        CaptureError: no differentiation can be found, or a gradient's variable is ambiguous.
    """
    scopes = _scopes(graph)
    if not scopes:
        raise CaptureError(
            "no differentiation was found in the finished graph (nothing was made by tf.gradients): "
            "build the graph inside 'with caramel.capture()' instead"
        )
    step = nodes.ancestors([train_op])
    gradients: list[RawGradient] = []
    differentiated: list[tuple[str, int]] = []
    for call, scope in enumerate(scopes, start=1):
        region = {name for name in step if name.startswith(scope)}
        gradients.extend(_gradients(nodes, variables, step, region, scope, call))
        differentiated.extend((tensor, call) for tensor in _targets(graph, nodes, region, scope))
    return tuple(gradients), tuple(differentiated)


def _scopes(graph: Any) -> list[str]:
    """Name scopes of the differentiations, with a trailing slash, in the order of the graph."""
    found: dict[str, None] = {}
    for op in graph.get_operations():
        forward = getattr(op, "_original_op", None)
        if forward is None:
            continue
        inner = f"{forward.name}_grad/"
        position = op.name.rfind("/" + inner)
        if position >= 0:
            found[op.name[: position + 1]] = None
    scopes = list(found)
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
    found: list[RawGradient] = []
    for tensor, readers in leaving.items():
        by_variable: dict[str, list[str]] = {}
        for reader in readers:
            variable = _nearest_update(nodes, variables, reader, _shape(nodes, tensor), scope)
            if variable is not None:
                by_variable.setdefault(variable, []).append(reader)
        location = f"scope {scope!r} of the finished graph"
        found.extend(RawGradient(v, tensor, tuple(r), call, False, location) for v, r in by_variable.items())
    order = {handle: position for position, handle in enumerate(variables)}
    return sorted(_joined(found), key=lambda g: (order[g.variable], g.tensor))


def _joined(gradients: list[RawGradient]) -> list[RawGradient]:
    """One entry for each (variable, tensor)."""
    merged: dict[tuple[str, str], RawGradient] = {}
    for g in gradients:
        known = merged.get((g.variable, g.tensor))
        readers = (*known.consumers, *g.consumers) if known else g.consumers
        merged[g.variable, g.tensor] = RawGradient(g.variable, g.tensor, readers, g.call, g.sparse, g.location)
    return list(merged.values())


def _shape(nodes: Graph, tensor: str) -> tuple[int, ...] | None:
    name, index = parse_input(tensor)
    shapes = nodes[name].attr["_output_shapes"].list.shape
    if index >= len(shapes) or shapes[index].unknown_rank:
        return None
    return tuple(d.size for d in shapes[index].dim)


def _nearest_update(
    nodes: Graph,
    variables: Mapping[str, RawVariable],
    reader: str,
    shape: tuple[int, ...] | None,
    scope: str,
) -> str | None:
    """The variable whose write is the fewest ops away and that has the gradient's shape.

    Clipping by a global norm links every gradient with every update; the direct way is shorter.
    """
    seen = {reader}
    waiting = deque([reader])
    while waiting:
        level = len(waiting)
        candidates: list[str] = []
        for _ in range(level):
            name = waiting.popleft()
            node = nodes[name]
            if ops.is_variable_write(node):
                candidates.extend(h for h in _written(nodes, name) if h in variables and _fits(variables[h], shape))
                continue
            for following, position in nodes.consumers[name]:
                if following not in seen and not nodes[following].input[position].startswith("^"):
                    seen.add(following)
                    waiting.append(following)
        trainable = list(dict.fromkeys(h for h in candidates if variables[h].trainable))
        if len(trainable) > 1:
            raise CaptureError(
                f"the gradient read by {reader!r} (in {scope!r}) updates {variables[trainable[0]].name!r} and "
                f"{variables[trainable[1]].name!r}: which one it belongs to cannot be told from a "
                "finished graph; build it inside 'with caramel.capture()'"
            )
        if trainable:
            return trainable[0]
    return None


def _written(nodes: Graph, name: str) -> list[str]:
    return [p for p, _ in ops.data_inputs(nodes[name]) if nodes[p].op == ops.VARIABLE]


def _fits(variable: RawVariable, shape: tuple[int, ...] | None) -> bool:
    if shape is None:
        return True
    return len(shape) == len(variable.shape) and all(a in (-1, b) for a, b in zip(shape, variable.shape))


def _targets(graph: Any, nodes: Graph, region: set[str], scope: str) -> list[str]:
    """The differentiated tensors: what the ops differentiate that take the initial gradient."""
    found: dict[str, None] = {}
    for name in nodes.nodes:
        if name not in region or not name.startswith(scope + "grad_ys_"):
            continue
        waiting, seen = [name], {name}
        while waiting:
            for reader, _ in nodes.consumers[waiting.pop()]:
                if reader not in region or reader in seen:
                    continue
                seen.add(reader)
                forward = getattr(graph.get_operation_by_name(reader), "_original_op", None)
                if forward is not None and forward.outputs:
                    found[tensor_name(format_input(node_of(forward.name), 0))] = None
                elif reader.startswith(scope + "grad_ys_"):
                    waiting.append(reader)
    return _last(nodes, list(found))


def _last(nodes: Graph, tensors: list[str]) -> list[str]:
    """Those that no other of the tensors depends on."""
    names = {node_of(t): t for t in tensors}
    behind: set[str] = set()
    for name in names:
        behind |= nodes.ancestors([name], control=False) - {name}
    return [t for n, t in names.items() if n not in behind]
