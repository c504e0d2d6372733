"""Pulls: what workers get of servers, and in which order."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from caramel.collectives.lower import Emitter
from caramel.errors import InvariantError
from caramel.graph.graph import NodeDef, format_input, tensor_name
from caramel.graph.nodes import dtype_attribute, node
from caramel.model import Gradient
from caramel.modifiers.emission import Purpose, own_name, server_name
from caramel.modifiers.served import Served
from caramel.modifiers.server_pushes import Pushes


class Pulls:
    """The tensors of servers on workers, each made once somebody asks for it.

    Args:
        served: the step in the making.
        pushes: the gradients of all workers.
    """

    def __init__(self, served: Served, pushes: Pushes) -> None:
        self._step, self._pushes = served, pushes
        self._pulled: dict[tuple[int, str], str] = {}
        self._sends: dict[str, NodeDef] = {}  # what is sent in its turn, by the node that receives it
        self._channels: dict[tuple[int, int], list[tuple[int, str]]] = {}  # turns and receivers, by worker and server

    def tensor(self, rank: int, name: str, index: int) -> str:
        """A tensor of the servers, for a worker."""
        name = self._same_read.get(name, name)
        key = rank, tensor_name(format_input(name, index))
        if key not in self._pulled:
            self._pulled[key] = self._new_pull(rank, name, index)
        return self._pulled[key]

    def _new_pull(self, rank: int, name: str, index: int) -> str:
        whose = self._step.read_variables.get(name)
        if whose is None:
            return format_input(self._step.there(0, name), index)
        label = str(self._step.graph.place[name])
        servers = self._step.servers.home_by_variable[whose.plan_name].sources
        parts = [server_name(server, name) for server in servers]
        turn = self._turns.get(whose.plan_name)
        if turn is not None and name in self._same_read:
            parts = [self._in_turn(rank, server, turn, part, whose.dtype) for server, part in zip(servers, parts)]
        return self.joined(rank, label, parts, whose.dtype, whose.shape)

    def summed(self, rank: int, gradient: Gradient, tensor: str) -> str:
        """A gradient of all workers, for a worker that uses it."""
        home = self._step.divided_home(gradient)
        if home is None:
            return self._pushes.summed(0, gradient, tensor)
        if home.rows:
            raise InvariantError(f"a worker needs the slices {gradient.name!r} of all, of which each server has some")
        parts = [self._pushes.summed(server, gradient, tensor) for server in home.servers]
        key = rank, f"sum of {gradient.name}"
        if key not in self._pulled:
            number = self._step.model.gradients.index(gradient)
            self._pulled[key] = self.joined(rank, f"sum_{number}", parts, gradient.dtype, gradient.shape)
        return self._pulled[key]

    def joined(self, rank: int, name: str, parts: list[str], dtype: str, shape: tuple[int, ...]) -> str:
        """The parts of a variable as one tensor of its shape, on a worker."""
        if len(parts) == 1:
            return parts[0]
        emitter = Emitter(own_name(rank, f"pulled/{name}"), self._step.devices, dtype)
        whole = emitter.reshape(rank, "whole", emitter.joined(rank, "joined", parts), shape)
        self._step.collect(emitter)
        return whole

    @cached_property
    def _turns(self) -> Mapping[str, int]:
        """The place of each parameter in the order in which they are sent."""
        return {name: turn for turn, name in enumerate(self._step.servers.pulls)}

    def _in_turn(self, rank: int, server: int, turn: int, tensor: str, dtype: str) -> str:
        """A tensor as a worker gets it in its turn; see `take_turns`."""
        scope, attribute = f"caramel/pull/{turn}_from_{server}_to_{rank}", dtype_attribute(dtype)
        here, there = self._step.devices[rank], self._step.devices[self._step.workers + server]
        send = node(f"{scope}/send", "Identity", [tensor], there, T=attribute)
        self._step.add(send, self._step.workers + server, Purpose.COLLECTIVE)
        receive = self._step.add(
            node(f"{scope}/receive", "Identity", [send.name], here, T=attribute), rank, Purpose.COLLECTIVE
        )
        self._sends[receive] = send
        self._channels.setdefault((rank, server), []).append((turn, receive))
        return receive

    def take_turns(self) -> None:
        """Let a server send a parameter to a worker when that has got one of those before it.

        Source:
            TicTac, section 5.1, which counts what was sent at the sender; here the receiver says that it has it.
        """
        for names in self._channels.values():
            in_order = [name for _, name in sorted(names)]
            for position, name in enumerate(in_order[self._step.servers.in_flight :]):
                self._sends[name].input.append(f"^{in_order[position]}")

    @cached_property
    def _same_read(self) -> Mapping[str, str]:
        """The first read of a variable, by those that read it again before it is written: it travels once."""
        later = self._step.graph.descendants(self._step.written_by)
        first: dict[str, str] = {}
        same: dict[str, str] = {}
        for name, whose in self._step.read_variables.items():
            if name not in later and not self._step.guards[name]:
                same[name] = first.setdefault(whose.name, name)
        return same
