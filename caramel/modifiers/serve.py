"""Serve: variables and updates move to parameter servers, which workers pull from and push to.

A worker keeps what differs between workers: its examples, the forward pass and the gradients. What follows from the
gradients of all workers, and the variables that are written by it, is on a server, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from caramel.graph import ops
from caramel.graph.devices import Device, merge
from caramel.graph.graph import (
    Graph,
    NodeDef,
    control_texts,
    copied,
    data_texts,
    format_input,
    node_of,
    parse_input,
    tensor_name,
)
from caramel.graph.nodes import colocate, colocated, dtypes_attribute, group, node, shape_attribute
from caramel.graph.shapes import SHAPES_ATTRIBUTE
from caramel.modifiers.access_order import order_accesses
from caramel.modifiers.emission import Emission, own_name, replica_name, server_name
from caramel.modifiers.served import Served
from caramel.modifiers.server_handles import Handles
from caramel.modifiers.server_pulls import Pulls
from caramel.modifiers.server_pushes import Pushes
from caramel.modifiers.table_nodes import row_count, stated_shape
from caramel.modifiers.weigh import replica_tensor


def serve(emission: Emission) -> Emission:
    """Move variables and updates to the plan's servers.

    Args:
        emission: the emission with weighed gradients, none of which is aggregated yet. Its plan has servers.

    Returns:
        The emission with a copy of the updates on servers, and without any on workers. The node
        ``caramel/server_k/step`` is done when server k's part of a step is.

    Source:
        TicTac, section 2.1.
    """
    return _Serving(emission).served()


def server_step(server: int) -> str:
    """Name of the op that is done when a server's part of a step is."""
    return f"caramel/server_{server}/step"


