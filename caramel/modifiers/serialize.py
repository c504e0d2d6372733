"""Serialize: control edges inside each worker that leave one order in which to compute the gradients."""

from __future__ import annotations

from caramel.errors import InvariantError
from caramel.graph.fusion import verify_fusible
from caramel.graph.graph import copied
from caramel.modifiers.emission import Emission, replica_name


def serialize(emission: Emission) -> Emission:
    """Add the plan's control edges to each worker.

    Args:
        emission: the emission with the replicas; its plan has the edges, by names of the Model's graph.

    Returns:
        The emission with the same ops, in an order that is also possible without the edges.

    Raises:
        InvariantError: an edge of the plan is between nodes that do not exist, or orders ops that TensorFlow fuses.

    Source:
        Caramel, section 4.1, stage 2.
    """
    plan = emission.plan
    if not plan.edges:
        return emission
    after: dict[str, list[str]] = {}
    for before, target in plan.edges:
        after.setdefault(target, []).append(before)
    changed = {}
    for rank in range(plan.workers):
        for target, sources in after.items():
            name = replica_name(rank, target)
            texts = ["^" + replica_name(rank, before) for before in sources]
            missing = [text for text in [name, *(t[1:] for t in texts)] if text not in emission.graph]
            if missing:
                raise InvariantError(f"serialize: the plan orders {missing[0]!r}, which does not exist")
            target_node = emission.graph[name]
            changed[name] = copied(target_node, [*target_node.input, *(t for t in texts if t not in target_node.input)])
    verify_fusible(emission.model.graph, plan.edges, "serialize")
    return emission.extended([], changed)
