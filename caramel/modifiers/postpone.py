"""Postpone: some gradients are all-reduced, and their updates made, at the start of the next step.

A step keeps the local gradients, and whatever else the updates need of it, in variables of each worker.
The next one takes them from there, aggregates, and updates; whatever reads what is written then waits
for it. Whether anything is pending is a variable, too: where nothing is, the moved nodes do not run
(they are behind a Switch), and what would wait for them goes on (behind a Merge). ``caramel/flush``
runs the moved nodes without a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from caramel.analyzers.step.postponement import is_shared
from caramel.collectives.lower import Emitter
from caramel.errors import InvariantError
from caramel.facts import FORWARD
from caramel.graph import ops
from caramel.graph.devices import Device, host_of
from caramel.graph.graph import NodeDef, copied, format_input, node_of, parse_input, tensor_name
from caramel.graph.nodes import assign, constant, dtype_attribute, group, node, read, variable
from caramel.modifiers.cut import joined_pieces, piece_shape
from caramel.modifiers.emission import Emission, Purpose, Role, own_name, replica_name

FLUSH = "caramel/flush"
FORGET = "caramel/postponed/forget"


def postpone(emission: Emission) -> Emission:
    """Move the updates of postponed gradients to the start of the next step.

    Args:
        emission: the emission with the pieces of gradients, none aggregated yet. Its postponement says what moves.

    Returns:
        The emission, in which the pieces of the forward window are the tensors that the step before has kept. Pieces
        of the same gradients in the backward window are aggregated in their own step, and then kept.

    Source:
        Caramel, section 4.3.
    """
    model, plan, postponement = emission.model, emission.plan, emission.postponement
    if not postponement.gradients:
        return emission
    pieces = dict(emission.pieces)
    added: list[tuple[NodeDef, Role]] = []
    changed: dict[str, NodeDef] = {}
    gradients = {g.name: g for g in model.gradients}
    for rank, device in enumerate(plan.devices):
        worker = _Worker(emission, rank, str(Device.parse(device)))
        for number, name in enumerate(postponement.gradients):
            gradient, parts = gradients[name], []
            for piece, window in plan.pieces[name]:
                parts.append(worker.keep(emission.pieces[rank, piece], gradient.dtype, piece_shape(piece, gradient)))
                if window == FORWARD:
                    pieces[rank, piece] = parts[-1]
            kept = parts[0]
            if len(parts) > 1:
                emitter = Emitter(own_name(rank, f"postponed/gradient_{number}"), plan.devices, gradient.dtype)
                kept = joined_pieces(emitter, rank, parts, gradient)
                worker.nodes += [node_def for node_def, _ in emitter.out.nodes]
            worker.results[tensor_name(gradient.tensor)] = kept
        worker.rewire()
        added += [(node_def, Role(Purpose.REPLICA, rank)) for node_def in worker.nodes]
        changed.update(worker.changed)
    host = str(host_of(Device.parse(plan.devices[0])))
    for group_name in (FLUSH, FORGET):
        worker_names = [own_name(rank, group_name.removeprefix("caramel/")) for rank in range(plan.workers)]
        added.append((group(group_name, worker_names, host), Role(Purpose.STATE, 0)))
    return emission.extended(added, changed, pieces=pieces)


def again_name(rank: int, name: str) -> str:
    """Name of a worker's node that computes again what a node of the Model has computed in the step before."""
    return own_name(rank, f"postponed/again/{name}")


def done_if_pending(rank: int, device: str, name: str, after: Sequence[str]) -> tuple[NodeDef, NodeDef]:
    """Two nodes of a worker. The second is done when other nodes are, or at once if nothing is pending.

    Args:
        rank: rank of the worker.
        device: device of the worker.
        name: name of the second node, below ``postponed/``.
        after: nodes that run only if something is pending.
    """
    boolean = dtype_attribute("bool")
    some, done, yes, no = (
        own_name(rank, f"postponed/{suffix}") for suffix in (f"{name}/some", name, "pending/yes", "pending/no")
    )
    return (
        node(some, "Identity", [yes, *("^" + n for n in after)], device, T=boolean),
        node(done, "Merge", [some, no], device, T=boolean, N=2),
    )


