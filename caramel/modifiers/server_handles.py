"""Handles: ops of workers that take a variable of the servers by its handle."""

from __future__ import annotations

from caramel.graph.graph import NodeDef, control_texts, copied, node_of
from caramel.graph.nodes import assign, dtype_attribute, node, read, variable
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
        """Let a worker's lookups be made where the rows are."""
        for number, name in enumerate(self._step.split.lookups):
            original = self._step.graph[name]
            handle, rows = original.input[0], original.input[1]
            server = self._step.places[node_of(handle)][0]
            inputs = [server_name(server, node_of(handle)), replica_tensor(rank, rows)]
            there = copied(original, inputs)
            there.name = f"caramel/server_{server}/lookup_{number}_{rank}"
            there.device = self._step.servers.devices[server]
            there.attr.pop("_class", None)
            self.stand_ins.setdefault((node_of(handle), name), []).append((server, there))
            self._step.add(there, self._step.workers + server, Purpose.COLLECTIVE)
            here = self._step.emission.graph[replica_name(rank, name)]
            inputs = [there.name, *control_texts(here)]
            self._step.changed[here.name] = node(here.name, "Identity", inputs, here.device, T=original.attr["dtype"])

    def hold(self, rank: int) -> None:
        """Give a worker a variable with the value that an op takes by its handle."""
        device = self._step.emission.plan.devices[rank]
        for number, (name, position) in enumerate(self._step.split.holders):
            handle = node_of(self._step.graph[name].input[position])
            held, scope = self._step.split.variables[handle], own_name(rank, f"held_{number}")
            home, parts = self._step.home(held), []
            for server in self._step.places[handle]:
                there = read(
                    f"caramel/server_{server}/held_{number}",
                    server_name(server, handle),
                    held.dtype,
                    self._step.servers.devices[server],
                )
                if rank == 0:
                    self._step.add(there, self._step.workers + server, Purpose.COLLECTIVE)
                    self.stand_ins.setdefault((handle, name), []).append((server, there))
                parts.append(there.name)
                if home is None or not home.is_divided:
                    break
            value = self._pulls.joined(rank, f"held_{number}", parts, held.dtype, held.shape)
            self._step.add(variable(scope, held.dtype, held.shape, device), rank)
            filled = self._step.add(assign(f"{scope}/fill", scope, value, held.dtype, device), rank)
            # What gets the handle from the op, or instead of it, waits for the value, too.
            ready = node(f"{scope}/ready", "Identity", [scope, f"^{filled}"], device, T=dtype_attribute("resource"))
            here = self._step.current(replica_name(rank, name))
            here.input[position] = self._step.add(ready, rank)
