"""Placement: which server has which variables of a step, and so which of its nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import networkx as nx

from caramel.analyzers.servers.split import Split, split_step
from caramel.analyzers.step.element_updates import ElementUpdate, element_updates
from caramel.analyzers.step.kept import once_per_model
from caramel.analyzers.step.row_updates import RowUpdate, row_updates
from caramel.collectives.dealt_rows import rows_of_owners
from caramel.collectives.schedule import ALIGNMENT_ELEMENTS
from caramel.errors import InputError, UnsupportedError
from caramel.graph import ops
from caramel.graph.graph import node_of
from caramel.model import Gradient, Model, Variable
from caramel.server_plan import Home, ServerPart


@dataclass(frozen=True)
class VariableGroup:
    """Variables that are on one server together: a parameter with its slots, say.

    Attributes:
        variables: the variables, in the order of the Model.
        read_bytes: bytes of those of them that workers read in every step, or of which they look rows up.
        pulled_bytes: bytes of those of them that workers read in every step.
        follows_gradients: whether what is written follows from gradients. Other variables (counters) are small, and
            each server can count for itself. Of a step that trains nothing every variable counts as if it did.
        update: the update that each of several servers can make a part of, by elements or by rows; None where one has
            to make all of it.
        whole_reason: reason why one has to; "" where several can.
    """

    variables: tuple[Variable, ...]
    read_bytes: int
    pulled_bytes: int
    follows_gradients: bool
    update: ElementUpdate | RowUpdate | None = None
    whole_reason: str = ""

    @property
    def rows(self) -> int:
        """The number of rows of the table, where it can be divided by rows; else 0."""
        return self.variables[0].shape[0] if isinstance(self.update, RowUpdate) else 0


def variable_groups(model: Model, exact_bits: bool = False) -> tuple[VariableGroup, ...]:
    """The variables that servers hold, in groups, in the order of the Model.

    Args:
        model: the single-device step.
        exact_bits: whether an update of which a part may have other bits than the same elements of the whole counts as
            one that cannot be divided.
    """
    split = split_step(model)
    groups = nx.Graph()
    groups.add_nodes_from(split.variables)
    for name in split.nodes:  # an op that takes several handles
        nx.add_path(groups, _handles_of(model, split, name))
    owners = _owners(model, split)
    for handle, parameter in owners.items():
        groups.add_edge(handle, parameter)
    order = {v.node: position for position, v in enumerate(model.variables)}
    members = (sorted(found, key=order.__getitem__) for found in nx.connected_components(groups))
    in_order = sorted(members, key=lambda handles: order[handles[0]])
    return tuple(_group(model, split, handles, exact_bits) for handles in in_order)


def _handles_of(model: Model, split: Split, name: str) -> list[str]:
    """The handles of variables of the servers that a node takes."""
    sources = dict.fromkeys(producer for producer, _ in ops.data_inputs(model.graph[name]))
    return [source for source in sources if source in split.variables]


def _owners(model: Model, split: Split) -> Mapping[str, str]:
    """For handles of slots and the like, the handle of the parameter to which they belong.

    A slot belongs to the parameter whose update, or that of whose slots, and no other, needs it. What no update needs
    (a mean over the steps) belongs to the parameter from which, and from no other, it follows.
    """
    parameters = {model.variable_by_name[g.parameter].node for g in model.gradients} & split.variables.keys()
    writers = {model.variable_by_name[name].node: names for name, names in model.updates}
    uses: dict[str, set[str]] = {}
    users: dict[str, set[str]] = {handle: set() for handle in split.variables}
    for handle in split.variables:
        cone = _cone(model, split, writers.get(handle, ()))
        needed = (h for name in cone for h in _handles_of(model, split, name))
        uses[handle] = {*needed} - {handle}
        for other in uses[handle]:
            users[other].add(handle)
    owners = {parameter: parameter for parameter in parameters}
    is_changed = True
    while is_changed:
        is_changed = False
        for handle in [each for each in split.variables if each not in owners]:
            if users[handle]:
                found = {owners.get(user, "") for user in users[handle]}
            else:
                found = {owners[other] for other in uses[handle] if other in owners}
            if len(found) == 1 and "" not in found:
                owners[handle] = found.pop()
                is_changed = True
    return {handle: parameter for handle, parameter in owners.items() if handle not in parameters}


def _cone(model: Model, split: Split, names: Sequence[str]) -> set[str]:
    """The nodes of servers whose data some nodes need, behind no result of a gradient."""
    found: set[str] = set()
    waiting = [name for name in names if name in split.members]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            texts = [text for text in model.graph[name].input if not text.startswith("^")]
            waiting += [source for source in map(node_of, texts) if source in split.members]
    return found


def _group(model: Model, split: Split, handles: Sequence[str], exact_bits: bool) -> VariableGroup:
    variables = tuple(split.variables[handle] for handle in handles)
    writers = dict(model.updates)
    written = (writer for v in variables for writer in writers.get(v.name, ()))
    follows = not model.gradients or any(split.masks.get(writer, 0) for writer in written)
    pulled_bytes = sum(v.size_bytes for v in variables if _is_pulled(model, split, v.node))
    looked_up = {lookup.handle for lookup in split.lookups}
    rows_bytes = sum(v.size_bytes for v in variables if v.node in looked_up and not _is_pulled(model, split, v.node))
    group = VariableGroup(variables, pulled_bytes + rows_bytes, pulled_bytes, follows)
    try:
        return replace(group, update=_divisible(model, split, group, exact_bits))
    except _IsWholeError as error:
        return replace(group, whole_reason=str(error))


def pulled_variables(model: Model) -> tuple[str, ...]:
    """The plan's names of the variables that workers pull, each by one message from each of its servers.

    Args:
        model: the single-device step.
    """
    split = split_step(model)
    handles = dict.fromkeys(node_of(model.graph[name].input[0]) for name in pulled_reads(model))
    return tuple(split.variables[handle].plan_name for handle in handles)


@once_per_model
def pulled_reads(model: Model) -> tuple[str, ...]:
    """The ops of servers that read all of a variable of theirs, for workers or also for these.

    Args:
        model: the single-device step.
    """
    graph, split = model.graph, split_step(model)
    return tuple(
        name
        for name in split.nodes
        if graph[name].op == "ReadVariableOp"
        and node_of(graph[name].input[0]) in split.variables
        and any(r not in split.only_there and r not in split.lookup_by_node for r in graph.data_readers(name))
    )


def _is_pulled(model: Model, split: Split, handle: str) -> bool:
    """Whether workers get the whole value of a variable in every step, by a read or as a copy for its handle."""
    readers = [reader for reader, _ in model.graph.consumers[handle]]
    if any(reader not in split.members and reader not in split.lookup_by_node for reader in readers):
        return True
    return not {*readers}.isdisjoint(pulled_reads(model))


class _IsWholeError(Exception):
    """Why an update cannot be divided between servers."""


def _divisible(model: Model, split: Split, group: VariableGroup, exact_bits: bool) -> ElementUpdate | RowUpdate:
    names = {v.name for v in group.variables}
    gradients = [g for g in model.gradients if g.parameter in names]
    if len(gradients) != 1:
        raise _IsWholeError("it has not one gradient")
    (gradient,) = gradients
    update: ElementUpdate | RowUpdate
    updates, reasons = row_updates(model) if gradient.is_sparse else element_updates(model)
    if gradient.name not in updates:
        raise _IsWholeError(reasons[gradient.name])
    update = updates[gradient.name]
    if {update.parameter, *update.slots} != names:
        raise _IsWholeError("other variables follow from it")
    if exact_bits and update.other_bits:
        raise _IsWholeError(update.other_bits)
    if isinstance(update, RowUpdate):
        _check_lookups(model, split, update)
        return update
    for variable in group.variables:
        for reader, _ in model.graph.consumers[variable.node]:
            if reader not in update.nodes and (user := _user_of_whole(model, split, update, reader)) is not None:
                raise _IsWholeError(f"op {user!r} ({model.graph[user].op}) needs all of it")
    return update


def _check_lookups(model: Model, split: Split, update: RowUpdate) -> None:
    """Refuse a table of which workers look up rows in another way than by one op for each lookup, in no branch."""
    graph, own = model.graph, {*update.nodes, *(name for name in update.shapes if name in split.members)}
    users = {lookup.node for lookup in update.lookups}
    for user, _ in graph.consumers[model.variable_by_name[update.parameter].node]:
        users |= {*graph.data_readers(user)} if graph[user].op == "ReadVariableOp" else {user}
    for name in sorted(users - own):
        if name not in split.lookup_by_node:
            raise _IsWholeError(f"op {name!r} ({graph[name].op}) needs all of it")


def _user_of_whole(model: Model, split: Split, update: ElementUpdate, reader: str) -> str | None:
    """The op of a server that needs all of a variable, by an op that takes its handle; None where only workers do.

    What the update gets of a read is as good as the parts of it.
    """
    if model.graph[reader].op != "ReadVariableOp":
        return reader
    return next((r for r in model.graph.data_readers(reader) if r in split.only_there and r not in update.nodes), None)


LARGEST_SHARE = 0.25
"""A variable above this fraction of the mean bytes read per server is divided, if it can be (our choice)."""


def place(groups: Sequence[VariableGroup], servers: int) -> tuple[Home, ...]:
    """Which server has which variables: the largest first, each where least is read so far.

    A variable with more than a quarter of the mean bytes that are read of a server is divided between all servers, if
    it can be.

    Args:
        groups: groups of variables.
        servers: number of servers.

    Returns:
        The home of each group, in the order of the groups.

    Raises:
        UnsupportedError: there is no variable.
        InputError: there are more servers than variables that they could have.
    """
    variables = sum(len(group.variables) for group in groups)
    if not variables:
        raise UnsupportedError(
            "the step has no variable that servers could have: what it updates, if anything, is a worker's own (an "
            "update that draws random numbers is, for one)"
        )
    if servers > variables:
        raise InputError(
            f"servers={servers}: there are {variables} variables that servers could have, so some would have nothing "
            f"to do: take at most {variables}"
        )
    total = sum(group.read_bytes for group in groups)
    loads = [0.0] * servers
    homes: dict[int, Home] = {}
    by_size = sorted(range(len(groups)), key=lambda n: (-groups[n].read_bytes, n))
    for number in by_size:
        group = groups[number]
        names = tuple(v.plan_name for v in group.variables)
        if not group.follows_gradients:
            homes[number] = Home(names, tuple(map(ServerPart, range(servers))), group.pulled_bytes)
            continue
        parts = _parts(group, servers)
        if len(parts) > 1 and group.read_bytes > LARGEST_SHARE * total / servers:
            homes[number] = Home(names, parts, group.pulled_bytes)
            for part, count in zip(parts, homes[number].counts):
                loads[part.server] += group.read_bytes * count / sum(homes[number].counts)
            continue
        least = min(range(servers), key=lambda server: (loads[server], server))
        loads[least] += group.read_bytes
        homes[number] = Home(names, (ServerPart(least),), group.pulled_bytes)
    return tuple(homes[number] for number in range(len(groups)))


def _parts(group: VariableGroup, servers: int) -> tuple[ServerPart, ...]:
    """Equal parts of a group; none if it cannot be divided.

    Elements are cut where vector instructions begin anew.
    """
    if group.update is None:
        return ()
    if group.rows:
        rows = rows_of_owners(group.rows, min(servers, group.rows))
        return tuple(ServerPart(server, rows=count) for server, count in enumerate(rows))
    size = group.variables[0].size
    each = -(-size // (servers * ALIGNMENT_ELEMENTS)) * ALIGNMENT_ELEMENTS
    sizes = [min(each, size - server * each) for server in range(servers)]
    return tuple(ServerPart(server, elements) for server, elements in enumerate(sizes) if elements > 0)


def node_servers(model: Model, homes: Collection[Home]) -> Mapping[str, tuple[int, ...]]:
    """The servers that run each node; what several run has its own part there, or counts for itself.

    Args:
        model: the single-device step.
        homes: homes of the variables.
    """
    split = split_step(model)
    by_name = {name: home for home in homes for name in home.variables}
    of_handle = {handle: by_name[v.plan_name] for handle, v in split.variables.items()}
    of_gradient = [gradient_servers(model, g, by_name) for g in model.gradients]
    divided = {name: home.servers for home, update in divided_updates(model, homes) for name in update.nodes}
    found: dict[str, tuple[int, ...]] = {}
    for name in reversed(split.nodes):
        handles = _handles_of(model, split, name)
        mask = split.masks[name]
        if name in of_handle:
            found[name] = of_handle[name].servers
        elif handles:
            found[name] = of_handle[handles[0]].servers
        elif name in divided:
            found[name] = divided[name]
        elif mask and mask & (mask - 1) == 0 and len(of_gradient[mask.bit_length() - 1]) == 1:
            found[name] = of_gradient[mask.bit_length() - 1]
        else:
            readers = [r for r, _ in model.graph.consumers[name] if r in found]
            wanted = sorted({server for reader in readers for server in found[reader]})
            several = tuple(wanted) or (0,)
            found[name] = several[:1] if mask else several
    return found


def gradient_servers(model: Model, gradient: Gradient, homes: Mapping[str, Home]) -> tuple[int, ...]:
    """The servers to which workers send a gradient, or parts of it.

    Args:
        model: the single-device step.
        gradient: the gradient.
        homes: homes by the plan's names of the variables.
    """
    home = homes.get(model.variable_by_name[gradient.parameter].plan_name)
    return (0,) if home is None else home.servers


def divided_updates(model: Model, homes: Collection[Home]) -> list[tuple[Home, ElementUpdate | RowUpdate]]:
    """The updates of which each of several servers makes a part.

    Args:
        model: the single-device step.
        homes: homes of the variables.
    """
    names = {v.plan_name: v.name for v in model.variables}
    updates: list[ElementUpdate | RowUpdate] = [*element_updates(model)[0].values(), *row_updates(model)[0].values()]
    parameters = {update.parameter: update for update in updates}
    return [
        (home, next(parameters[names[name]] for name in home.variables if names[name] in parameters))
        for home in homes
        if home.is_divided
    ]
