"""Weigh: multiply gradients by each worker's share of the examples, for uneven batches."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from caramel.graph.graph import NodeDef, copied, format_input, parse_input
from caramel.graph.nodes import constant, dtype_attribute, node, shape_attribute
from caramel.modifiers.emission import Emission, Purpose, Role, own_name, replica_name


def weigh(emission: Emission) -> Emission:
    """Multiply each worker's gradients by its share of the examples.

    The weight of worker r is N * b_r / B for b_r of the B examples of a step: 1 for an even split,
    and then nothing changes, not even a bit.

    Args:
        emission: the emission with the replicas; its plan says whether gradients are weighted at all.

    Returns:
        The emission with the tensor to aggregate for each (rank, gradient's name).
    """
    model, plan = emission.model, emission.plan
    tensors = {
        (rank, gradient.name): replica_tensor(rank, gradient.tensor)
        for rank in range(plan.workers)
        for gradient in model.gradients
    }
    if not plan.weighted:
        return replace(emission, gradients=tensors)
    added: list[tuple[NodeDef, Role]] = []
    changed: dict[str, NodeDef] = {}
    for rank, device in enumerate(plan.devices):
        weights = _Weights(rank, device)
        for gradient in model.gradients:
            if not gradient.sources:
                tensors[rank, gradient.name] = weights.weighted(gradient.tensor, gradient.dtype)
            for tensor, consumers in gradient.sources:
                weighted = weights.weighted(tensor, gradient.dtype)
                redirect(emission, replica_tensor(rank, tensor), _on(rank, consumers), weighted, changed)
        added += [(node_def, Role(Purpose.REPLICA, rank)) for node_def in weights.nodes]
    return emission.extended(added, changed, gradients=tensors)


def _on(rank: int, consumers: Sequence[str]) -> list[str]:
    return [replica_name(rank, name) for name in consumers]


def redirect(
    emission: Emission,
    tensor: str,
    consumers: Collection[str],
    replacement: str,
    changed: dict[str, NodeDef],
    own_prefix: str = "",
) -> bool:
    """Make readers of a tensor read another tensor.

    Args:
        emission: the emission with the graph; it is not changed.
        tensor: the tensor that they read.
        consumers: names of the readers to change; empty for all.
        replacement: the tensor that they are to read.
        changed: changed nodes by name; the readers are added.
        own_prefix: name prefix of readers that go on reading the tensor; "" for none.

    Returns:
        Whether there was any reader.
    """
    producer, index = parse_input(tensor)
    has_reader = False
    for reader, position in emission.graph.consumers[producer]:
        if parse_input(emission.graph[reader].input[position])[1] != index:
            continue
        if (own_prefix and reader.startswith(own_prefix)) or (consumers and reader not in consumers):
            continue
        if reader not in changed:
            changed[reader] = copied(emission.graph[reader])
        changed[reader].input[position] = replacement
        has_reader = True
    return has_reader


def replica_tensor(rank: int, tensor: str) -> str:
    """A worker's copy of a tensor of the Model."""
    name, index = parse_input(tensor)
    return format_input(replica_name(rank, name), index)


class _Weights:
    """The nodes that weigh the gradients of one worker."""

    def __init__(self, rank: int, device: str) -> None:
        self._rank = rank
        self._device = device
        default = constant(own_name(rank, "weight/one"), 1.0, "float64", device)
        attributes = {"dtype": dtype_attribute("float64"), "shape": shape_attribute(())}
        weight = node(own_name(rank, "weight"), "PlaceholderWithDefault", [default.name], device, **attributes)
        self.nodes = [default, weight]
        self._casts: dict[str, str] = {}
        self._done: dict[str, str] = {}

    def weighted(self, tensor: str, dtype: str) -> str:
        """A tensor of the Model, times the weight."""
        if tensor not in self._done:
            kind = dtype_attribute(dtype)
            if dtype not in self._casts:
                self._casts[dtype] = own_name(self._rank, f"weight/{dtype}")
                attributes = {"SrcT": dtype_attribute("float64"), "DstT": kind}
                self.nodes.append(node(self._casts[dtype], "Cast", [self.nodes[1].name], self._device, **attributes))
            self._done[tensor] = own_name(self._rank, f"weighted_{len(self._done)}")
            inputs = [replica_tensor(self._rank, tensor), self._casts[dtype]]
            self.nodes.append(node(self._done[tensor], "Mul", inputs, self._device, T=kind))
        return self._done[tensor]
