"""Sum forward: tensors of the forward pass with which each worker goes on as if it had the whole batch."""

from __future__ import annotations

from caramel.graph import ops
from caramel.graph.graph import NodeDef, control_texts, copied, parse_input
from caramel.graph.nodes import dtype_attribute
from caramel.modifiers.emission import Emission, Role, replica_name
from caramel.modifiers.forward_nodes import ForwardNodes
from caramel.modifiers.gather_forward import Gathering, Shapes


def sum_forward(emission: Emission) -> Emission:
    """Sum tensors over the workers in the forward pass, and scale, or sum, the gradients that enter them.

    With S the sum of c_r T_r over the workers r, the loss L is a function of S. If a worker's loss counts
    with the weight l_r (its share of the examples in a mean, 1 in a sum), the derivative of L by T_r is c_r times the
    sum of l_q dL_q/dS over the workers q. The worker's gradients are weighted by l_r later, so what enters T_r
    is that derivative over l_r. Where L_q is the same on all workers, the sum is dL/dS. What is gathered is
    such a sum, too: that of each worker's rows among zeros.

    Args:
        emission: the emission with weighed gradients.

    Returns:
        The emission in which each sum's readers read the value of the whole batch.
    """
    model, plan = emission.model, emission.plan
    if plan.workers == 1 or not model.forward_sums:
        return emission
    kinds: dict[str, type[ForwardNodes]] = {"gather": Gathering, "shape": Shapes, "ratio": _Ratio}
    added: list[tuple[NodeDef, Role]] = []
    changed: dict[str, NodeDef] = {}
    for number, each in enumerate(model.forward_sums):
        collective = kinds.get(each.kind, _Sum)(emission, each, f"forward_{number}")
        results, entering = collective.emitted()
        for rank in collective.ranks:
            values = [(each.node, results[rank]), *((e, entering[e][rank]) for e in each.entries)]
            for name, tensor in values:
                replica = replica_name(rank, name)
                node = emission.graph[replica]
                changed[replica] = copied(node, [tensor, *control_texts(node)])  # these tie it to its branch
        added += collective.nodes
    return emission.extended(added, changed)


class _Sum(ForwardNodes):
    """The sum of the workers' parts, or their mean, weighted by the numbers of examples."""

    def emitted(self) -> tuple[list[str], dict[str, list[str]]]:
        """See `ForwardNodes.emitted`."""
        kind = self.forward_sum.kind
        results = self.over_workers("sum", self.weighted(self.parts, kind))
        # A mean has the weights of the workers' losses, so that these cancel out.
        factors = [None if kind == "mean" else self.factor(rank) for rank in self.ranks]
        return results, self.scaled(factors)

    def scaled(self, factors: list[str | None]) -> dict[str, list[str]]:
        """What enters at each entry on each worker: the derivative times the worker's factor; None for 1."""
        return {
            entry: [
                tensor if factor is None else self.product(rank, f"entering_{number}", tensor, factor)
                for rank, (tensor, factor) in enumerate(zip(self.entering(number, entry), factors))
            ]
            for number, entry in enumerate(self.forward_sum.entries)
        }


class _Ratio(_Sum):
    """The mean over all workers' entries, of which each worker has another number."""

    def emitted(self) -> tuple[list[str], dict[str, list[str]]]:
        """See `ForwardNodes.emitted`."""
        kind = dtype_attribute(self.dtype)
        counts = self._counts()
        parts = [
            self._where_positive(rank, counts[rank], self.product(rank, "counted", self.parts[rank], counts[rank]))
            for rank in self.ranks
        ]
        totals, numbers = self.over_workers("sum", parts), self.over_workers("count", counts)
        means: list[str] = []
        factors: list[str | None] = []
        for rank in self.ranks:
            means.append(self.add(rank, "mean", "RealDiv", [totals[rank], numbers[rank]], T=kind))
            share = self.add(rank, "share", "DivNoNan", [counts[rank], numbers[rank]], T=kind)
            factor = self.factor(rank)
            factors.append(share if factor is None else self.product(rank, "factor", share, factor))
        return means, self.scaled(factors)

    def _counts(self) -> list[str]:
        """The number of entries of each worker, none of one without examples."""
        counted = self.forward_sum.counted
        assert counted is not None
        name, index = parse_input(counted)
        dtype = ops.dtype_name(ops.output_types(self._graph[name])[index])
        cast = {"SrcT": dtype_attribute("int32"), "DstT": dtype_attribute(self.dtype)}
        counts = [
            self.add(rank, "entries", "Cast", [self.rows(rank, tensor, dtype)], **cast)
            for rank, tensor in enumerate(self.on_workers(counted))
        ]
        return self.weighted(counts, "sum")

    def _where_positive(self, rank: int, number: str, tensor: str) -> str:
        """A tensor where a number is positive, else zeros."""
        kind = dtype_attribute(self.dtype)
        zero = self.add(rank, "no_entries", "ZerosLike", [number], T=kind)
        counts = self.add(rank, "has_entries", "Greater", [number, zero], T=kind)
        nothing = self.add(rank, "nothing", "ZerosLike", [tensor], T=kind)
        return self.add(rank, "or_nothing", "SelectV2", [counts, tensor, nothing], T=kind)
