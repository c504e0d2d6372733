"""Shard: updates of which each worker makes a part, between the two halves of an all-reduce.

An all-reduce completes the sum of each element on one worker, which then sends it to all. Where an update works on one
element at a time, that worker can make it, and send the new elements of the parameter in place of the sum. So each
element is updated once, not once on each worker, and only that worker needs its slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caramel.analyzers.step.element_updates import ElementUpdate
from caramel.collectives.lower import Emitter
from caramel.graph.graph import NodeDef, copied, node_of, tensor_name
from caramel.graph.nodes import assign, constant, read, shape_attribute, variable
from caramel.graph.shapes import SHAPES_ATTRIBUTE
from caramel.model import Gradient
from caramel.modifiers.emission import Emission, own_name, replica_name
from caramel.modifiers.postpone import again_name
from caramel.modifiers.update_shards import Shards, parts_of


@dataclass(frozen=True)
class _Sum:
    """A completed sum: its name as all get it, the rank that has it, what it is of, and the tensor."""

    name: str
    rank: int
    start: int
    size: int
    tensor: str


class ShardedTransfer:
    """The updates in the middle of one transfer.

    Args:
        emission: the emission with the pieces of gradients.
        number: number of the transfer.
        updates: sharded updates, by the names of their gradients; some of them are in this transfer.
        shards: shards of their gradients.
        emitter: collector of the transfer's nodes.
        changed: nodes that are changed, by name.
    """

    def __init__(
        self,
        emission: Emission,
        number: int,
        updates: Mapping[str, ElementUpdate],
        shards: Mapping[str, Shards],
        emitter: Emitter,
        changed: dict[str, NodeDef],
    ) -> None:
        self._emission, self._transfer, self._emitter = emission, emission.plan.transfers[number], emitter
        self._shards, self._changed = shards, changed
        self._updates = {name: updates[name] for name in self._transfer.gradients if name in updates}
        self._gradients = {g.name: g for g in emission.model.gradients}
        self._numbers = {g.name: position for position, g in enumerate(emission.model.gradients)}
        self._sums: list[_Sum] = []

    @property
    def names(self) -> frozenset[str]:
        """Names of the gradients whose updates are in this transfer."""
        return frozenset(self._updates)

    def on_sum(self, rank: int, start: int, size: int, tensor: str) -> str:
        """Note a completed sum; returns the name of the tensor that all ranks receive instead."""
        name = f"updated_{len(self._sums)}"
        self._sums.append(_Sum(name, rank, start, size, tensor))
        return f"{self._emitter.prefix}/{name}"

    def update(self) -> None:
        """Add the updates of all completed sums."""
        chunks: dict[tuple[int, str], list[tuple[int, int, str]]] = {}  # of each rank and gradient
        cut = [self._cut(number, each) for number, each in enumerate(self._sums)]
        for each, parts in zip(self._sums, cut):
            for gradient, first, count, tensor in parts:
                if gradient in self._updates:
                    chunks.setdefault((each.rank, gradient), []).append((first, count, tensor))
        new: dict[tuple[int, str, int], str] = {}  # by rank, gradient and first element
        for name in self._updates:
            for rank in range(self._emission.plan.workers):
                own = sorted(chunks.get((rank, name), ()))
                result = self._updated(rank, name, [tensor for *_, tensor in own])
                if own:
                    label = f"updated_{self._numbers[name]}_{rank}"
                    results = self._emitter.parted(rank, f"{label}_parts", result, [count for _, count, _ in own])
                    new.update(((rank, name, first), tensor) for (first, _, _), tensor in zip(own, results))
        for each, parts in zip(self._sums, cut):
            tensors = [new.get((each.rank, gradient, first), tensor) for gradient, first, _, tensor in parts]
            if len(tensors) == 1:
                self._emitter.identity(each.rank, each.name, tensors[0])
            else:
                self._emitter.concat(each.rank, each.name, tensors)

    def _cut(self, number: int, each: _Sum) -> list[tuple[str, int, int, str]]:
        """The parts of a sum: gradient, first element, number of elements, tensor."""
        parts = parts_of(self._transfer, each.start, each.size)
        sizes = [count for _, _, count in parts]
        tensors = self._emitter.parted(each.rank, f"sum_{number}_parts", each.tensor, sizes)
        return [(piece.gradient, first, count, tensor) for (piece, first, count), tensor in zip(parts, tensors)]

    def _updated(self, rank: int, name: str, parts: Sequence[str]) -> str:
        """A worker's part of an update: its new elements of the parameter."""
        gradient, emitter = self._gradients[name], self._emitter
        label = f"gradient_{self._numbers[name]}_{rank}"
        if parts:
            summed = emitter.joined(rank, label, parts)
        else:
            empty = constant(f"{emitter.prefix}/{label}", [], gradient.dtype, emitter.devices[rank])
            emitter.out.nodes.append((empty, rank))
            summed = empty.name
        return self._rewired(rank, self._updates[name], gradient, summed)

    def _rewired(self, rank: int, update: ElementUpdate, gradient: Gradient, summed: str) -> str:
        """Let a worker's update work on its own elements: of the gradient, the parameter and the slots."""
        emitter, graph = self._emitter, self._emission.model.graph
        variables = self._emission.model.variable_by_name
        parameter, device = variables[update.parameter], emitter.devices[rank]
        scope = own_name(rank, f"sharded/{self._numbers[gradient.name]}")
        own = [shard for shard in self._shards[gradient.name] if shard.rank == rank]
        size = sum(shard.size for shard in own)
        part = variable(f"{scope}/part", gradient.dtype, (size,), device)
        now = read(f"{scope}/now", replica_name(rank, parameter.node), gradient.dtype, device)
        emitter.out.nodes += [(part, rank), (now, rank)]
        label = f"before_{self._numbers[gradient.name]}_{rank}"
        flat = emitter.reshape(rank, f"{label}_flat", now.name, (gradient.size,))
        slices = [
            emitter.slice(rank, f"{label}_{number}", flat, shard.start, shard.size) for number, shard in enumerate(own)
        ]
        before = emitter.joined(rank, label, slices or [emitter.slice(rank, f"{label}_none", flat, 0, 0)])
        begin = assign(f"{scope}/begin", part.name, before, gradient.dtype, device)
        after = [replica_name(rank, writer) for writer in update.writers]
        done = read(f"{scope}/done", part.name, gradient.dtype, device, after)
        emitter.out.nodes += [(begin, rank), (done, rank)]
        instead = {tensor_name(gradient.tensor): summed, **dict.fromkeys(update.shared_reads, before)}
        instead[tensor_name(parameter.node)] = part.name
        for name in sorted(update.nodes):
            needed = [tensor_name(text) for text in graph[name].input if not text.startswith("^")]
            for copy in (replica_name(rank, name), again_name(rank, name)):
                if copy not in self._emission.graph:
                    continue
                current = self._current(copy)
                inputs = [instead.get(original, text) for original, text in zip(needed, current.input)]
                inputs += current.input[len(needed) :]
                if tensor_name(parameter.node) in needed:
                    inputs.append(f"^{begin.name}")
                changed = copied(current, inputs)
                changed.attr.pop(SHAPES_ATTRIBUTE, None)
                self._changed[changed.name] = changed
        for slot in update.slots:
            handle = replica_name(rank, variables[slot].node)
            changed = copied(self._current(handle))
            changed.attr["shape"].CopyFrom(shape_attribute((size,)))
            changed.attr.pop(SHAPES_ATTRIBUTE, None)
            self._changed[handle] = changed
        return str(done.name)

    def _current(self, name: str) -> NodeDef:
        """A node as it was changed so far."""
        return self._changed[name] if name in self._changed else self._emission.graph[name]

    def assign(self, rank: int, name: str, value: str) -> None:
        """Give a worker the new parameter, and let whoever waits for its update wait for that."""
        update, gradient = self._updates[name], self._gradients[name]
        parameter = self._emission.model.variable_by_name[update.parameter]
        scope = own_name(rank, f"sharded/{self._numbers[name]}")
        writers = [f"^{replica_name(rank, writer)}" for writer in update.writers]
        device = self._emitter.devices[rank]
        assigned = assign(f"{scope}/assign", replica_name(rank, parameter.node), value, gradient.dtype, device)
        assigned.input.extend(writers)
        self._emitter.out.nodes.append((assigned, rank))
        inside = {replica_name(rank, each) for each in update.nodes}
        for source in sorted(update.after):
            text = f"^{replica_name(rank, source)}"
            for reader, _ in self._emission.graph.consumers[node_of(text)]:
                if reader not in inside:
                    self._wait_instead(reader, text, assigned.name)
        step = self._current(own_name(rank, "step"))
        is_pending = name in self._emission.plan.postponed  # then the step waits for what is there, if anything is
        if not is_pending and f"^{assigned.name}" not in step.input:  # nothing that a step gives back need wait for it
            self._changed[step.name] = copied(step, [*step.input, f"^{assigned.name}"])

    def _wait_instead(self, reader: str, text: str, name: str) -> None:
        """Let a node that waits for a part of an update wait for the new parameter."""
        current = self._current(reader)
        if text in current.input:
            inputs = dict.fromkeys(f"^{name}" if each == text else each for each in current.input)
            self._changed[reader] = copied(current, inputs)


def sharded_assignments(emission: Emission) -> list[list[str]]:
    """For each worker the nodes that give it the new parameters of sharded updates."""
    names = {update.gradient for update in emission.plan.sharded}
    numbers = [number for number, gradient in enumerate(emission.model.gradients) if gradient.name in names]
    ranks = range(emission.plan.workers)
    return [[own_name(rank, f"sharded/{number}/assign") for number in numbers] for rank in ranks]
