"""Conditions under which a node runs: nodes between Switch and Merge run in one branch only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from caramel.graph.graph import Graph, NodeDef, behind_identities, node_of, parse_input

Guard = tuple[str, int]
"""A condition's node, and the value of it (0 or 1) for which a guarded node runs."""

_UNCONDITIONAL: frozenset[Guard] = frozenset()


@dataclass(frozen=True)
class Guards:
    """The branches of a graph.

    Attributes:
        by_node: the guards that must all hold for a node to run, by node name.
        decided: names of the conditions that choose the value of a Merge, by node name; empty for other nodes.
    """

    by_node: Mapping[str, frozenset[Guard]]
    decided: Mapping[str, Sequence[str]]


_known: WeakKeyDictionary[Graph, Guards] = WeakKeyDictionary()
"""The branches of graphs, which never change, for as long as these are there."""


def guards_of(graph: Graph) -> Guards:
    """Find the branches of a graph without loops of TensorFlow 1."""
    found = _known.get(graph)
    if found is None:
        found = _known[graph] = _found_in(graph)
    return found


def _found_in(graph: Graph) -> Guards:
    by_node: dict[str, frozenset[Guard]] = {}
    decided: dict[str, Sequence[str]] = {}
    order = graph.order
    if not any(node.op == "Switch" for node in graph):
        return Guards(dict.fromkeys(order, _UNCONDITIONAL), dict.fromkeys(order, ()))
    for name in order:
        by_node[name], decided[name] = _of_node(graph, graph[name], by_node)
    return Guards(by_node, decided)


def condition_of(graph: Graph, guards: Guards, tensor: str) -> str:
    """The values of conditions for which a tensor exists, as text; "" where it always exists.

    Args:
        graph: graph that the tensor belongs to.
        guards: guards of the graph.
        tensor: name of the tensor, ``node:index``.
    """
    name, index = parse_input(tensor)
    guard_set = guards.by_node[name]
    if graph[name].op == "Switch":
        guard_set = guard_set | {(_condition(graph, name), index)}
    return ", ".join(f"{condition} = {value}" for condition, value in sorted(guard_set))


def _of_node(
    graph: Graph, node: NodeDef, guards_by_node: Mapping[str, frozenset[Guard]]
) -> tuple[frozenset[Guard], Sequence[str]]:
    input_guards = []
    for text in node.input:
        producer, index = parse_input(text)
        guards = guards_by_node[producer]
        if graph[producer].op == "Switch" and index >= 0:
            guards = guards | {(_condition(graph, producer), index)}
        input_guards.append((guards, index))
    if not any(guards for guards, _ in input_guards):
        return _UNCONDITIONAL, ()
    all_guards = frozenset().union(*(guards for guards, _ in input_guards))
    if node.op != "Merge":
        return all_guards, ()
    values: dict[str, set[int]] = {}
    for guards, index in input_guards:
        if index >= 0:
            for condition, value in guards:
                values.setdefault(condition, set()).add(value)
    decided = sorted(condition for condition, seen in values.items() if len(seen) > 1)
    return frozenset(g for g in all_guards if g[0] not in decided), decided


def _condition(graph: Graph, switch: str) -> str:
    """The node whose value decides a Switch."""
    return node_of(behind_identities(graph, graph[switch].input[1]))
