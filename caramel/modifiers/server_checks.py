"""Checks of a graph with parameter servers, which know little of how it was made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from caramel.analyzers.servers.placement import node_servers
from caramel.analyzers.servers.split import ServedLookup, split_step
from caramel.errors import InvariantError
from caramel.graph.graph import node_of
from caramel.graph.guards import guards_of
from caramel.modifiers.emission import Emission, Purpose, replica_name, server_name
from caramel.modifiers.serve import server_step
from caramel.modifiers.server_handles import gather_name, held_name, table_of


def verify_served(emission: Emission) -> Emission:
    """Servers make every write of their variables, of the gradients of all workers, in the Model's order.

    Args:
        emission: the emission with servers.

    Returns:
        The emission, unchanged.

    Raises:
        InvariantError: a node breaks this, reads what another worker has, or waits for a branch that may not be taken;
            the text names it.
    """
    _verify_sides(emission)
    _verify_updates(emission)
    _verify_branches(emission)
    _verify_accesses(emission)
    return emission


def _verify_sides(emission: Emission) -> None:
    """No worker reads another's, and none writes what is on servers."""
    workers, graph, roles = emission.plan.workers, emission.graph, emission.roles
    for node_def in graph:
        rank = roles[node_def.name].rank
        for source in graph.sources(node_def.name):
            other = roles[source].rank
            if rank < workers and other < workers and rank != other and roles[node_def.name].purpose is Purpose.REPLICA:
                raise InvariantError(
                    f"after serve: node {node_def.name!r} of worker {rank} reads {source!r} of worker {other}"
                )
    for name, writer in _served_writers(emission):
        if any(replica_name(rank, writer) in graph for rank in range(workers)):
            raise InvariantError(f"after serve: a worker writes {name!r}, which is on a server")


def _verify_updates(emission: Emission) -> None:
    """Before each write of a variable on a server are the gradients from which it follows, of all workers."""
    masks, before = split_step(emission.model).masks, _complete_gradients(emission)
    for name, writer in _served_writers(emission):
        for server in range(len(emission.plan.server_devices)):
            there = server_name(server, writer)
            if there in emission.graph and (missing := masks[writer] & ~before.get(there, 0)):
                gradient = emission.model.gradients[missing.bit_length() - 1]
                raise InvariantError(
                    f"after serve: the update of {name!r} on server {server} lacks a worker's {gradient.name!r}"
                )


def _served_writers(emission: Emission) -> Iterator[tuple[str, str]]:
    """Each variable that servers have, with each op of the Model that writes it."""
    variables = split_step(emission.model).variables
    for name, writers in emission.model.updates:
        if emission.model.variable_by_name[name].node in variables:
            yield from ((name, writer) for writer in writers)


def _verify_branches(emission: Emission) -> None:
    """What always runs in the Model waits on servers for nothing that is in a branch; so each step ends."""
    graph, model = emission.graph, emission.model.graph
    guards = guards_of(model).by_node
    for server in range(len(emission.plan.server_devices)):
        names = {server_name(server, name): name for name in split_step(emission.model).nodes}
        certain = [copy for copy, name in names.items() if not guards[name] and model[name].op != "Merge"]
        for copy in (*certain, server_step(server)):
            for source in graph.sources(copy) if copy in graph else ():
                if guards.get(source.partition("/")[2]) and not source.startswith("caramel/"):
                    raise InvariantError(f"after serve: {copy!r} waits for {source!r}, which is in a branch")


def _verify_accesses(emission: Emission) -> None:
    """Wherever a variable is, a write and another access of it are in the order that they have in the Model."""
    model, copies_of = emission.model, _copies_of_accesses(emission)
    handles = [v.node for v in model.variables if v.node in model.graph]
    users = {handle: dict.fromkeys(reader for reader, _ in model.graph.consumers[handle]) for handle in handles}
    copies = {(handle, user): copies_of(handle, user) for handle in handles for user in users[handle]}
    is_wanted = model.graph.order_of(user for names in users.values() for user in names)
    all_copies = (name for by_rank in copies.values() for names in by_rank.values() for name in names)
    is_found = emission.graph.order_of(all_copies)
    writers = {model.variable_by_name[name].node: names for name, names in model.updates}
    for handle in handles:
        for last in users[handle]:
            others = users[handle] if last in writers.get(handle, ()) else writers.get(handle, ())
            for first in (other for other in others if is_wanted(other, last)):
                for rank, names in copies[handle, last].items():
                    for name in names:
                        lost = [each for each in copies[handle, first].get(rank, ()) if not is_found(each, name)]
                        if lost:
                            raise InvariantError(f"after serve: {name!r} does not wait for {lost[0]!r}")


def _copies_of_accesses(emission: Emission) -> Callable[[str, str], Mapping[int, Sequence[str]]]:
    """A function from a handle and a node that takes it to the nodes that do so in the emitted graph, by rank."""
    plan, split = emission.plan, split_step(emission.model)
    servers_of_plan = plan.servers
    assert servers_of_plan is not None
    workers, servers = range(plan.workers), range(len(plan.server_devices))
    places = node_servers(emission.model, servers_of_plan.homes)
    lookups: dict[str, list[tuple[int, ServedLookup]]] = {}
    for number, lookup in enumerate(split.lookups):
        lookups.setdefault(lookup.taker, []).append((number, lookup))
    held: dict[tuple[str, str], list[int]] = {}
    for number, (name, position) in enumerate(split.holders):
        held.setdefault((node_of(emission.model.graph[name].input[position]), name), []).append(number)

    def names(server: int, handle: str, user: str) -> list[str]:
        found = [held_name(server, number) for number in held.get((handle, user), ())]
        for number, lookup in lookups.get(user, ()):
            _, owners = table_of(emission.model, servers_of_plan, lookup)
            if server in owners:
                found += [gather_name(number, owners.index(server), rank) for rank in workers]
        if server in places.get(user, ()) and user not in split.unread:
            found.append(server_name(server, user))
        return found

    def copies(handle: str, user: str) -> Mapping[int, Sequence[str]]:
        if handle not in split.variables:
            all_names = {rank: [replica_name(rank, user)] for rank in workers}
        else:
            all_names = {len(workers) + server: names(server, handle, user) for server in servers}
        return {rank: [each for each in found if each in emission.graph] for rank, found in all_names.items()}

    return copies


def _complete_gradients(emission: Emission) -> dict[str, int]:
    """For each node, by its name, a bit mask of the gradients that precede it from every worker."""
    numbers = {g.name: number for number, g in enumerate(emission.model.gradients)}
    local: dict[str, int] = {}
    for (rank, name), tensor in emission.gradients.items():
        local[node_of(tensor)] = local.get(node_of(tensor), 0) | 1 << (rank * len(numbers) + numbers[name])
    found: dict[str, int] = {}
    for name in emission.graph.order:
        mask = local.get(name, 0)
        for source in emission.graph.sources(name):
            mask |= found[source]
        found[name] = mask
    every = (1 << len(numbers)) - 1
    return {name: _in_all(mask, emission.plan.workers, len(numbers), every) for name, mask in found.items() if mask}


def _in_all(mask: int, workers: int, width: int, every: int) -> int:
    """The bits that are set in each worker's part of a mask."""
    common = every
    for rank in range(workers):
        common &= mask >> (rank * width)
    return common
