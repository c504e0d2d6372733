"""Aggregate: put an all-reduce between every gradient and what the program does with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from caramel.collectives.algorithms import NATIVE, Schedules
from caramel.collectives.lower import Emitter, Lowered, lower
from caramel.collectives.native import is_on_gpus, lower_native
from caramel.errors import InvariantError
from caramel.graph import ops
from caramel.graph.devices import Device
from caramel.graph.graph import NodeDef, parse_input
from caramel.model import Gradient, Model
from caramel.modifiers.distributed import DistributedGraph, Purpose, Role, own_name, replica_name
from caramel.modifiers.weigh import replica_tensor
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
    devices = [str(Device.parse(d)) for d in plan.devices]
    added: list[tuple[NodeDef, Role]] = []
    changed: dict[str, NodeDef] = {}
    after: Sequence[str] = ()
    for number, transfer in enumerate(plan.transfers):
        gradients = [by_name[name] for name in transfer.gradients]
        emitter = Emitter(f"caramel/transfer_{number}", devices, transfer.dtype)
        sources = [
            _packed(emitter, rank, [(tensors[rank, g.name], g) for g in gradients]) for rank in range(plan.workers)
        ]
        lowered = _reduced(plan, number, schedules, sources, devices, after)
        if transfer.algorithm == NATIVE:
            after = lowered.results
        for rank, result in enumerate(lowered.results):
            for gradient, tensor in zip(gradients, _unpacked(emitter, rank, result, gradients)):
                _redirect(distributed, gradient, rank, tensor, changed)
        nodes = [*emitter.out.nodes, *lowered.nodes]
        added += [(made, Role(Purpose.COLLECTIVE, rank, number)) for made, rank in nodes]
    return distributed.extended(added, changed)


def _reduced(
    plan: Plan,
    number: int,
    schedules: Schedules,
    sources: Sequence[str],
    devices: Sequence[str],
    after: Sequence[str],
) -> Lowered:
    """The all-reduce of one transfer; ``after`` has the results of the last native one.

    NCCL waits for ever if two workers start two of its collectives in different orders.
    """
    transfer = plan.transfers[number]
    prefix = f"caramel/transfer_{number}/reduce"
    mean = plan.reduction == "mean"
    if transfer.algorithm == NATIVE:
        return lower_native(
            prefix=prefix,
            size=transfer.elements,
            sources=sources,
            devices=devices,
            dtype=transfer.dtype,
            mean=mean,
            instance=number + 1,
            after=after if is_on_gpus(devices) else (),
        )
    return lower(
        schedules.proved(
            transfer.algorithm, plan.workers, transfer.elements, transfer.depth, number, plan.deterministic
        ),
        prefix=prefix,
        sources=sources,
        devices=devices,
        dtype=transfer.dtype,
        mean=mean,
        wire=transfer.wire,
    )


def _packed(emitter: Emitter, rank: int, gradients: Sequence[tuple[str, Gradient]]) -> str:
    """The gradients of a bucket as one flat tensor."""
    flat = [
        _shaped(emitter, rank, f"flat_{rank}_{n}", tensor, gradient.shape, (gradient.size,))
        for n, (tensor, gradient) in enumerate(gradients)
    ]
    return flat[0] if len(flat) == 1 else emitter.concat(rank, f"pack_{rank}", flat)


def _unpacked(emitter: Emitter, rank: int, result: str, gradients: Sequence[Gradient]) -> list[str]:
    """The gradients of a bucket in their own shapes."""
    parts = [result]
    if len(gradients) > 1:
        parts = emitter.split(rank, f"unpack_{rank}", result, [g.size for g in gradients])
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
    distributed: DistributedGraph, gradient: Gradient, rank: int, result: str, changed: dict[str, NodeDef]
) -> None:
    """Make the readers of the local gradient read the aggregated one."""
    producer, index = parse_input(replica_tensor(rank, gradient.tensor))
    readers = _readers(distributed, gradient, rank, producer, index)
    if not readers:
        raise InvariantError(f"aggregate: gradient {gradient.name!r} of worker {rank} has no reader")
    for reader, positions in readers.items():
        if reader not in changed:
            changed[reader] = type(distributed.graph[reader])()
            changed[reader].CopyFrom(distributed.graph[reader])
        for position in positions:
            changed[reader].input[position] = result


def _readers(
    distributed: DistributedGraph, gradient: Gradient, rank: int, producer: str, index: int
) -> dict[str, list[int]]:
    wanted = {replica_name(rank, c) for c in gradient.consumers}
    found: dict[str, list[int]] = {}
    for reader, position in distributed.graph.consumers[producer]:
        if parse_input(distributed.graph[reader].input[position])[1] != index:
            continue
        own = reader.startswith(own_name(rank, ""))  # the weight of this worker reads the local gradient
        if not own and (not wanted or reader in wanted):
            found.setdefault(reader, []).append(position)
    return found


def verify_aggregated(distributed: DistributedGraph, model: Model, workers: Sequence[int]) -> None:
    """Every update that uses gradients uses only aggregated ones; no edge crosses workers elsewhere.

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
        (replica_name(rank, parse_input(g.tensor)[0]), parse_input(g.tensor)[1]): g
        for g in model.gradients
        for rank in workers
    }
    updates = {
        replica_name(rank, writer): name for rank in workers for name, writers in model.updates for writer in writers
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
