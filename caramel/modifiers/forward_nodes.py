"""What all collectives of the forward pass have in common: scopes, weights, and sums over the workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from caramel.collectives.lower import Emitter
from caramel.graph import ops
from caramel.graph.graph import NodeDef
from caramel.graph.nodes import constant, dtype_attribute, node
from caramel.model import ForwardSum
from caramel.modifiers.emission import Emission, Purpose, Role, own_name
from caramel.modifiers.weigh import Shares, replica_tensor


class ForwardNodes(ABC):
    """The nodes of one collective of the forward pass.

    Attributes:
        forward_sum: what is to have the value of the whole batch.
        dtype: its element type.
        ranks: ranks of the workers.
        parts: each worker's own part of it.

    Args:
        emission: the emission with the graph.
        forward_sum: see the attributes.
        scope: scope of the new nodes.
    """

    def __init__(self, emission: Emission, forward_sum: ForwardSum, scope: str) -> None:
        self.forward_sum = forward_sum
        self._plan = emission.plan
        self._graph = emission.model.graph
        self._scope = scope
        self.ranks = range(self._plan.workers)
        self.dtype = ops.dtype_name(self._graph[forward_sum.node].attr["T"].type)
        self.parts = self.on_workers(self._graph[forward_sum.node].input[0])
        self._emitter = Emitter(f"caramel/{scope}", self._plan.devices, self.dtype)
        self._local: list[tuple[NodeDef, int]] = []
        self._weights = [own_name(rank, "weight") if self._plan.weighted else None for rank in self.ranks]
        self._shares = [
            Shares(rank, device, self._plan.workers, self._weights[rank], f"{scope}/part")
            for rank, device in enumerate(self._plan.devices)
        ]

    @abstractmethod
    def emitted(self) -> tuple[list[str], dict[str, list[str]]]:
        """Make the nodes.

        Returns:
            The value of the whole batch on each worker; and by the name of each entry what enters there on each worker.
        """

    @property
    def nodes(self) -> list[tuple[NodeDef, Role]]:
        """The nodes that were made."""
        shares = [(n, Role(Purpose.REPLICA, rank)) for rank, each in enumerate(self._shares) for n in each.nodes]
        local = [(n, Role(Purpose.REPLICA, rank)) for n, rank in self._local]
        return [*shares, *local, *((n, Role(Purpose.COLLECTIVE, rank)) for n, rank in self._emitter.out.nodes)]

    def on_workers(self, tensor: str) -> list[str]:
        """The workers' copies of a tensor of the Model."""
        return [replica_tensor(rank, tensor) for rank in self.ranks]

    # -- messages ----------------------------------------------------------------------------

    def over_workers(self, name: str, parts: Sequence[str]) -> list[str]:
        """The sum of the workers' tensors on each worker, added in the order of the ranks."""
        total = parts[0]
        kind = dtype_attribute(self.dtype)
        for rank in range(1, len(parts)):
            attributes = {"T": kind, "_grappler_do_not_remove": True}
            total = self._emitter.add(0, f"{name}_{rank}", "AddV2", [total, parts[rank]], **attributes)
        return self.shared(name, total)

    def shared(self, name: str, tensor: str, dtype: str | None = None) -> list[str]:
        """A tensor of worker 0 on each worker."""
        return [self._emitter.identity(rank, f"{name}/result_{rank}", tensor, dtype) for rank in self.ranks]

    def joined(self, name: str, parts: Sequence[str], axis: int) -> str:
        """The workers' tensors one after the other, on worker 0."""
        place = self._emitter.integers(0, axis)
        attributes = {"T": dtype_attribute(self.dtype), "Tidx": dtype_attribute("int32"), "N": len(parts)}
        return self._emitter.add(0, name, "ConcatV2", [*parts, place], **attributes)

    def weighted(self, tensors: Sequence[str], reduction: str, dtype: str | None = None) -> list[str]:
        """The workers' parts of a sum or mean: nothing, or no share, of a worker without examples."""
        return [self._shares[rank].part(tensors[rank], dtype or self.dtype, reduction) for rank in self.ranks]

    def entering(self, number: int, entry: str) -> list[str]:
        """The derivative of the loss of the whole batch by what all workers have, on each worker.

        Args:
            number: number of the entry.
            entry: name of the node through which the gradient enters.
        """
        upstream = self.on_workers(self._graph[entry].input[0])
        if not self.forward_sum.gradients_differ and self._plan.reduction != "sum":
            return upstream
        return self.over_workers(f"gradient_{number}", self.weighted(upstream, self._plan.reduction))

    # -- arithmetic on a worker --------------------------------------------------------------

    def factor(self, rank: int) -> str | None:
        """One over the weight of a worker's loss in that of the whole batch; None for 1."""
        if self._plan.reduction == "sum":
            return None
        workers = self.constant(rank, "workers", float(self._plan.workers), "float64")
        double = dtype_attribute("float64")
        weight = self._weights[rank]
        if weight is not None:
            workers = self.add(rank, "per_share", "DivNoNan", [workers, weight], T=double)
        return self.add(rank, "per_share/cast", "Cast", [workers], SrcT=double, DstT=dtype_attribute(self.dtype))

    def product(self, rank: int, name: str, first: str, second: str) -> str:
        """The product of two tensors."""
        return self.add(rank, name, "Mul", [first, second], T=dtype_attribute(self.dtype))

    def rows(self, rank: int, tensor: str, dtype: str, axis: int = 0) -> str:
        """The size of a tensor along an axis, as an int32."""
        int32 = dtype_attribute("int32")
        shape = self.add(rank, "shape", "Shape", [tensor], T=dtype_attribute(dtype), out_type=int32)
        return self.entry(rank, "rows", shape, axis, "int32")

    def entry(self, rank: int, name: str, vector: str, place: int, dtype: str) -> str:
        """One entry of a vector."""
        bounds = [
            self.constant(rank, f"{name}/{bound}", [number], "int32")
            for bound, number in (("begin", place), ("end", place + 1), ("stride", 1))
        ]
        attributes = {"T": dtype_attribute(dtype), "Index": dtype_attribute("int32"), "shrink_axis_mask": 1}
        return self.add(rank, name, "StridedSlice", [vector, *bounds], **attributes)

    def constant(self, rank: int, name: str, value: object, dtype: str) -> str:
        """A constant on a worker."""
        made = constant(own_name(rank, f"{self._scope}/{name}"), value, dtype, self._plan.devices[rank])
        self._local.append((made, rank))
        return made.name

    def add(self, rank: int, name: str, op: str, inputs: Sequence[str], **attributes: object) -> str:
        """Add a node on a worker; returns its name."""
        made = node(own_name(rank, f"{self._scope}/{name}"), op, inputs, self._plan.devices[rank], **attributes)
        self._local.append((made, rank))
        return made.name
