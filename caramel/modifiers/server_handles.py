"""Handles: ops of workers that take a variable of the servers by its handle."""

from __future__ import annotations

from caramel.analyzers.servers.split import ServedLookup, split_step
from caramel.analyzers.step.row_lookups import gathers_rows
from caramel.collectives.rows import gather_of, lower_lookup
from caramel.graph import ops
from caramel.graph.graph import NodeDef, copied, node_of
from caramel.graph.nodes import assign, dtype_attribute, node, read, variable
from caramel.model import Model, Variable
from caramel.modifiers.emission import Purpose, own_name, replica_name, server_name
from caramel.modifiers.served import Served
from caramel.modifiers.server_pulls import Pulls
from caramel.modifiers.table_nodes import handed_on
from caramel.modifiers.weigh import replica_tensor
from caramel.server_plan import ParameterServers


class Handles:
    """What workers do with handles of variables that are on servers.

    Attributes:
        stand_ins: by handle and name of the node that takes it in the Model, nodes of servers that stand for it where
            workers look up rows, or get a copy. They run whether the branch of a worker's node is taken or not. In
            which order with writes is up to the caller.

    Args:
        served: the step in the making.
        pulls: what workers get of servers.
    """

    def __init__(self, served: Served, pulls: Pulls) -> None:
        self._step, self._pulls = served, pulls
        self.stand_ins: dict[tuple[str, str], list[tuple[int, NodeDef]]] = {}

    def look_up(self) -> None:
        """Let all lookups of workers be made where the rows are."""
        for number, lookup in enumerate(self._step.split.lookups):
            if gathers_rows(self._step.graph, self._step.graph[lookup.node]):
                self._look_up_rows(number, lookup)
            else:
                self._look_up_entries(number, lookup)

    def _look_up_rows(self, number: int, lookup: ServedLookup) -> None:
        """Let a lookup of rows ask the servers that have them, for each row once."""
        ranks = range(self._step.workers)
        table, servers = table_of(self._step.model, self._step.servers, lookup)
        original = self._step.graph[lookup.node]
        lowered = lower_lookup(
            prefix=lookup_scope(number),
            indices=[replica_tensor(rank, original.input[1]) for rank in ranks],
            handles=[server_name(server, lookup.handle) for server in servers],
            devices=self._step.devices,
            dtype=table.dtype,
            index_dtype=ops.dtype_name(original.attr["Tindices"].type),
            owners=[self._step.workers + server for server in servers],
        )
        nodes = {node_def.name: node_def for node_def, _ in lowered.nodes}
        for node_def, rank in lowered.nodes:
            self._step.add(node_def, rank, Purpose.COLLECTIVE)
        gathers = [(server, nodes[name]) for server, names in zip(servers, lowered.gathers) for name in names]
        self.stand_ins.setdefault((lookup.handle, lookup.taker), []).extend(gathers)
        for rank in ranks:
            self._hand_on(rank, lookup, lowered.rows[rank], table.dtype)

    def _look_up_entries(self, number: int, lookup: ServedLookup) -> None:
        """Let a lookup of something else than rows be made by the server that has the variable."""
        original = self._step.graph[lookup.node]
        table, (server, *_) = table_of(self._step.model, self._step.servers, lookup)
        for rank in range(self._step.workers):
            inputs = [server_name(server, lookup.handle), replica_tensor(rank, original.input[1])]
            there = copied(original, inputs)
            there.name = gather_name(number, 0, rank)
            there.device = self._step.servers.devices[server]
            there.attr.pop("_class", None)
            self.stand_ins.setdefault((lookup.handle, lookup.taker), []).append((server, there))
            self._step.add(there, self._step.workers + server, Purpose.COLLECTIVE)
            self._hand_on(rank, lookup, there.name, table.dtype)

    def _hand_on(self, rank: int, lookup: ServedLookup, rows: str, dtype: str) -> None:
        """Let a worker's node hand on what was looked up, in place of looking it up."""
        here = self._step.emission.graph[replica_name(rank, lookup.node)]
        self._step.changed[here.name] = handed_on(here, rows, dtype)

    def hold(self) -> None:
        """Give each worker a variable with the value that an op takes by its handle."""
        for number, (name, position) in enumerate(self._step.split.holders):
            handle = node_of(self._step.graph[name].input[position])
            held, parts = self._step.split.variables[handle], []
            for server in self._step.servers.home_by_variable[held.plan_name].sources:
                device = self._step.servers.devices[server]
                there = read(held_name(server, number), server_name(server, handle), held.dtype, device)
                self.stand_ins.setdefault((handle, name), []).append((server, there))
                parts.append(self._step.add(there, self._step.workers + server, Purpose.COLLECTIVE))
            for rank in range(self._step.workers):
                value = self._pulls.joined(rank, f"held_{number}", parts, held.dtype, held.shape)
                ready = self._held(rank, own_name(rank, f"held_{number}"), held, value)
                self._step.current(replica_name(rank, name)).input[position] = ready

    def _held(self, rank: int, scope: str, held: Variable, value: str) -> str:
        """A worker's copy of a variable, by a handle that is there once it has its value.

        What gets the handle from the op that takes it, or instead of it, waits for the value, too.
        """
        device = self._step.emission.plan.devices[rank]
        self._step.add(variable(scope, held.dtype, held.shape, device), rank)
        filled = self._step.add(assign(f"{scope}/fill", scope, value, held.dtype, device), rank)
        ready = node(f"{scope}/ready", "Identity", [scope, f"^{filled}"], device, T=dtype_attribute("resource"))
        return self._step.add(ready, rank)


def table_of(model: Model, servers: ParameterServers, lookup: ServedLookup) -> tuple[Variable, tuple[int, ...]]:
    """The variable in which a lookup looks, and the servers of its rows.

    Args:
        model: the single-device step.
        servers: the plan's servers.
        lookup: the lookup.
    """
    table = split_step(model).variables[lookup.handle]
    return table, servers.home_by_variable[table.plan_name].sources


def lookup_scope(number: int) -> str:
    """Beginning of the names of the ops of a lookup.

    Args:
        number: number of the lookup, in the order of the split.
    """
    return f"caramel/lookup_{number}"


def gather_name(number: int, place: int, rank: int) -> str:
    """Name of the op of a server that looks up rows for a worker.

    Args:
        number: number of the lookup, in the order of the split.
        place: place of the server among those that have rows.
        rank: rank of the worker.
    """
    return f"{lookup_scope(number)}/{gather_of(place, rank)}"


def held_name(server: int, number: int) -> str:
    """Name of the op of a server that reads a variable for those who take its handle.

    Args:
        server: number of the server.
        number: number of such a taker, in the order of the split.
    """
    return f"caramel/server_{server}/held_{number}"
