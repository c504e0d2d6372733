"""Replicate: one copy of the step on each worker, with variables, devices and random seeds of its own."""

from __future__ import annotations

from dataclasses import replace

from caramel.graph import ops
from caramel.graph.devices import Device, merge
from caramel.graph.graph import Graph, NodeDef, copied, format_input
from caramel.graph.nodes import colocate, group, variable
from caramel.model import Model
from caramel.modifiers.emission import Emission, Purpose, Role, own_name, replica_name
from caramel.modifiers.seeds import DrawingFunctions, offset_seed_of_rank


def replicate(emission: Emission) -> Emission:
    """Copy the step once for each device.

    Worker r's copy of node ``x`` is ``worker_r/x``; the node ``caramel/worker_r/step`` is done when
    that worker's step is. Seeds of stateful random ops are offset by rank, rank 0's excepted.

    Args:
        emission: a fresh emission, on which no modifier has run.

    Returns:
        The emission with the replicas, not yet connected.

    Raises:
        UnsupportedError: an op is pinned to another job or task.
    """
    model, devices = emission.model, emission.plan.devices
    nodes: list[NodeDef] = []
    roles: dict[str, Role] = {}
    names = {v.node: v.name for v in model.variables}
    drawing = DrawingFunctions(model.graph)
    for rank, text in enumerate(devices):
        device = Device.parse(text)
        role = Role(Purpose.REPLICA, rank)
        copies = [drawing.renamed(copy_node(n, rank, device, names, model.graph), rank) for n in model.graph]
        copies += _missing_handles(model, rank, device)
        copies.append(group(own_name(rank, "step"), [replica_name(rank, t) for t in model.targets], str(device)))
        nodes += copies
        roles.update((n.name, role) for n in copies)
    graph = Graph(nodes, drawing.library(len(devices)), model.graph.versions)
    return replace(emission, graph=graph, roles=roles)


def copy_node(
    original: NodeDef, rank: int, device: Device, variables: dict[str, str], graph: Graph, scope: str | None = None
) -> NodeDef:
    """A worker's copy of a node.

    Args:
        original: node of the single-device graph.
        rank: rank of the worker.
        device: device of the worker.
        variables: names of the variables by handle node.
        graph: graph that the node belongs to.
        scope: prefix of the copy and its inputs; the worker's own by default. Variables keep the
            worker's own names in any case.
    """

    def renamed(name: str) -> str:
        return replica_name(rank, name) if scope is None or name in variables else scope + name

    inputs = [format_input(renamed(name), index) for name, index in graph.parsed_inputs(original.name)]
    copy = copied(original, inputs)
    copy.name = renamed(original.name)
    copy.device = merge(original.device, device, original.name)
    colocate(copy, lambda name: renamed(name) if name in graph else None)
    if copy.op == ops.VARIABLE:
        copy.attr["shared_name"].s = shared_name(rank, variables[original.name]).encode()
    if copy.op == ops.TABLE:
        copy.attr["shared_name"].s = shared_name(rank, original.name).encode()
    if ops.is_seeded_random(copy):
        offset_seed_of_rank(copy, rank)
    return copy


def shared_name(rank: int, variable: str) -> str:
    """The resource name of a worker's variable: unique even where workers share a device."""
    return f"worker_{rank}/{variable}"


def _missing_handles(model: Model, rank: int, device: Device) -> list[NodeDef]:
    """Worker 0 also holds the variables that only evaluations or checkpoints use."""
    if rank != 0:
        return []
    return [
        variable(replica_name(rank, v.node), v.dtype, v.shape, str(device), shared_name(rank, v.name))
        for v in model.variables
        if v.node not in model.graph
    ]
