"""Weigh: multiply gradients by each worker's share of the examples, for uneven batches."""

from __future__ import annotations

from caramel.graph.devices import Device
from caramel.graph.graph import NodeDef, format_input, parse_input
from caramel.graph.nodes import constant, dtype_attribute, node, shape_attribute
from caramel.model import Model
from caramel.modifiers.distributed import DistributedGraph, Purpose, Role, own_name, replica_name
from caramel.plan import Plan


def weigh(
    distributed: DistributedGraph, model: Model, plan: Plan
) -> tuple[DistributedGraph, dict[tuple[int, str], str]]:
    """Multiply each worker's gradients by its share of the examples.

    The weight of worker r is N * b_r / B for b_r of the B examples of a step: 1 for an even split,
    and then nothing changes, not even a bit.

    Args:
        distributed: the replicas.
        model: the single-device step.
        plan: says whether weights are wanted at all.

    Returns:
        The graph, and the tensor to aggregate for each (rank, gradient name).
    """
    added: list[tuple[NodeDef, Role]] = []
    tensors: dict[tuple[int, str], str] = {}
    for rank, text in enumerate(plan.devices):
        for gradient in model.gradients:
            tensors[rank, gradient.name] = replica_tensor(rank, gradient.tensor)
        if plan.weighted:
            nodes, weighted = _weighted(model, rank, str(Device.parse(text)))
            added += [(made, Role(Purpose.REPLICA, rank)) for made in nodes]
            tensors.update(((rank, name), tensor) for name, tensor in weighted.items())
    return distributed.extended(added), tensors


def replica_tensor(rank: int, tensor: str) -> str:
    """A worker's copy of a tensor of the Model."""
    name, index = parse_input(tensor)
    return format_input(replica_name(rank, name), index)


def _weighted(model: Model, rank: int, device: str) -> tuple[list[NodeDef], dict[str, str]]:
    """Nodes that weigh the gradients of a worker, and the weighted tensors by gradient."""
    default = constant(own_name(rank, "weight/one"), 1.0, "float64", device)
    weight = node(
        own_name(rank, "weight"),
        "PlaceholderWithDefault",
        [default.name],
        device,
        dtype=dtype_attribute("float64"),
        shape=shape_attribute(()),
    )
    nodes, tensors = [default, weight], {}
    casts: dict[str, str] = {}
    for number, gradient in enumerate(model.gradients):
        dtype = dtype_attribute(gradient.dtype)
        if gradient.dtype not in casts:
            casts[gradient.dtype] = own_name(rank, f"weight/{gradient.dtype}")
            attributes = {"SrcT": dtype_attribute("float64"), "DstT": dtype}
            nodes.append(node(casts[gradient.dtype], "Cast", [weight.name], device, **attributes))
        tensors[gradient.name] = own_name(rank, f"weighted_{number}")
        inputs = [replica_tensor(rank, gradient.tensor), casts[gradient.dtype]]
        nodes.append(node(tensors[gradient.name], "Mul", inputs, device, T=dtype))
    return nodes, tensors
