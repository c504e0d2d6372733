"""Handles: ops of workers that take a variable of the servers by its handle."""

from __future__ import annotations

from caramel.collectives.rows import lower_lookup
from caramel.graph.graph import NodeDef, control_texts, copied, node_of
from caramel.graph.nodes import assign, dtype_attribute, node, read, variable
from caramel.model import Variable
from caramel.modifiers.emission import Purpose, own_name, replica_name, server_name
from caramel.modifiers.served import Served
from caramel.modifiers.server_pulls import Pulls
from caramel.modifiers.weigh import replica_tensor


class Handles:
    """What workers do with handles of variables that are on servers.

    Attributes:
        stand_ins: by handle and name of a worker's node that takes it, nodes of servers that stand for it. They run
            whether the branch of the worker's node is taken or not. In which order with writes is up to the caller.

    Args:
        served: the step in the making.
        pulls: what workers get of servers.
    """

    def __init__(self, served: Served, pulls: Pulls) -> None:
        self._step, self._pulls = served, pulls
        self.stand_ins: dict[tuple[str, str], list[tuple[int, NodeDef]]] = {}

    def look_up(self, rank: int) -> None:
        """Let a worker's lookups be made where the rows are, in tables of which one server has all rows."""
        in_parts = {lookup.node for _, update in self._step.tables for lookup in update.lookups}
        for number, name in enumerate(self._step.split.lookups):
            if name in in_parts:
                continue
            original = self._step.graph[name]
            handle, rows = original.input[0], original.input[1]
            server = self._step.places[node_of(handle)][0]
            inputs = [server_name(server, node_of(handle)), replica_tensor(rank, rows)]
            there = copied(original, inputs)
            there.name = lookup_name(server, number, rank)
            there.device = self._step.servers.devices[server]
            there.attr.pop("_class", None)
            self.stand_ins.setdefault((node_of(handle), name), []).append((server, there))
            self._step.add(there, self._step.workers + server, Purpose.COLLECTIVE)
            here = self._step.emission.graph[replica_name(rank, name)]
            inputs = [there.name, *control_texts(here)]
            self._step.changed[here.name] = node(here.name, "Identity", inputs, here.device, T=original.attr["dtype"])

    def look_up_rows(self) -> None:
        """Let all lookups in tables of which each server has some rows ask the servers that have them."""
        ranks = range(self._step.workers)
        for number, (home, update) in enumerate(self._step.tables):
            table = self._step.model.variable_by_name[update.parameter]
            for lookup in update.lookups:
                lowered = lower_lookup(
                    prefix=rows_scope(number, self._step.split.lookups.index(lookup.node)),
                    indices=[replica_tensor(rank, lookup.indices) for rank in ranks],
                    handles=[server_name(server, table.node) for server in home.servers],
                    devices=self._step.devices,
                    dtype=table.dtype,
                    index_dtype=lookup.index_dtype,
                    owners=[self._step.workers + server for server in home.servers],
                )
                nodes = {node_def.name: node_def for node_def, _ in lowered.nodes}
                for node_def, rank in lowered.nodes:
                    self._step.add(node_def, rank, Purpose.COLLECTIVE)
                self.stand_ins[table.node, lookup.node] = [
                    (server, nodes[name]) for server, names in zip(home.servers, lowered.gathers) for name in names
                ]
                for rank, rows in enumerate(lowered.rows):
                    here = self._step.emission.graph[replica_name(rank, lookup.node)]
                    inputs, kind = [rows, *control_texts(here)], dtype_attribute(table.dtype)
                    self._step.changed[here.name] = node(here.name, "Identity", inputs, here.device, T=kind)

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


def lookup_name(server: int, number: int, rank: int) -> str:
    """Name of the op of a server that looks up rows for a worker.

    Args:
        server: number of the server.
        number: number of the lookup, in the order of the split.
        rank: rank of the worker.
    """
    return f"caramel/server_{server}/lookup_{number}_{rank}"


def rows_scope(table: int, number: int) -> str:
    """Beginning of the names of the ops of a lookup in a table of which each server has some rows.

    Args:
        table: number of the table, among those that are divided by rows.
        number: number of the lookup, in the order of the split.
    """
    return f"caramel/table_{table}/lookup_{number}"


def held_name(server: int, number: int) -> str:
    """Name of the op of a server that reads a variable for those who take its handle.

    Args:
        server: number of the server.
        number: number of such a taker, in the order of the split.
    """
    return f"caramel/server_{server}/held_{number}"
