"""Evaluate: nodes on worker 0 that compute from its variables and change nothing of the step."""

from __future__ import annotations

from caramel.graph import ops
from caramel.graph.devices import Device
from caramel.graph.graph import NodeDef
from caramel.model import Evaluation, Model
from caramel.modifiers.distributed import DistributedGraph, Purpose, Role
from caramel.modifiers.replicate import copy_node


def evaluation_nodes(evaluation: Evaluation, model: Model, device: str, scope: str) -> list[NodeDef]:
    """The evaluation's nodes under ``scope``, reading worker 0's variables.

    Args:
        evaluation: what to compute.
        model: the training step that owns the variables.
        device: worker 0's device.
        scope: prefix of the new nodes, with a trailing slash.
    """
    names = {v.node: v.name for v in model.variables}
    return [
        copy_node(n, 0, Device.parse(device), names, evaluation.graph, scope)
        for n in evaluation.graph
        if n.op != ops.VARIABLE
    ]


def add_evaluation(
    distributed: DistributedGraph, evaluation: Evaluation, model: Model, device: str, scope: str
) -> DistributedGraph:
    """Add an evaluation to the distributed graph; see `evaluation_nodes`."""
    role = Role(Purpose.EVALUATION, 0)
    return distributed.extended([(n, role) for n in evaluation_nodes(evaluation, model, device, scope)])
