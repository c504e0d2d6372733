"""Aggregate: put an all-reduce between every gradient and what the program does with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from caramel.collectives.algorithms import ALL_GATHER, NATIVE, Schedules
from caramel.collectives.emit import emit_all_reduce
from caramel.collectives.lower import Emitter, Request
from caramel.collectives.sparse import lower_all_gather
from caramel.errors import InvariantError
from caramel.graph import ops
from caramel.graph.graph import NodeDef, parse_input
from caramel.model import Gradient, Model
from caramel.modifiers.distributed import DistributedGraph, Purpose, Role, own_name, replica_name
from caramel.modifiers.weigh import redirect, replica_tensor
from caramel.plan import Plan


def aggregate(
    distributed: DistributedGraph,
    model: Model,
    plan: Plan,
    tensors: Mapping[tuple[int, str], str],
) -> DistributedGraph:
    """All-reduce every gradient and let the rest of the program read the result.

    Args:
        distributed: the replicas.
        model: the single-device step.
        plan: its transfers, in order.
        tensors: the local tensor for each (rank, gradient name).

    Returns:
        The graph in which every reader of a gradient, outside the differentiation, reads the mean
        (or sum) over the workers.
    """
    by_name = {g.name: g for g in model.gradients}
    schedules = Schedules()
    added: list[tuple[NodeDef, Role]] = []
    changed: dict[str, NodeDef] = {}
    after: Sequence[str] = ()
    for number, transfer in enumerate(plan.transfers):
        gradients = [by_name[name] for name in transfer.gradients]
        if transfer.algorithm == ALL_GATHER:
            (gradient,) = gradients
            nodes = _gathered(distributed, plan, number, gradient, tensors, changed)
            added += [(made, Role(Purpose.COLLECTIVE, rank, number)) for made, rank in nodes]
            continue
        emitter = Emitter(f"caramel/transfer_{number}", plan.devices, transfer.dtype)
        sources = [
            _packed(emitter, rank, [(tensors[rank, g.name], g) for g in gradients]) for rank in range(plan.workers)
        ]
        lowered = emit_all_reduce(
            schedules,
            transfer.algorithm,
            transfer.depth,
            Request(
                prefix=f"caramel/transfer_{number}/reduce",
                sources=sources,
                devices=plan.devices,
                dtype=transfer.dtype,
                size=sum(g.size for g in gradients),
                mean=plan.reduction == "mean",
                wire=transfer.wire,
            ),
            turn=number,
            instance=number + 1,
            in_rank_order=plan.deterministic,
            after=after,
        )
        if transfer.algorithm == NATIVE:
            after = lowered.results
        for rank, result in enumerate(lowered.results):
            for gradient, tensor in zip(gradients, _unpacked(emitter, rank, result, gradients)):
                kept = tensors[rank, gradient.name] if transfer.window == "forward" else None
                _redirect(distributed, gradient, rank, gradient.tensor, tensor, changed, kept)
        nodes = [*emitter.out.nodes, *lowered.nodes]
        added += [(made, Role(Purpose.COLLECTIVE, rank, number)) for made, rank in nodes]
    return distributed.extended(added, changed)


def _gathered(
    distributed: DistributedGraph,
    plan: Plan,
    number: int,
    gradient: Gradient,
    tensors: Mapping[tuple[int, str], str],
    changed: dict[str, NodeDef],
) -> Sequence[tuple[NodeDef, int]]:
    """Give everybody everybody's slices of a sparse gradient."""
    assert gradient.indices is not None and gradient.index_dtype is not None
    ranks = range(plan.workers)
    lowered = lower_all_gather(
        prefix=f"caramel/transfer_{number}/gather",
        values=[tensors[rank, gradient.name] for rank in ranks],
        indices=[replica_tensor(rank, gradient.indices) for rank in ranks],
        devices=plan.devices,
        dtype=gradient.dtype,
        index_dtype=gradient.index_dtype,
        mean=plan.reduction == "mean",
        wire=plan.transfers[number].wire,
    )
    for rank in ranks:
        _redirect(distributed, gradient, rank, gradient.tensor, lowered.values[rank], changed)
        _redirect(distributed, gradient, rank, gradient.indices, lowered.indices[rank], changed)
    return lowered.nodes


