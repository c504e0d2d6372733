"""What the nodes of workers and servers have in common: where each is, and what it waits for there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from caramel.analyzers.servers.placement import divided_updates, node_servers
from caramel.analyzers.servers.split import Split, split_step
from caramel.analyzers.step.row_updates import RowUpdate
from caramel.collectives.lower import Emitter
from caramel.graph.graph import NodeDef, control_texts, copied, node_of
from caramel.graph.guards import Guard, guards_of
from caramel.model import Gradient, Variable
from caramel.modifiers.emission import Emission, Purpose, Role, replica_name, server_name
from caramel.modifiers.update_shards import served_tables
from caramel.server_plan import Home


class Served:
    """A step on workers and servers, in the making.

    Attributes:
        emission: the emission with weighed gradients; it is not changed.
        model: the single-device step.
        graph: its graph.
        servers: the plan's servers.
        workers: number of workers. Server k has the rank workers + k.
        split: which nodes servers run.
        places: servers that run each of them.
        added: new nodes, with their roles.
        changed: nodes of workers that are changed, by name.

    Args:
        emission: see the attributes.
    """

    def __init__(self, emission: Emission) -> None:
        assert emission.plan.servers is not None
        self.emission, self.model, self.graph = emission, emission.model, emission.model.graph
        self.servers, self.workers = emission.plan.servers, emission.plan.workers
        self.split: Split = split_step(emission.model)
        self.places = node_servers(self.model, self.servers.homes)
        self.added: list[tuple[NodeDef, Role]] = []
        self.changed: dict[str, NodeDef] = {}
        self._apart_of: dict[tuple[str, bool], tuple[Sequence[str], Sequence[str]]] = {}

    @cached_property
    def devices(self) -> list[str]:
        """Devices of the workers, and of the servers after them."""
        return [*self.emission.plan.devices, *self.servers.devices]

    def add(self, node_def: NodeDef, rank: int, purpose: Purpose = Purpose.REPLICA) -> str:
        """Add a node; returns its name."""
        self.added.append((node_def, Role(purpose, rank)))
        return str(node_def.name)

    def collect(self, emitter: Emitter) -> None:
        """Add the nodes of an emitter that has `devices`, as messages and what is done with them."""
        for node_def, rank in emitter.out.nodes:
            self.add(node_def, rank, Purpose.COLLECTIVE)
        emitter.out.nodes.clear()

    def current(self, name: str) -> NodeDef:
        """A worker's node, to change it."""
        if name not in self.changed:
            self.changed[name] = copied(self.emission.graph[name])
        return self.changed[name]

    def home(self, variable: Variable) -> Home | None:
        """The servers of a variable; None where workers have it."""
        return self.servers.home_by_variable.get(variable.plan_name)

    def divided_home(self, gradient: Gradient) -> Home | None:
        """The servers each of which gets a part of a gradient; None where one gets all of it."""
        home = self.home(self.model.variable_by_name[gradient.parameter])
        return home if home is not None and home.is_divided else None

    def there(self, server: int, name: str) -> str:
        """A server's copy of a node, or that of the first server that has one."""
        places = self.places[name]
        return server_name(server if server in places else places[0], name)

    @cached_property
    def tables(self) -> Sequence[tuple[Home, RowUpdate]]:
        """The tables of which each server has some rows."""
        return served_tables(self.model, self.emission.plan)

    @cached_property
    def divided(self) -> frozenset[str]:
        """The nodes that have the elements or rows of a server, where there are other ones on other servers."""
        updates = (update.nodes for _, update in divided_updates(self.model, self.servers.homes))
        homes = {name: self.home(variable) for name, variable in self.read_variables.items()}
        reads = (name for name, home in homes.items() if home is not None and home.is_divided)
        return frozenset().union(*updates, reads)

    @cached_property
    def written_by(self) -> Mapping[str, str]:
        """The handle of the variable that each writer writes, by the writer's name."""
        handles = {v.name: handle for handle, v in self.split.variables.items()}
        return {w: handles[name] for name, writers in self.model.updates if name in handles for w in writers}

    @cached_property
    def read_variables(self) -> Mapping[str, Variable]:
        """The variable of each op of servers that reads all of one."""
        reads = (name for name in self.split.nodes if self.graph[name].op == "ReadVariableOp")
        handles = {name: node_of(self.graph[name].input[0]) for name in reads if name not in self.split.unread}
        return {name: self.split.variables[h] for name, h in handles.items() if h in self.split.variables}

    # -- order -------------------------------------------------------------------------------

    def server_controls(self, server: int, name: str) -> list[str]:
        """What a server's node waits for, as control inputs.

        Args:
            server: number of the server.
            name: name of the Model's node of which it is a copy.
        """
        there, workers = self._apart(name, on_servers=True)
        texts = [f"^{each}" for source in there for each in self._all_there(server, name, source)]
        return [*texts, *(f"^{replica_name(rank, source)}" for source in workers for rank in range(self.workers))]

    def worker_controls(self, rank: int, name: str) -> list[str]:
        """What a worker's copy of a node waits for, as control inputs.

        Args:
            rank: rank of the worker.
            name: name of the Model's node.
        """
        here, servers = self._apart(name, on_servers=False)
        texts = [f"^{replica_name(rank, source)}" for source in here]
        return [*texts, *(f"^{each}" for source in servers for each in self._all_there(0, name, source))]

    def _all_there(self, server: int, name: str, source: str) -> list[str]:
        """Which copies of ``source`` a copy of ``name`` waits for: all if only ``source`` is divided, else `there`."""
        if source in self.divided and name not in self.divided:
            return [server_name(each, source) for each in self.places[source]]
        return [self.there(server, source)]

    def _apart(self, name: str, on_servers: bool) -> tuple[Sequence[str], Sequence[str]]:
        key = name, on_servers
        if key not in self._apart_of:
            is_there = self.places.__contains__ if on_servers else lambda source: source not in self.split.only_there
            self._apart_of[key] = self._found_apart(name, is_there)
        return self._apart_of[key]

    def _found_apart(self, name: str, is_there: Callable[[str], bool]) -> tuple[Sequence[str], Sequence[str]]:
        """What a node waits for: on its own side, and on the other one, by names of the Model's graph.

        A node on one side waits, in place of a node on the other side, for the nearest predecessors of that node on its
        own side. That is enough: only accesses of a variable have to be in order, and they are all on one side;
        `caramel.modifiers.access_order` adds what is still missing between them. In branches it is not enough, as a
        node of a branch that is not taken does not run. So a node waits only for predecessors that run whenever it
        does, and if that leaves any out, or the other node is in a branch, it waits for the other node, too.
        """
        own, other = dict[str, None](), []
        for source in map(node_of, control_texts(self.graph[name])):
            if is_there(source):
                own[source] = None
                continue
            nearest = self._nearest(source, is_there)
            certain = [each for each in nearest if self.guards[each] <= self.guards[name]]
            own.update(dict.fromkeys(certain))
            if self.guards[source] or len(certain) < len(nearest):
                other.append(source)
        return list(own), other

    def _nearest(self, name: str, is_wanted: Callable[[str], bool]) -> list[str]:
        """The last nodes of some kind before another one, on any path."""
        found = filter(is_wanted, self.graph.ancestors([name], stop=is_wanted))
        return sorted(found, key=self.graph.place.__getitem__)

    @cached_property
    def guards(self) -> Mapping[str, frozenset[Guard]]:
        """The conditions under which each node runs; a Switch runs, but what waits for it may not."""
        guards = guards_of(self.graph).by_node
        return {n.name: guards[n.name] | ({(n.name, 0)} if n.op == "Switch" else set()) for n in self.graph}
