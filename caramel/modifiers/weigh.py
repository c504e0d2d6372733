"""Weigh: multiply gradients by each worker's share of the examples, for uneven batches."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from caramel.graph import ops
from caramel.graph.graph import NodeDef, copied, format_input, parse_input
from caramel.graph.nodes import constant, dtype_attribute, node, shape_attribute
from caramel.modifiers.emission import Emission, Purpose, Role, own_name, replica_name
from caramel.modifiers.place_input import weight_of_element


def weigh(emission: Emission) -> Emission:
    """Multiply each worker's gradients by its share of the examples.

    The weight of worker r is N * b_r / B for b_r of the B examples of a step: 1 for an even split,
    and then nothing changes, not even a bit. What a step adds to totals over the examples is weighted, too, so that the
    workers' totals add up. A worker without examples, which computes with one that is not its own, has no slices.

    Where a model has seeds, these are weighted in place of the gradients, by b_r / B, and gradients are multiplied by N
    behind them: what float16 holds on one device it holds on each worker.

    Args:
        emission: the emission with the replicas; its plan says whether gradients are weighted at all.

    Returns:
        The emission with the tensor to aggregate for each (rank, gradient's name).
    """
    model, plan = emission.model, emission.plan
    assert not model.seeds or plan.reduction == "mean"
    tensors = {
        (rank, gradient.name): replica_tensor(rank, gradient.tensor)
        for rank in range(plan.workers)
        for gradient in model.gradients
    }
    indices = {
        (rank, gradient.name): replica_tensor(rank, gradient.indices)
        for rank in range(plan.workers)
        for gradient in model.gradients
        if gradient.indices is not None
    }
    added: list[tuple[NodeDef, Role]] = []
    changed: dict[str, NodeDef] = {}
    for rank, device in enumerate(plan.devices):
        weights = _Weights(rank, device, weight_of_element(emission, rank)) if plan.weighted else None
        shares = Shares(rank, device, plan.workers, None if weights is None else weights.name)
        _weigh_addends(emission, rank, shares, changed)
        if plan.workers > 1:
            for seed in model.seeds:
                _weigh_seed(emission, rank, shares, seed, changed)
            for gradient in model.gradients:
                if gradient.is_seeded:
                    tensors[rank, gradient.name] = shares.times_workers(tensors[rank, gradient.name], gradient.dtype)
        added += [(node_def, Role(Purpose.REPLICA, rank)) for node_def in shares.nodes]
        if weights is None:
            continue
        for gradient in model.gradients:
            if not gradient.sources:
                if not gradient.is_seeded:
                    tensors[rank, gradient.name] = weights.weighted(gradient.tensor, gradient.dtype)
                if gradient.indices is not None and gradient.index_dtype is not None and not gradient.shared_rows:
                    key = rank, gradient.name
                    tensors[key], indices[key] = weights.own_slices(
                        tensors[key], gradient.dtype, indices[key], gradient.index_dtype
                    )
            for tensor, consumers in gradient.sources:
                weighted = weights.weighted(tensor, gradient.dtype)
                redirect(emission, replica_tensor(rank, tensor), _on(rank, consumers), weighted, changed)
        added += [(node_def, Role(Purpose.REPLICA, rank)) for node_def in weights.nodes]
    return emission.extended(added, changed, gradients=tensors, indices=indices)


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


def _weigh_addends(emission: Emission, rank: int, shares: Shares, changed: dict[str, NodeDef]) -> None:
    """Let what adds to a total over the examples read the worker's part of it."""
    graph = emission.graph
    for addend in emission.model.addends:
        name = replica_name(rank, addend.consumer)
        types = ops.input_types(graph[name])
        dtype = ops.dtype_name(types[addend.position][1])
        part = shares.part(replica_tensor(rank, addend.tensor), dtype, addend.reduction)
        if name not in changed:
            changed[name] = copied(graph[name])
        changed[name].input[addend.position] = part


def _weigh_seed(emission: Emission, rank: int, shares: Shares, seed: str, changed: dict[str, NodeDef]) -> None:
    """Let a worker's differentiation begin with its share of the examples."""
    dtype = ops.dtype_name(emission.graph[replica_name(rank, parse_input(seed)[0])].attr["T"].type)
    tensor = replica_tensor(rank, seed)
    redirect(emission, tensor, (), shares.part(tensor, dtype, "mean"), changed)


class Shares:
    """The nodes that make one worker's part of a total over the examples.

    Args:
        rank: the worker.
        device: its device.
        workers: number of workers.
        weight: the node with the worker's weight, N * b_r / B; None where it is always 1.
        name: name of the parts, within the worker's scope.
    """

    def __init__(self, rank: int, device: str, workers: int, weight: str | None, name: str = "part") -> None:
        self._name = name
        self.nodes: list[NodeDef] = []
        self._rank = rank
        self._device = device
        self._workers = workers
        self._weight = weight
        self._parts: dict[tuple[str, str], str] = {}

    def part(self, tensor: str, dtype: str, reduction: str) -> str:
        """A worker's part: of a mean its share of the examples; of a sum all, or nothing without examples."""
        key = tensor, reduction
        if key not in self._parts:
            self._parts[key] = self._made(
                own_name(self._rank, f"{self._name}_{len(self._parts)}"), tensor, dtype, reduction
            )
        return self._parts[key]

    def times_workers(self, tensor: str, dtype: str) -> str:
        """A tensor times the number of workers, by which a mean over them divides."""
        key = tensor, "workers"
        if key not in self._parts:
            name = own_name(self._rank, f"{self._name}_{len(self._parts)}")
            count = self._add(constant(f"{name}/workers", self._workers, dtype, self._device))
            self._parts[key] = self._add(node(name, "Mul", [tensor, count], self._device, T=dtype_attribute(dtype)))
        return self._parts[key]

    def _made(self, name: str, tensor: str, dtype: str, reduction: str) -> str:
        kind, double = dtype_attribute(dtype), dtype_attribute("float64")
        if reduction == "mean":
            count = self._add(constant(f"{name}/workers", self._workers, "float64", self._device))
            if self._weight is None:
                share = self._add(node(f"{name}/share", "Reciprocal", [count], self._device, T=double))
            else:
                inputs = [self._weight, count]
                share = self._add(node(f"{name}/share", "RealDiv", inputs, self._device, T=double))
            attributes = {"SrcT": dtype_attribute("float64"), "DstT": kind}
            cast = self._add(node(f"{name}/cast", "Cast", [share], self._device, **attributes))
            return self._add(node(name, "Mul", [tensor, cast], self._device, T=kind))
        if self._weight is None:
            return tensor
        zero = self._add(constant(f"{name}/zero", 0.0, "float64", self._device))
        counts = self._add(node(f"{name}/counts", "Greater", [self._weight, zero], self._device, T=double))
        nothing = self._add(node(f"{name}/nothing", "ZerosLike", [tensor], self._device, T=kind))
        return self._add(node(name, "SelectV2", [counts, tensor, nothing], self._device, T=kind))

    def _add(self, node_def: NodeDef) -> str:
        self.nodes.append(node_def)
        return node_def.name


class _Weights:
    """The nodes that weigh the gradients of one worker.

    Args:
        rank: the worker.
        device: its device.
        default: tensor with the weight where it is not fed; None for 1.
    """

    def __init__(self, rank: int, device: str, default: str | None) -> None:
        self._rank = rank
        self._device = device
        self.nodes: list[NodeDef] = []
        if default is None:
            self.nodes.append(constant(own_name(rank, "weight/one"), 1.0, "float64", device))
            default = self.nodes[0].name
        attributes = {"dtype": dtype_attribute("float64"), "shape": shape_attribute(())}
        self.nodes.append(node(own_name(rank, "weight"), "PlaceholderWithDefault", [default], device, **attributes))
        self.name = self.nodes[-1].name
        self._casts: dict[str, str] = {}
        self._done: dict[str, str] = {}
        self._counted = ""  # node with 1, or with 0 for a worker without examples
        self._bounds: list[str] = []

    def weighted(self, tensor: str, dtype: str) -> str:
        """A tensor of the Model, times the weight."""
        if tensor not in self._done:
            kind = dtype_attribute(dtype)
            if dtype not in self._casts:
                self._casts[dtype] = own_name(self._rank, f"weight/{dtype}")
                attributes = {"SrcT": dtype_attribute("float64"), "DstT": kind}
                self.nodes.append(node(self._casts[dtype], "Cast", [self.name], self._device, **attributes))
            self._done[tensor] = own_name(self._rank, f"weighted_{len(self._done)}")
            inputs = [replica_tensor(self._rank, tensor), self._casts[dtype]]
            self.nodes.append(node(self._done[tensor], "Mul", inputs, self._device, T=kind))
        return self._done[tensor]

    def own_slices(self, values: str, dtype: str, indices: str, index_dtype: str) -> tuple[str, str]:
        """The values and row numbers of the slices of the worker's examples: all, or none where its weight is 0.

        Args:
            values: tensor with the values of a slice in each row.
            dtype: its element type.
            indices: tensor with the row number of each slice.
            index_dtype: its element type.
        """
        number = dtype_attribute("int32")
        if not self._counted:
            self._counted = own_name(self._rank, "weight/counted")
            zero = self._add(constant(own_name(self._rank, "weight/zero"), 0.0, "float64", self._device))
            inputs, double = [self.name, zero], dtype_attribute("float64")
            counts = self._add(node(f"{self._counted}/bool", "Greater", inputs, self._device, T=double))
            kinds = {"SrcT": dtype_attribute("bool"), "DstT": number}
            self._add(node(self._counted, "Cast", [counts], self._device, **kinds))
            self._bounds = [
                self._add(constant(own_name(self._rank, f"weight/{name}"), [value], "int32", self._device))
                for name, value in (("begin", 0), ("stride", 1))
            ]
        prefix = own_name(self._rank, f"slices_{len(self.nodes)}")
        kinds = {"T": dtype_attribute(index_dtype), "out_type": number}
        size = self._add(node(f"{prefix}/all", "Shape", [indices], self._device, **kinds))
        end = self._add(node(f"{prefix}/own", "Mul", [size, self._counted], self._device, T=number))
        begin, stride = self._bounds
        parts = []
        for name, tensor, kind in (("values", values, dtype), ("indices", indices, index_dtype)):
            attributes = {"T": dtype_attribute(kind), "Index": number}
            inputs = [tensor, begin, end, stride]
            parts.append(self._add(node(f"{prefix}/{name}", "StridedSlice", inputs, self._device, **attributes)))
        return parts[0], parts[1]

    def _add(self, node_def: NodeDef) -> str:
        self.nodes.append(node_def)
        return node_def.name
