"""Aggregate: put an all-reduce between every gradient and what the program does with it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from caramel.analyzers.step.dependencies import conditions_of
from caramel.analyzers.step.element_updates import element_updates
from caramel.analyzers.step.sparse_slices import are_distinct
from caramel.collectives.algorithms import NATIVE, SPARSE, Schedules
from caramel.collectives.dtypes import ITEM_BYTES
from caramel.collectives.emit import emit_all_reduce
from caramel.collectives.lower import Emitter, Lowered, OnSum, Request
from caramel.collectives.rows import lower_slices_to_owners
from caramel.collectives.sparse import lower_all_gather, lower_slice_sum
from caramel.errors import InvariantError
from caramel.facts import FORWARD, Piece
from caramel.graph import ops
from caramel.graph.graph import NodeDef, data_texts, node_of, parse_input
from caramel.in_flight import awaited_in_windows
from caramel.model import Gradient, Model
from caramel.modifiers.cut import piece_shape
from caramel.modifiers.emission import Emission, Purpose, Role, own_name, replica_name
from caramel.modifiers.postpone import done_if_pending
from caramel.modifiers.shard_updates import ShardedTransfer, sharded_assignments
from caramel.modifiers.update_shards import divided_tables, gradient_shards
from caramel.modifiers.weigh import redirect, replica_tensor
from caramel.plan import OWNERS, Plan


def aggregate(emission: Emission) -> Emission:
    """All-reduce every gradient and let the rest of the program read the result.

    Args:
        emission: the emission with the pieces of gradients; its plan has the transfers, in order.

    Returns:
        The emission in which every reader of a gradient, outside the differentiation, reads the mean
        (or sum) over the workers.
    """
    model, plan, pieces = emission.model, emission.plan, emission.pieces
    gradient_by_name = {g.name: g for g in model.gradients}
    schedules = Schedules()
    added: list[tuple[NodeDef, Role]] = []
    changed: dict[str, NodeDef] = {}
    limit = _InFlightLimit(plan, model)
    updates = element_updates(model)[0] if plan.sharded else {}
    sharded = {update.gradient: updates[update.gradient] for update in plan.sharded}
    shards = gradient_shards(plan)
    previous_results: Sequence[str] = ()
    for number, transfer in enumerate(plan.transfers):
        if transfer.algorithm in SPARSE:
            (piece,) = transfer.pieces
            nodes = _gathered(emission, number, gradient_by_name[piece.gradient], changed)
        else:
            emitter = Emitter(f"caramel/transfer_{number}", plan.devices, transfer.dtype)
            shapes = [piece_shape(piece, gradient_by_name[piece.gradient]) for piece in transfer.pieces]
            sources = [
                _packed(emitter, rank, [(pieces[rank, p], shape) for p, shape in zip(transfer.pieces, shapes)])
                for rank in range(plan.workers)
            ]
            middle = ShardedTransfer(emission, number, sharded, shards, emitter, changed)
            lowered = _all_reduced(
                schedules, plan, number, sources, previous_results, middle.on_sum if middle.names else None
            )
            if middle.names:
                middle.update()
            if transfer.algorithm == NATIVE:
                previous_results = (
                    _live(plan, lowered.results, added) if _is_last_native(plan, number) else lowered.results
                )
            for rank, reduced in enumerate(lowered.results):
                for place, (piece, tensor) in enumerate(
                    zip(transfer.pieces, _unpacked(emitter, rank, reduced, shapes))
                ):
                    if gradient_by_name[piece.gradient].is_rounded:
                        tensor = emitter.rounded(rank, f"rounded_{rank}_{place}", tensor, "float16")
                    if piece.gradient in middle.names:
                        middle.assign(rank, piece.gradient, tensor)
                    else:
                        _redirect_piece(emission, gradient_by_name[piece.gradient], piece, rank, tensor, changed)
            nodes = [*emitter.out.nodes, *limit.delayed_nodes(number, sources, lowered, emitter)]
        added += [(node, Role(Purpose.COLLECTIVE, rank, number)) for node, rank in nodes]
    return emission.extended(added, changed)


def _all_reduced(
    schedules: Schedules, plan: Plan, number: int, sources: Sequence[str], after: Sequence[str], on_sum: OnSum | None
) -> Lowered:
    """The all-reduce of one transfer, of flat tensors."""
    transfer = plan.transfers[number]
    request = Request(
        prefix=f"caramel/transfer_{number}/reduce",
        sources=sources,
        devices=plan.devices,
        dtype=transfer.dtype,
        size=transfer.elements or 0,
        mean=plan.reduction == "mean",
        wire=transfer.wire,
    )
    return emit_all_reduce(
        schedules,
        transfer.algorithm,
        transfer.depth,
        request,
        turn=number,
        instance=number + 1,
        in_rank_order=plan.deterministic,
        after=after,
        on_sum=on_sum,
    )


def _is_last_native(plan: Plan, number: int) -> bool:
    """Whether a transfer is the last native one of the forward window."""
    following = plan.transfers[number + 1 :]
    is_forward = plan.transfers[number].window == FORWARD
    return is_forward and all(t.window != FORWARD or t.algorithm != NATIVE for t in following)


def _live(plan: Plan, after: Sequence[str], added: list[tuple[NodeDef, Role]]) -> Sequence[str]:
    """For each worker a node that is done when the last native transfer of the forward window is, if any is pending."""
    live_names = []
    for rank, result in enumerate(after):
        nodes = done_if_pending(rank, plan.devices[rank], "sent", [node_of(result)])
        added += [(node, Role(Purpose.REPLICA, rank)) for node in nodes]
        live_names.append(nodes[-1].name)
    return live_names


class _InFlightLimit:
    """Limits what is in flight: a transfer starts to send when little enough of earlier ones is under way.

    The readers of the tensor to send wait on their own worker, until earlier transfers have arrived there. Where
    another worker reads the tensor, too, a node of our own waits in their place. No worker waits for another. Each
    window has its own limit, because nothing may be pending in the forward window. Sparse transfers do not count.
    """

    def __init__(self, plan: Plan, model: Model) -> None:
        conditions = conditions_of(model)
        limited = [
            (number, transfer.window, transfer.elements * ITEM_BYTES[transfer.wire or transfer.dtype])
            for number, transfer in enumerate(plan.transfers)
            # Transfers that wait for what is there in some steps only would run in these only.
            if transfer.elements is not None and not any(conditions[name] for name in transfer.gradients)
        ]
        waits = awaited_in_windows([w for _, w, _ in limited], [size for *_, size in limited], plan.in_flight)
        self._waits = {limited[n][0]: [limited[earlier][0] for earlier in places] for n, places in enumerate(waits)}
        self._results: dict[int, Sequence[str]] = {}

    def delayed_nodes(
        self, number: int, sources: Sequence[str], lowered: Lowered, emitter: Emitter
    ) -> Sequence[tuple[NodeDef, int]]:
        """The nodes of the next transfer, of which the first to send wait for earlier transfers."""
        self._results[number] = lowered.results
        earlier = self._waits.get(number, ())
        if not earlier:
            return lowered.nodes
        gate_nodes: list[tuple[NodeDef, int]] = []
        for rank, source in enumerate(sources):
            controls = ["^" + node_of(self._results[each][rank]) for each in earlier]
            readers = [(node, reader_rank) for node, reader_rank in lowered.nodes if source in data_texts(node)]
            if any(reader_rank != rank for _, reader_rank in readers):
                gate = Emitter(f"{emitter.prefix}/turn", emitter.devices, emitter.dtype)
                name = gate.identity(rank, str(rank), source)
                for node, _ in readers:
                    node.input[:] = [name if text == source else text for text in node.input]
                gate_nodes += gate.out.nodes
                readers = gate.out.nodes
            for node, _ in readers:
                node.input.extend(controls)
        return [*gate_nodes, *lowered.nodes]


def _gathered(
    emission: Emission, number: int, gradient: Gradient, changed: dict[str, NodeDef]
) -> Sequence[tuple[NodeDef, int]]:
    """Give every worker the slices of a sparse gradient of all workers, or of the rows that it has.

    Where all workers have slices of the same rows, it gets their sum.
    """
    plan, pieces = emission.plan, emission.pieces
    assert gradient.indices is not None and gradient.index_dtype is not None
    ranks = range(plan.workers)
    transfer = plan.transfers[number]
    options: dict[str, Any] = {"adds": transfer.adds_slices, "unites": are_distinct(emission.model, gradient)}
    lower = lower_slice_sum if gradient.shared_rows else partial(lower_all_gather, **options)
    if transfer.algorithm == OWNERS:
        lower = partial(lower_slices_to_owners, **options)
    lowered = lower(
        prefix=f"caramel/transfer_{number}/gather",
        values=[pieces[rank, transfer.pieces[0]] for rank in ranks],
        indices=[emission.indices[rank, gradient.name] for rank in ranks],
        devices=plan.devices,
        dtype=gradient.dtype,
        index_dtype=gradient.index_dtype,
        mean=plan.reduction == "mean",
        wire=transfer.wire,
    )
    for rank in ranks:
        redirect_gradient(emission, gradient, rank, gradient.tensor, lowered.values[rank], changed)
        redirect_gradient(emission, gradient, rank, gradient.indices, lowered.indices[rank], changed)
    return lowered.nodes


def _packed(emitter: Emitter, rank: int, parts: Sequence[tuple[str, tuple[int, ...]]]) -> str:
    """The tensors of a bucket, each with its shape, as one flat tensor."""
    flat = [
        _shaped(emitter, rank, f"flat_{rank}_{n}", tensor, shape, (math.prod(shape),))
        for n, (tensor, shape) in enumerate(parts)
    ]
    return emitter.joined(rank, f"pack_{rank}", flat)


def _unpacked(emitter: Emitter, rank: int, flat: str, shapes: Sequence[tuple[int, ...]]) -> list[str]:
    """The tensors of a bucket in their own shapes."""
    parts = emitter.parted(rank, f"unpack_{rank}", flat, [math.prod(shape) for shape in shapes])
    return [
        _shaped(emitter, rank, f"result_{rank}_{n}", part, (math.prod(shape),), shape)
        for n, (part, shape) in enumerate(zip(parts, shapes))
    ]


def _shaped(
    emitter: Emitter, rank: int, name: str, tensor: str, shape: tuple[int, ...], target_shape: tuple[int, ...]
) -> str:
    """The tensor in another shape, by a node only if it differs."""
    return tensor if shape == target_shape else emitter.reshape(rank, name, tensor, target_shape)


def _redirect_piece(
    emission: Emission, gradient: Gradient, piece: Piece, rank: int, aggregated: str, changed: dict[str, NodeDef]
) -> None:
    """Make the readers of a piece read the aggregated piece."""
    if len(emission.plan.pieces[gradient.name]) == 1 and gradient.name not in emission.plan.postponed:
        redirect_gradient(emission, gradient, rank, gradient.tensor, aggregated, changed)
        return
    # A piece, and what was kept of one, is read by what joins the pieces, keeps it, or uses it; nothing else.
    if not redirect(emission, emission.pieces[rank, piece], (), aggregated, changed):
        raise InvariantError(f"aggregate: a piece of gradient {gradient.name!r} of worker {rank} has no reader")


def redirect_gradient(
    emission: Emission, gradient: Gradient, rank: int, tensor: str, aggregated: str, changed: dict[str, NodeDef]
) -> None:
    """Make the readers of a tensor of a worker's gradient read another one.

    Args:
        emission: the emission with weighed gradients; it is not changed.
        gradient: the gradient.
        rank: the worker.
        tensor: its tensor in the Model: the values, or the indices of a sparse one.
        aggregated: the tensor to read.
        changed: changed nodes by name; the readers are added.

    Raises:
        InvariantError: nothing reads the values.
    """
    consumers = {replica_name(rank, c) for c in gradient.consumers}
    # The weight of this worker goes on reading the local gradient.
    has_reader = redirect(emission, replica_tensor(rank, tensor), consumers, aggregated, changed, own_name(rank, ""))
    if not has_reader and tensor == gradient.tensor:
        raise InvariantError(f"aggregate: gradient {gradient.name!r} of worker {rank} has no reader")


def verify_aggregated(emission: Emission) -> Emission:
    """Every update that uses gradients uses only aggregated ones; no edge crosses workers elsewhere.

    Args:
        emission: the emission with aggregated gradients.

    Returns:
        The emission, unchanged.

    Raises:
        InvariantError: an edge or an update breaks this; the text names the node.
    """
    model, graph, roles, ranks = emission.model, emission.graph, emission.roles, range(emission.plan.workers)
    for node in graph:
        role, sources = roles[node.name], graph.sources(node.name)
        if all(roles[source].rank == role.rank for source in sources):
            continue
        for text, source in zip(node.input, sources):
            source_role = roles[source]
            crossing = source_role.rank != role.rank
            if crossing and role.purpose not in (Purpose.COLLECTIVE, Purpose.STATE):
                raise InvariantError(
                    f"after aggregate: node {node.name!r} of worker {role.rank} reads {text!r} "
                    f"of worker {source_role.rank}, which is not part of a collective"
                )
            if crossing and text.startswith("^") and role.purpose is Purpose.COLLECTIVE:
                raise InvariantError(f"after aggregate: control edge {text!r} -> {node.name!r} crosses workers")
    local_gradients = {
        parse_input(replica_tensor(rank, tensor)): g
        for g in model.gradients
        for tensor in (g.tensor, g.indices)
        if tensor is not None
        for rank in ranks
    }
    by_name = {g.name: g for g in model.gradients}
    local_gradients |= {parse_input(tensor): by_name[piece.gradient] for (_, piece), tensor in emission.pieces.items()}
    _verify_pieces(emission)
    _verify_sharded(emission)
    _verify_divided(emission)
    updates = {
        replica_name(rank, writer): name for rank in ranks for name, writers in model.updates for writer in writers
    }
    visited: set[str] = set()
    for writer, variable in updates.items():
        if not model.variable_by_name[variable].kind.is_local:
            _verify_update(emission, writer, variable, local_gradients, visited)
    return emission


def _verify_pieces(emission: Emission) -> None:
    """Nothing but collectives reads a piece of a gradient, or what was kept of one."""
    graph, roles = emission.graph, emission.roles
    sizes = {g.name: g.size for g in emission.model.gradients}
    for (rank, piece), tensor in emission.pieces.items():
        if piece.elements in (None, sizes[piece.gradient]) and piece.gradient not in emission.plan.postponed:
            continue  # the differentiation may go on with it
        for reader in graph.readers(tensor):
            if roles[reader].purpose is not Purpose.COLLECTIVE:
                raise InvariantError(
                    f"after aggregate: {reader!r} of worker {rank} reads elements {piece.start} to "
                    f"{piece.start + (piece.elements or 0)} of gradient {piece.gradient!r} of its own worker only"
                )


def _verify_sharded(emission: Emission) -> None:
    """No step ends on a worker before it has the new parameter of each sharded update."""
    graph = emission.graph
    assigned = sharded_assignments(emission)
    for rank in range(emission.plan.workers) if emission.plan.sharded else ():
        before = graph.ancestors([own_name(rank, "step")])
        for name in assigned[rank]:
            if name not in before:
                raise InvariantError(f"after aggregate: a step of worker {rank} does not wait for {name!r}")


def _verify_divided(emission: Emission) -> None:
    """No worker updates rows of a divided table before all workers have looked up theirs."""
    graph, variables = emission.graph, emission.model.variable_by_name
    for table in divided_tables(emission.model, emission.plan):
        for rank in range(emission.plan.workers):
            handle = replica_name(rank, variables[table.parameter].node)
            lookups = {n for n, _ in graph.consumers[handle] if emission.roles[n].purpose is Purpose.COLLECTIVE}
            for writer in table.writers:
                name = replica_name(rank, writer)
                waits_for = {node_of(text) for text in graph[name].input}
                if not lookups <= waits_for and (early := lookups - graph.ancestors([name])):
                    raise InvariantError(f"after aggregate: {name!r} may update rows before {min(early)!r} has them")


def _verify_update(
    emission: Emission,
    writer: str,
    variable: str,
    local_gradients: Mapping[tuple[str, int], Gradient],
    visited: set[str],
) -> None:
    """Nothing that an update needs is a worker's own gradient; what was visited for others is not visited again."""
    graph, roles = emission.graph, emission.roles
    stack = [writer]
    while stack:
        name = stack.pop()
        if name in visited or roles[name].purpose is Purpose.COLLECTIVE:
            continue
        visited.add(name)
        for producer, index in ops.data_inputs(graph[name]):
            gradient = local_gradients.get((producer, index))
            if gradient is not None and (
                not gradient.consumers or name in {replica_name(roles[name].rank, c) for c in gradient.consumers}
            ):
                raise InvariantError(
                    f"after aggregate: update {writer!r} of {variable!r} reads gradient {gradient.name!r} "
                    "of its own worker only"
                )
            stack.append(producer)
