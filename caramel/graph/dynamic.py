"""Nodes of loops and branches, for which values decide whether they run once, several times or not at all."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from caramel.graph import ops
from caramel.graph.functions import Library
from caramel.graph.graph import Graph

_ENTERS, _EXITS = frozenset({"Enter", "RefEnter"}), frozenset({"Exit", "RefExit"})
_SWITCHES, _MERGES = frozenset({"Switch", "RefSwitch", "_SwitchN"}), frozenset({"Merge", "RefMerge"})
_CONTROL_FLOW_OPS = ops.BRANCHES | ops.LOOPS | _ENTERS | _SWITCHES


def dynamic_nodes(graph: Graph) -> tuple[str, ...]:
    """Nodes in loops and branches of TensorFlow 1, and calls of functions that have loops or branches.

    Args:
        graph: graph of a step.

    Returns:
        Their names, in the order of the graph.
    """
    library = Library(graph)
    loops = _between([n.name for n in graph if n.op in _ENTERS], _EXITS, graph)
    # Loops have Switches and Merges of their own.
    switches = [n.name for n in graph if n.op in _SWITCHES and n.name not in loops]
    dynamic = loops | _between(switches, _MERGES, graph, through=loops)
    dynamic.update(n.name for n in graph if n.op in ops.BRANCHES | ops.LOOPS)
    dynamic.update(n.name for n in graph if any(inner.op in _CONTROL_FLOW_OPS for _, inner in library.inner_nodes(n)))
    return tuple(n.name for n in graph if n.name in dynamic)


def _between(
    first: Iterable[str], last: Collection[str], graph: Graph, through: Collection[str] = frozenset()
) -> set[str]:
    """Nodes that follow from the first ones, up to ops of the last types that are not in ``through``."""
    reached: set[str] = set()
    waiting = list(first)
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        if graph[name].op not in last or name in through:
            waiting.extend(reader for reader, _ in graph.consumers[name])
    return reached