class _Serving:
    def __init__(self, emission: Emission) -> None:
        self._step = Served(emission)
        self._pushes = Pushes(self._step)
        self._pulls = Pulls(self._step, self._pushes)
        self._handles = Handles(self._step, self._pulls)
        self._copies: dict[str, NodeDef] = {}

    def served(self) -> Emission:
        """See `serve`."""
        for server in range(len(self._step.servers.devices)):
            for name in self._step.split.nodes:
                if server in self._step.places[name]:
                    self._copy(server, name)
        self._handles.hold()
        self._handles.look_up()
        for rank in range(self._step.workers):
            self._pull(rank)
            self._give_back(rank)
        order_accesses(self._step, self._copies, self._handles.stand_ins)
        self._pulls.take_turns()
        self._end_steps()
        return self._finished()

    def _finished(self) -> Emission:
        """The emission without the workers' copies of what is on servers only."""
        emission, served = self._step.emission, self._step
        names = {replica_name(rank, name) for rank in range(served.workers) for name in served.split.only_there}
        kept: list[NodeDef] = [served.changed.get(n.name, n) for n in emission.graph if n.name not in names]
        kept = [_without_colocation(each, names) for each in kept]
        nodes = [*kept, *(node_def for node_def, _ in served.added)]
        graph = Graph(nodes, emission.graph.library, emission.graph.versions, emission.graph)
        roles = {n.name: emission.roles[n.name] for n in kept} | {n.name: role for n, role in served.added}
        return replace(emission, graph=graph, roles=roles)

    # -- on servers --------------------------------------------------------------------------

    def _copy(self, server: int, name: str) -> None:
        """Give a server its copy of a node."""
        original = self._step.graph[name]
        if name in self._shapes:
            self._state_shape(server, name)
            return
        if name in self._step.split.unread:
            self._read_nothing(server, name)
            return
        inputs = [self._input(server, name, text) for text in data_texts(original)]
        if name in self._counts:
            position, rows = self._counts[name]
            inputs[position] = self._count(server, name, rows[server])
        copy = copied(original, [*inputs, *self._step.server_controls(server, name)])
        copy.name = server_name(server, name)
        copy.device = merge(original.device, Device.parse(self._step.servers.devices[server]), name)
        colocate(copy, lambda other: server_name(server, other) if server in self._step.places.get(other, ()) else None)
        if original.op == ops.VARIABLE:
            copy.attr["shared_name"].s = server_name(server, name).encode()
            self._divide(server, name, copy)
        if name in self._step.divided:
            copy.attr.pop(SHAPES_ATTRIBUTE, None)
        self._copies[server_name(server, name)] = copy
        self._step.add(copy, self._step.workers + server)

    def _divide(self, server: int, name: str, copy: NodeDef) -> None:
        """Give a handle the shape of the server's elements or rows, if it has not all."""
        whose = self._step.split.variables.get(name)
        home = None if whose is None else self._step.home(whose)
        if whose is None or home is None or not home.is_divided:
            return
        place = home.servers.index(server)
        shape = (home.rows[place], *whose.shape[1:]) if home.rows else (home.sizes[place],)
        copy.attr["shape"].CopyFrom(shape_attribute(shape))
        copy.attr.pop(SHAPES_ATTRIBUTE, None)

    @cached_property
    def _shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of the whole table, by the ops that ask for it where each server has some rows."""
        variables = self._step.model.variable_by_name
        return {name: variables[u.parameter].shape for _, u in self._step.tables for name in u.shapes}

    @cached_property
    def _counts(self) -> Mapping[str, tuple[int, Mapping[int, int]]]:
        """The input of an op of an update that is the number of rows of such a table, and that of each server."""
        return {
            name: (position, dict(zip(home.servers, home.rows)))
            for home, update in self._step.tables
            for name, position in update.counts
        }

    def _state_shape(self, server: int, name: str) -> None:
        """Let a server state the shape of a whole table."""
        device, controls = self._step.servers.devices[server], self._step.server_controls(server, name)
        stated = stated_shape(self._step.graph[name], server_name(server, name), self._shapes[name], device, controls)
        self._copies[stated.name] = stated
        self._step.add(stated, self._step.workers + server)

    def _read_nothing(self, server: int, name: str) -> None:
        """Have something to wait for where an op read what nobody needs."""
        device, controls = self._step.servers.devices[server], self._step.server_controls(server, name)
        self._step.add(node(server_name(server, name), "NoOp", controls, device), self._step.workers + server)

    def _count(self, server: int, name: str, rows: int) -> str:
        """A constant with the number of a server's rows."""
        device = self._step.servers.devices[server]
        made = row_count(self._step.graph[name], f"{server_name(server, name)}/rows", rows, device)
        return self._step.add(made, self._step.workers + server)

    def _input(self, server: int, name: str, text: str) -> str:
        """What a server's copy of a node reads in place of a data input."""
        source, index = parse_input(text)
        if (name, tensor_name(text)) in self._step.split.results:
            return self._pushes.summed(server, self._step.split.results[name, tensor_name(text)], tensor_name(text))
        if source in self._step.places:
            return format_input(self._step.there(server, source), index)
        return replica_tensor(0, format_input(source, index))  # it is the same for all workers

    # -- on workers --------------------------------------------------------------------------

    @cached_property
    def _nodes_of_ranks(self) -> Mapping[int, Sequence[NodeDef]]:
        """The nodes of each worker."""
        found: dict[int, list[NodeDef]] = {rank: [] for rank in range(self._step.workers)}
        for present in self._step.emission.graph:
            found.setdefault(self._step.emission.roles[present.name].rank, []).append(present)
        return found

    def _pull(self, rank: int) -> None:
        """Let a worker's nodes read what is on servers."""
        prefix = replica_name(rank, "")
        for present in self._nodes_of_ranks[rank]:
            original = present.name.removeprefix(prefix) if present.name.startswith(prefix) else ""
            if original in self._step.split.only_there:
                continue
            node_def: NodeDef = self._step.changed.get(present.name, present)
            inputs = [self._worker_input(rank, original, text) for text in data_texts(node_def)]
            controls = control_texts(node_def)
            if any(node_of(text).removeprefix(prefix) in self._step.split.only_there for text in controls):
                own = [text for text in controls if not node_of(text).startswith(prefix)]
                controls = [*own, *(self._step.worker_controls(rank, original) if original else [])]
            if [*inputs, *controls] != list(node_def.input):
                self._step.current(present.name).input[:] = [*inputs, *controls]

    def _worker_input(self, rank: int, name: str, text: str) -> str:
        """What a worker's node reads in place of a data input."""
        source, index = parse_input(text)
        prefix = replica_name(rank, "")
        if not source.startswith(prefix):
            return text
        original = source.removeprefix(prefix)
        tensor = tensor_name(format_input(original, index))
        if (name, tensor) in self._step.split.results:
            return self._pulls.summed(rank, self._step.split.results[name, tensor], tensor)
        if original not in self._step.split.only_there:
            return text
        return self._pulls.tensor(rank, original, index)

    def _give_back(self, rank: int) -> None:
        """Let a worker have those results of a step that servers compute, under the names that they would have."""
        results = dict.fromkeys(node_of(t) for t in (self._step.model.loss, *(t for _, t in self._step.model.outputs)))
        for name in results:
            if name not in self._step.split.only_there:
                continue
            types = ops.output_types(self._step.graph[name])
            tensors = [self._pulls.tensor(rank, name, index) for index in range(len(types))]
            attributes = {"T": dtypes_attribute(ops.dtype_name(each) for each in types)}
            given = node(replica_name(rank, name), "IdentityN", tensors, self._step.devices[rank], **attributes)
            self._step.add(given, rank)

    def _end_steps(self) -> None:
        """Let each worker's and each server's part of a step be all that belongs to it."""
        graph, split = self._step.graph, self._step.split
        here: dict[str, None] = {}  # nodes of workers for which only a node of a server waits in the Model
        there = dict.fromkeys(target for target in self._step.model.targets if target in split.only_there)
        for name in graph.order:
            for source in map(node_of, control_texts(graph[name])):
                if self._step.guards[source]:
                    continue
                if name in split.only_there and source not in split.members:
                    here[source] = None
                if name not in split.members and source in split.only_there:
                    there[source] = None
        for rank in range(self._step.workers):
            step = self._step.current(own_name(rank, "step"))
            step.input.extend(f"^{replica_name(rank, name)}" for name in here)
        for server, device in enumerate(self._step.servers.devices):
            targets = [server_name(server, name) for name in there if server in self._step.places[name]]
            self._step.add(group(server_step(server), targets, device), self._step.workers + server)


def _without_colocation(node_def: NodeDef, names: frozenset[str] | set[str]) -> NodeDef:
    """A node that does not ask to be where nodes are that are left out."""
    if names.isdisjoint(colocated(node_def)):
        return node_def
    copy = copied(node_def)
    colocate(copy, lambda other: None if other in names else other)
    return copy
