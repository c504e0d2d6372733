"""For which values of which conditions a node runs: what is between Switch and Merge runs in one branch only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caramel.graph.graph import Graph, NodeDef, behind_identities, node_of, parse_input

Guard = tuple[str, int]
"""A node whose value decides, and the value (0 or 1) for which a node runs."""

_ALWAYS: frozenset[Guard] = frozenset()


@dataclass(frozen=True)
class Guards:
    """The branches of a graph.

    Attributes:
        of: for each node all that must hold for it to run.
        decided: for each Merge the conditions that chose its value; empty for other nodes.
    """

    of: Mapping[str, frozenset[Guard]]
    decided: Mapping[str, Sequence[str]]


def guards_of(graph: Graph) -> Guards:
    """Find the branches of a graph without loops of TensorFlow 1."""
    of: dict[str, frozenset[Guard]] = {}
    decided: dict[str, Sequence[str]] = {}
    for name in graph.order:
        of[name], decided[name] = _of_node(graph, graph[name], of)
    return Guards(of, decided)


def condition_of(graph: Graph, guards: Guards, tensor: str) -> str:
    """For which values of which conditions a tensor is there, as text; "" where it always is.

    Args:
        graph: the graph.
        guards: of it.
        tensor: ``node:index``.
    """
    name, index = parse_input(tensor)
    found = guards.of[name]
    if graph[name].op == "Switch":
        found = found | {(_condition(graph, name), index)}
    return ", ".join(f"{condition} = {value}" for condition, value in sorted(found))


def _of_node(
    graph: Graph, node: NodeDef, found: Mapping[str, frozenset[Guard]]
) -> tuple[frozenset[Guard], Sequence[str]]:
    each = []
    for text in node.input:
        producer, index = parse_input(text)
        guards = found[producer]
        if graph[producer].op == "Switch" and index >= 0:
            guards = guards | {(_condition(graph, producer), index)}
        each.append((guards, index))
    if not any(guards for guards, _ in each):
        return _ALWAYS, ()
    together = frozenset().union(*(guards for guards, _ in each))
    if node.op != "Merge":
        return together, ()
    values: dict[str, set[int]] = {}
    for guards, index in each:
        if index >= 0:
            for condition, value in guards:
                values.setdefault(condition, set()).add(value)
    decided = sorted(condition for condition, seen in values.items() if len(seen) > 1)
    return frozenset(g for g in together if g[0] not in decided), decided


def _condition(graph: Graph, switch: str) -> str:
    """The node whose value decides a Switch."""
    return node_of(behind_identities(graph, graph[switch].input[1]))
