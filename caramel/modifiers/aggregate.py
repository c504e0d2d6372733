"""Aggregate: put an all-reduce between every gradient and what the program does with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from caramel.collectives.lower import Lowered, lower
from caramel.collectives.schedule import Schedule, check
from caramel.collectives.shuffle import shuffle
from caramel.errors import InvariantError
from caramel.graph import ops
from caramel.graph.devices import Device
from caramel.graph.graph import NodeDef, format_input, parse_input
from caramel.graph.nodes import constant, dtype_attribute, node, shape_attribute
from caramel.model import Gradient, Model
from caramel.modifiers.distributed import DistributedGraph, Purpose, Role, own_name, replica_name
from caramel.plan import Plan


def weigh(
    distributed: DistributedGraph, model: Model, plan: Plan
) -> tuple[DistributedGraph, dict[tuple[int, str], str]]:
    """Multiply each worker's gradients by its share of the examples.

    The weight of worker r is N * b_r / B for b_r of the B examples of a step: 1 for an even split,
    and then nothing changes, not even a bit.

    Returns:
        The graph, and the weighted tensor for each (rank, gradient name).
    """
    added: list[tuple[NodeDef, Role]] = []
    tensors: dict[tuple[int, str], str] = {}
    for rank, text in enumerate(plan.devices):
        device, role = str(Device.parse(text)), Role(Purpose.REPLICA, rank)
        for gradient in model.gradients:
            tensors[rank, gradient.name] = _replica_tensor(rank, gradient.tensor)
        if not plan.weighted:
            continue
        default = constant(own_name(rank, "weight/one"), 1.0, "float64", device)
        weight = node(
            own_name(rank, "weight"),
            "PlaceholderWithDefault",
            [default.name],
            device,
            dtype=dtype_attribute("float64"),
            shape=shape_attribute(()),
        )
        added += [(default, role), (weight, role)]
        casts: dict[str, str] = {}
        for number, gradient in enumerate(model.gradients):
            if gradient.dtype not in casts:
                cast = node(
                    own_name(rank, f"weight/{gradient.dtype}"),
                    "Cast",
                    [weight.name],
                    device,
                    SrcT=dtype_attribute("float64"),
                    DstT=dtype_attribute(gradient.dtype),
                )
                added.append((cast, role))
                casts[gradient.dtype] = cast.name
            weighted = node(
                own_name(rank, f"weighted_{number}"),
                "Mul",
                [tensors[rank, gradient.name], casts[gradient.dtype]],
                device,
                T=dtype_attribute(gradient.dtype),
            )
            added.append((weighted, role))
            tensors[rank, gradient.name] = weighted.name
    return distributed.extended(added), tensors


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
    added: list[tuple[NodeDef, Role]] = []
    changed: dict[str, NodeDef] = {}
    proved: dict[int, Schedule] = {}
    for number, transfer in enumerate(plan.transfers):
        gradient = by_name[transfer.gradients[0]]
        if gradient.size not in proved:
            proved[gradient.size] = shuffle(len(plan.devices), gradient.size)
            check(proved[gradient.size])
        lowered = lower(
            proved[gradient.size],
            prefix=f"caramel/transfer_{number}",
            sources=[tensors[rank, gradient.name] for rank in range(len(plan.devices))],
            devices=[str(Device.parse(d)) for d in plan.devices],
            dtype=gradient.dtype,
            shape=gradient.shape,
            mean=plan.reduction == "mean",
        )
        added += [(n, Role(Purpose.COLLECTIVE, rank, number)) for n, rank in lowered.nodes]
        _redirect(distributed, gradient, lowered, changed)
    return distributed.extended(added, changed)


def _replica_tensor(rank: int, tensor: str) -> str:
    name, index = parse_input(tensor)
    return format_input(replica_name(rank, name), index)


def _redirect(distributed: DistributedGraph, gradient: Gradient, lowered: Lowered, changed: dict[str, NodeDef]) -> None:
    """Make the readers of the local gradient read the aggregated one."""
    for rank, result in enumerate(lowered.results):
        producer, index = parse_input(_replica_tensor(rank, gradient.tensor))
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
