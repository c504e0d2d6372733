"""Evaluate: nodes on worker 0 that compute from the variables and change nothing of the step."""

from __future__ import annotations

from caramel.graph import ops
from caramel.graph.devices import Device
from caramel.graph.graph import Graph, NodeDef, node_of
from caramel.graph.nodes import node
from caramel.model import Evaluation, Model
from caramel.modifiers.distributed import DistributedGraph, Purpose, Role
from caramel.modifiers.replicate import copy_node
from caramel.modifiers.state import combined
from caramel.plan import Plan


def evaluation_nodes(evaluation: Evaluation, model: Model, plan: Plan, scope: str) -> list[NodeDef]:
    """The evaluation's nodes under ``scope``, reading worker 0's variables, or what all workers have together.

    Args:
        evaluation: what to compute.
        model: the training step that owns the variables.
        plan: the plan.
        scope: prefix of the new nodes, with a trailing slash.
    """
    names = {v.node: v.name for v in model.variables}
    together = combined(model, plan)
    device = Device.parse(plan.devices[0])
    # Without the variables: nodes that are added to a running graph cannot be colocated with what is there already.
    own = Graph((n for n in evaluation.graph if n.op != ops.VARIABLE), evaluation.graph.library)
    nodes = []
    for original in own:
        made = copy_node(original, 0, device, names, own, scope)
        if original.op == "ReadVariableOp" and node_of(original.input[0]) in together:
            controls = [text for text in made.input if text.startswith("^")]
            value = together[node_of(original.input[0])]
            made = node(made.name, "Identity", [value, *controls], made.device, T=original.attr["dtype"])
        nodes.append(made)
    return nodes


def add_evaluation(
    distributed: DistributedGraph, evaluation: Evaluation, model: Model, plan: Plan, scope: str
) -> DistributedGraph:
    """Add an evaluation to the distributed graph; see `evaluation_nodes`."""
    role = Role(Purpose.EVALUATION, 0)
    return distributed.extended([(n, role) for n in evaluation_nodes(evaluation, model, plan, scope)])