class _Worker:
    """The nodes that are added and changed on one worker."""

    def __init__(self, emission: Emission, rank: int, device: str):
        self._emission = emission
        self._graph = emission.model.graph
        self._targets = emission.model.targets
        self._postponement = emission.postponement
        self._moved = set(self._postponement.moved)
        self._repeated = set(self._postponement.repeated)
        self._rank = rank
        self._device = device
        self._kept: dict[str, str] = {}
        self._kept_tensors: list[tuple[str, str, str]] = []  # (handle, tensor, dtype)
        self._reads: list[str] = []
        self.nodes: list[NodeDef] = []
        self.changed: dict[str, NodeDef] = {}
        self.results: dict[str, str] = {}
        """The kept tensor of each postponed gradient's tensor."""
        self._add(variable(self._own("pending"), "bool", (), device))
        pending = self._add(read(self._own("pending/read"), self._own("pending"), "bool", device))
        boolean = dtype_attribute("bool")
        switch = self._add(node(self._own("pending/switch"), "Switch", [pending, pending], device, T=boolean))
        self._no, self._yes = (
            self._add(node(self._own(f"pending/{side}"), "Identity", [format_input(switch, index)], device, T=boolean))
            for index, side in enumerate(("no", "yes"))
        )

    # -- names -------------------------------------------------------------------------------

    def _own(self, name: str) -> str:
        return own_name(self._rank, f"postponed/{name}")

    def _replica(self, name: str) -> str:
        return replica_name(self._rank, name)

    def _add(self, node_def: NodeDef) -> str:
        self.nodes.append(node_def)
        return str(node_def.name)

    # -- what is kept ------------------------------------------------------------------------

    def keep(self, tensor: str, dtype: str, shape: Sequence[int] | None = None) -> str:
        """The value of a tensor of this worker that the step before has kept."""
        key = tensor_name(tensor)
        if key not in self._kept:
            handle = self._own(f"kept_{len(self._kept)}")
            self._add(variable(handle, dtype, shape, self._device))
            self._kept[key] = self._add(read(f"{handle}/read", handle, dtype, self._device, [self._yes]))
            self._kept_tensors.append((handle, tensor, dtype))
        return self._kept[key]

    def _kept_input(self, text: str) -> str:
        name, index = parse_input(text)
        dtype = ops.dtype_name(ops.output_types(self._graph[name])[index])
        return self.keep(format_input(self._replica(name), index), dtype)

    # -- the step ----------------------------------------------------------------------------

    def rewire(self) -> None:
        """Let the moved nodes run on kept values, and the step after them."""
        for name in self._postponement.repeated:
            self._repeat(name)
        for name in self._postponement.moved:
            self._move(name)
        for name in self._postponement.released:
            self._release(name)
        waits = self._waits()
        for name, after in waits.items():
            self._wait(name, after)
        taken = self._joined("taken", self._kept.values())
        keeping = [
            self._add(_after(assign(f"{handle}/keep", handle, tensor, dtype, self._device), [taken]))
            for handle, tensor, dtype in self._kept_tensors
        ]
        yes, no = (
            self._add(constant(self._own(f"pending/{value}"), value, "bool", self._device)) for value in (True, False)
        )
        pending = self._own("pending")
        note = assign(self._own("pending/note"), pending, yes, "bool", self._device)
        keeping.append(self._add(_after(note, [f"{pending}/read"])))
        done = self._joined("done", [self._replica(n) for n in self._postponement.moved if _has_effect(self._graph[n])])
        self._step([*keeping, done])
        forget = assign(own_name(self._rank, "postponed/forget"), pending, no, "bool", self._device)
        self._add(forget)
        clear = assign(self._own("pending/clear"), pending, no, "bool", self._device)
        self._add(group(own_name(self._rank, "flush"), [self._add(_after(clear, [done]))], self._device))

    def _repeat(self, name: str) -> None:
        """A node that is computed again."""
        inputs = [self._inner_input(text) for text in self._graph[name].input if not text.startswith("^")]
        copy = copied(self._emission.graph[self._replica(name)], [text for text in inputs if text is not None])
        copy.name = again_name(self._rank, name)
        copy.attr.pop("_class", None)
        self._add(copy)

    def _move(self, name: str) -> None:
        """A node that runs on kept values."""
        current = self._emission.graph[self._replica(name)]
        inputs = [self._inner_input(text) for text in self._graph[name].input]
        # What is read again for other nodes is what the variable has before the update.
        own = [handle for handle, writers in self._postponement.written.items() if name in writers]
        before = [
            f"^{again_name(self._rank, n)}"
            for v in own
            for n in self._postponement.read.get(v, ())
            if n in self._repeated
        ]
        self.changed[current.name] = copied(current, _once([text for text in inputs if text is not None], before))

    def _release(self, name: str) -> None:
        """A node that passes on what the step returns, without the inputs that have moved."""
        current = self._emission.graph[self._replica(name)]
        texts = zip(self._graph[name].input, current.input)
        self.changed[current.name] = copied(current, [own for text, own in texts if node_of(text) not in self._moved])

    def _inner_input(self, text: str) -> str | None:
        """An input of a moved or repeated node; None for a control input that the end of the step has satisfied."""
        producer, index = parse_input(text)
        if producer in self._moved or (is_shared(self._graph[producer]) and index >= 0):
            return format_input(self._replica(producer), index)
        if producer in self._repeated:
            return format_input(again_name(self._rank, producer), index)
        if index < 0:
            return None
        if tensor_name(text) in self._postponement.kept:
            return self._kept_input(text)
        return self.results[tensor_name(text)]

    def _waits(self) -> dict[str, list[str]]:
        """The nodes to wait for, of each node that stays and uses what moved nodes write, or writes what they read."""
        awaited: dict[str, list[str]] = {}
        written, read_there = self._postponement.written, self._postponement.read
        for number, handle in enumerate(dict.fromkeys([*written, *read_there])):
            users = [n for n, _ in self._graph.consumers[handle] if n not in self._moved]
            writers = [self._replica(n) for n in written.get(handle, ())]
            readers = [self._reading_node(n) for n in read_there.get(handle, ())]
            joined: dict[bool, str] = {}
            for user in users:
                writes = not _only_reads(self._graph[user])
                before = [*writers, *readers] if writes else writers
                if not before:
                    continue
                if writes not in joined:
                    joined[writes] = self._joined(f"{'used' if writes else 'written'}_{number}", before)
                awaited.setdefault(user, []).append(joined[writes])
        return awaited

    def _reading_node(self, name: str) -> str:
        return again_name(self._rank, name) if name in self._repeated else self._replica(name)

    def _wait(self, name: str, after: Sequence[str]) -> None:
        current = self._emission.graph[self._replica(name)]
        self.changed[current.name] = copied(current, _once(current.input, ["^" + n for n in after]))

    def _step(self, end_nodes: Sequence[str]) -> None:
        """The step without the nodes that move, with those that keep values and those left by the step before."""
        name = own_name(self._rank, "step")
        stay = [t for t in [*self._targets, *self._postponement.remaining] if t not in self._moved]
        inputs = ["^" + self._replica(n) for n in stay] + ["^" + n for n in end_nodes]
        self.changed[name] = copied(self._emission.graph[name], _once(inputs, []))

    def _joined(self, name: str, after: Iterable[str]) -> str:
        """A node that is done when other nodes are, or at once if nothing is pending."""
        some, done = done_if_pending(self._rank, self._device, name, list(after))
        self._add(some)
        return self._add(done)


