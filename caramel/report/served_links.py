"""What workers pull from parameter servers and push to them in a real step, from TensorFlow's account of messages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from caramel.analyzers.servers.split import LOOKUPS, split_step
from caramel.compiler.distributed_model import DistributedModel
from caramel.graph.devices import Device
from caramel.graph.graph import data_texts, node_of
from caramel.measure.step_stats import Message, Row
from caramel.modifiers.emission import Purpose
from caramel.report.step_timeline import PULL, PUSH

_EDGE = re.compile(r"edge_\d+_(.+)")
"""What TensorFlow calls a tensor that it sends: a number, and the node that makes it."""

_PUSH = re.compile(r"caramel/push_(\d+)/")
_LOOKUP = re.compile(r"caramel/lookup_(\d+)/")
_ON_SERVER = re.compile(r"server_\d+/(.+)")

_READS = ("ReadVariableOp", *sorted(LOOKUPS))
"""Ops that give what is in a variable, or some rows of it."""


@dataclass(frozen=True)
class ServedMessage:
    """A tensor that a worker got of a server, or sent to one.

    Attributes:
        rank: rank of the worker.
        kind: `PULL` or `PUSH`.
        name: what it is, for people.
        source: name of the node that made it.
        start_ns: time from which on nothing but the link kept it, in nanoseconds; of a pull by the worker's clock. Of a
            push it is None where the node that made it has no row.
        end_ns: time at which it was there, in nanoseconds by the receiver's clock.
        size_bytes: bytes of the tensor.
    """

    rank: int
    kind: str
    name: str
    source: str
    start_ns: int | None
    end_ns: int
    size_bytes: int


def served_messages(
    distributed: DistributedModel, messages: Iterable[Message], rows: Iterable[Row], has_one_clock: bool
) -> Sequence[ServedMessage]:
    """The messages between workers and servers in a step, in the order in which they arrived.

    A pull begins when the worker has asked for it and the server has it; a push when the worker has what it sends.

    Args:
        distributed: the distributed model of which a step was traced; its plan has parameter servers.
        messages: all messages of the step.
        rows: runs of nodes.
        has_one_clock: whether times of different processes can be compared; else a pull begins when the worker asks.
    """
    servers = distributed.plan.servers
    assert servers is not None
    pulled, pushed = _Links(distributed).names()
    made_ns: dict[str, int] = {}
    for row in rows:
        made_ns[row.node] = max(row.ready_ns, made_ns.get(row.node, row.ready_ns))
    workers, places_of_servers = _places(distributed.plan.devices), _places(servers.devices)
    found = []
    for message in messages:
        source = _source(message.tensor)
        there, here = _at(workers, message.source), _at(workers, message.target)
        if source in pulled and here is not None:
            ready_ns = made_ns.get(source, message.start_ns) if has_one_clock else message.start_ns
            start_ns = min(max(ready_ns, message.start_ns), message.end_ns)
            found.append(_message(here, PULL, pulled[source], source, start_ns, message))
        elif source in pushed and there is not None and (server := _at(places_of_servers, message.target)) is not None:
            name = f"{pushed[source]} to server {server}"
            found.append(_message(there, PUSH, name, source, made_ns.get(source), message))
    return found


def _message(rank: int, kind: str, name: str, source: str, start_ns: int | None, message: Message) -> ServedMessage:
    return ServedMessage(rank, kind, name, source, start_ns, message.end_ns, message.size_bytes)


def expected_pulls(distributed: DistributedModel) -> Mapping[int, int]:
    """The number of tensors of variables that each worker gets of servers, by its rank."""
    links = _Links(distributed)
    variables = {(rank, base) for rank, _, base, _ in links.pulls if links.variable(base) is not None}
    return Counter(rank for rank, _ in variables)


def _source(tensor: str) -> str:
    match = _EDGE.fullmatch(tensor)
    return tensor if match is None else match[1]


def _places(devices: Sequence[str]) -> Mapping[Device, int]:
    return {replace(Device.parse(text), replica=None): number for number, text in enumerate(devices)}


def _at(places: Mapping[Device, int], device: str) -> int | None:
    """The worker or server of a device: it has that one, or its process with any; None if there is none."""
    exact = replace(Device.parse(device), replica=None)
    return places.get(exact, places.get(replace(exact, type=None, index=None)))


class _Links:
    """What goes from workers to servers, and back, in a distributed graph."""

    def __init__(self, distributed: DistributedModel) -> None:
        self._graph, self._roles = distributed.emission.graph, distributed.roles
        self._model, self._workers = distributed.model, distributed.plan.workers
        self._split = split_step(distributed.model)

    @property
    def pulls(self) -> Iterator[tuple[int, str, str, int]]:
        """Rank of each worker, the node of which it gets a tensor, that which makes it, and its server."""
        for node, source in self._edges():
            rank, other = self._roles[node].rank, self._roles[source].rank
            if rank < self._workers <= other:
                yield rank, source, self._base(source), other - self._workers

    def names(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """What servers send to workers, and workers to servers, for people, by the node that makes it.

        TensorFlow takes an Identity out that has nothing to wait for, so what one passes on is there by both names.
        """
        pulled: dict[str, str] = {}
        for _, source, base, server in self.pulls:
            name = f"pull of {self.variable(base) or base} from server {server}"
            pulled |= dict.fromkeys((source, base), name)
        pushed: dict[str, str] = {}
        for node, source in self._edges():
            if self._roles[source].rank < self._workers <= self._roles[node].rank:
                pushed |= dict.fromkeys((source, self._base(source)), self._pushed(node, source))
        return pulled, pushed

    def _pushed(self, node: str, source: str) -> str:
        """What a node of a server gets of a worker, for people."""
        if match := _PUSH.match(node):
            return f"push of {self._model.gradients[int(match[1])].name}"
        if match := _LOOKUP.match(node):
            table = self._split.variables[self._split.lookups[int(match[1])].handle]
            return f"which rows of {table.plan_name}"
        return f"push of {source}"

    def variable(self, name: str) -> str | None:
        """The variable of which a node of a server reads all or some rows; None where it does something else."""
        node = self._graph[name]
        match = _ON_SERVER.fullmatch(node_of(node.input[0])) if node.op in _READS else None
        variable = None if match is None else self._split.variables.get(match[1])
        if variable is None:
            return None
        return variable.plan_name if node.op == "ReadVariableOp" else f"rows of {variable.plan_name}"

    def _edges(self) -> Iterator[tuple[str, str]]:
        """What each node of a step takes, and from which node of the step."""
        of_step = {name for name, role in self._roles.items() if role.purpose in (Purpose.REPLICA, Purpose.COLLECTIVE)}
        for node in self._graph:
            if node.name in of_step:
                yield from ((node.name, source) for source in map(node_of, data_texts(node)) if source in of_step)

    def _base(self, name: str) -> str:
        """The node of which another one only passes the tensor on, on the same device."""
        while self._graph[name].op == "Identity":
            source = node_of(self._graph[name].input[0])
            if self._roles[source].rank != self._roles[name].rank:
                break
            name = source
        return name
