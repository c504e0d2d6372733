"""The order of reads and writes of each variable, on workers and on servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

from caramel.errors import UnsupportedError
from caramel.graph.functions import Library
from caramel.graph.graph import NodeDef
from caramel.modifiers.emission import replica_name, server_name
from caramel.modifiers.served import Served

StandIns = Mapping[tuple[str, str], list[tuple[int, NodeDef]]]
"""By handle and name of the Model's node that takes it: the servers, and what stands there for the node."""


def order_accesses(step: Served, copies: Mapping[str, NodeDef], stand_ins: StandIns) -> None:
    """Let accesses of a variable of which one is a write follow each other as in the Model, wherever the variable is.

    In the Model a path may lead from one to the other over nodes of the other side, or of another server, and its edges
    are not all kept. So an edge of its own says the order, but where the first one is in a branch that may not be
    taken: then the edges of branches do, which are all kept.

    Args:
        step: the step in the making; nodes of workers are changed.
        copies: servers' copies of nodes, by their names; they are changed.
        stand_ins: what stands for workers' nodes on servers; they are changed. A write that has no order with one comes
            after it.

    Raises:
        UnsupportedError: a variable is written in a branch, and its handle used by what each worker does by itself.
    """
    library = Library(step.graph)
    accesses: dict[str, list[str]] = {}
    for variable in step.model.variables:
        if variable.node in step.graph:
            users = dict.fromkeys(step.graph.data_readers(variable.node))
            if len(users) > 1 and any(variable.node in library.written(step.graph[user]) for user in users):
                accesses[variable.node] = list(users)
    is_before = step.graph.order_of(name for names in accesses.values() for name in names)
    for handle, names in accesses.items():
        writers = {name for name in names if handle in library.written(step.graph[name])}
        for one, other in combinations(names, 2):
            if writers.isdisjoint((one, other)):
                continue
            for first, last in ((one, other), (other, one)):
                if is_before(first, last) or ((handle, first) in stand_ins and not is_before(last, first)):
                    _order(step, copies, stand_ins, handle, first, last)


def _order(
    step: Served, copies: Mapping[str, NodeDef], stand_ins: StandIns, handle: str, first: str, last: str
) -> None:
    """Let one access of a variable wait for another one."""
    is_always = (handle, first) in stand_ins or not step.guards[first]
    if not is_always and (handle, last) in stand_ins:
        node = step.graph[first]
        raise UnsupportedError(
            f"op {first!r} ({node.op}) writes a variable in a branch, and {last!r} ({step.graph[last].op}) then takes "
            "its handle on each worker, which parameter servers cannot follow: use all-reduces"
        )
    if not is_always and not step.guards[first] <= step.guards[last]:
        return
    if handle not in step.split.variables:
        for rank in range(step.workers):
            if replica_name(rank, first) in step.emission.graph and replica_name(rank, last) in step.emission.graph:
                _wait(step.current(replica_name(rank, last)), replica_name(rank, first))
        return
    for server in step.places[handle]:
        awaited = [node.name for node in _there(server, copies, stand_ins, handle, first)]
        for node in _there(server, copies, stand_ins, handle, last):
            for name in awaited:
                _wait(node, name)


def _there(
    server: int, copies: Mapping[str, NodeDef], stand_ins: StandIns, handle: str, name: str
) -> Iterator[NodeDef]:
    """The nodes of a server that are, or stand for, an access."""
    yield from (node for where, node in stand_ins.get((handle, name), ()) if where == server)
    if server_name(server, name) in copies:
        yield copies[server_name(server, name)]


def _wait(node: NodeDef, name: str) -> None:
    if f"^{name}" not in node.input:
        node.input.append(f"^{name}")