def _after(node_def: NodeDef, names: Iterable[str]) -> NodeDef:
    node_def.input.extend("^" + name for name in names)
    return node_def


def _once(texts: Iterable[str], more: Iterable[str]) -> list[str]:
    """Inputs with more control inputs, without duplicates."""
    listed = list(texts)
    data = [text for text in listed if not text.startswith("^")]
    return [*data, *dict.fromkeys(text for text in [*listed, *more] if text.startswith("^"))]


def _has_effect(current: NodeDef) -> bool:
    return ops.is_stateful(current) and current.op not in ops.READS


def _only_reads(current: NodeDef) -> bool:
    return current.op in ops.READS


def verify_postponed(emission: Emission) -> Emission:
    """Check that the moved nodes use nothing of the step that they run in, but only values kept by the step before.

    Args:
        emission: the emission with aggregated gradients.

    Returns:
        The emission, unchanged.

    Raises:
        InvariantError: a moved node uses anything else; the text names the node.
    """
    graph = emission.graph
    ranks = range(emission.plan.workers)
    moved = {replica_name(rank, name) for rank in ranks for name in emission.postponement.moved}
    for name in sorted(graph.ancestors(moved)):
        role = emission.roles[name]
        own = own_name(role.rank, "postponed/")
        if name in moved or role.purpose is Purpose.COLLECTIVE or name.startswith(own) or is_shared(graph[name]):
            continue
        raise InvariantError(
            f"after postpone: a postponed update uses {name!r} of worker {role.rank} in the step after its own"
        )
    return emission