def _packed(emitter: Emitter, rank: int, gradients: Sequence[tuple[str, Gradient]]) -> str:
    """The gradients of a bucket as one flat tensor."""
    flat = [
        _shaped(emitter, rank, f"flat_{rank}_{n}", tensor, gradient.shape, (gradient.size,))
        for n, (tensor, gradient) in enumerate(gradients)
    ]
    return emitter.joined(rank, f"pack_{rank}", flat)


def _unpacked(emitter: Emitter, rank: int, result: str, gradients: Sequence[Gradient]) -> list[str]:
    """The gradients of a bucket in their own shapes."""
    parts = emitter.parted(rank, f"unpack_{rank}", result, [g.size for g in gradients])
    return [
        _shaped(emitter, rank, f"result_{rank}_{n}", part, (gradient.size,), gradient.shape)
        for n, (part, gradient) in enumerate(zip(parts, gradients))
    ]


def _shaped(
    emitter: Emitter, rank: int, name: str, tensor: str, given: tuple[int, ...], wanted: tuple[int, ...]
) -> str:
    """The tensor in another shape, by a node only if it differs."""
    return tensor if given == wanted else emitter.reshape(rank, name, tensor, wanted)


def _redirect(
    distributed: DistributedGraph,
    gradient: Gradient,
    rank: int,
    tensor: str,
    result: str,
    changed: dict[str, NodeDef],
    kept: str | None = None,
) -> None:
    """Make the readers of a tensor of the local gradient, or of what was kept of it, read the aggregated one."""
    consumers = {replica_name(rank, c) for c in gradient.consumers}
    # The weight of this worker goes on reading the local gradient.
    found = redirect(distributed, kept or replica_tensor(rank, tensor), consumers, result, changed, own_name(rank, ""))
    if not found and tensor == gradient.tensor:
        raise InvariantError(f"aggregate: gradient {gradient.name!r} of worker {rank} has no reader")


def verify_aggregated(
    distributed: DistributedGraph,
    model: Model,
    ranks: Sequence[int],
    tensors: Mapping[tuple[int, str], str] | None = None,
) -> None:
    """Every update that uses gradients uses only aggregated ones; no edge crosses workers elsewhere.

    Args:
        distributed: the graph.
        model: the single-device step.
        ranks: of the workers.
        tensors: what was aggregated for each (rank, gradient name), where that is no tensor of the Model.

    Raises:
        InvariantError: naming the node.
    """
    graph, roles = distributed.graph, distributed.roles
    for current in graph:
        role = roles[current.name]
        for text in current.input:
            other = roles[parse_input(text)[0]]
            crossing = other.rank != role.rank
            if crossing and role.purpose not in (Purpose.COLLECTIVE, Purpose.STATE):
                raise InvariantError(
                    f"after aggregate: node {current.name!r} of worker {role.rank} reads {text!r} "
                    f"of worker {other.rank}, which is not part of a collective"
                )
            if crossing and text.startswith("^") and role.purpose is Purpose.COLLECTIVE:
                raise InvariantError(f"after aggregate: control edge {text!r} -> {current.name!r} crosses workers")
    local = {
        parse_input(replica_tensor(rank, tensor)): g
        for g in model.gradients
        for tensor in (g.tensor, g.indices)
        if tensor is not None
        for rank in ranks
    }
    by_name = {g.name: g for g in model.gradients}
    local |= {parse_input(tensor): by_name[name] for (_, name), tensor in (tensors or {}).items()}
    updates = {
        replica_name(rank, writer): name for rank in ranks for name, writers in model.updates for writer in writers
    }
    for writer, variable in updates.items():
        if not model.variable_by_name[variable].kind.is_local:
            _verify_update(distributed, writer, variable, local)


def _verify_update(
    distributed: DistributedGraph, writer: str, variable: str, local: Mapping[tuple[str, int], Gradient]
) -> None:
    graph, roles = distributed.graph, distributed.roles
    seen, stack = set(), [writer]
    while stack:
        name = stack.pop()
        if name in seen or roles[name].purpose is Purpose.COLLECTIVE:
            continue
        seen.add(name)
        for producer, index in ops.data_inputs(graph[name]):
            gradient = local.get((producer, index))
            if gradient is not None and (
                not gradient.consumers or name in {replica_name(roles[name].rank, c) for c in gradient.consumers}
            ):
                raise InvariantError(
                    f"after aggregate: update {writer!r} of {variable!r} reads gradient {gradient.name!r} "
                    "of its own worker only"
                )
            stack.append(producer)
