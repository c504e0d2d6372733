"""Evaluate: nodes on worker 0 that compute from the variables and change nothing of the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from caramel.errors import UnsupportedError
from caramel.graph import ops
from caramel.graph.canonical_functions import canonical
from caramel.graph.devices import Device
from caramel.graph.functions import Library
from caramel.graph.graph import Graph, NodeDef, control_texts, format_input, node_of, parse_input
from caramel.graph.nodes import assign, constant, dtype_attribute, node, variable
from caramel.model import Evaluation, Model
from caramel.modifiers.emission import Emission, Purpose, Role
from caramel.modifiers.replicate import copy_node
from caramel.modifiers.save_restore import combined_nodes_by_handle
from caramel.plan import Plan

EVALUATION_SCOPE = "caramel/evaluation/"
"""Prefix of the nodes of the evaluation that was declared at capture."""


def evaluation_graph(evaluation: Evaluation, model: Model, plan: Plan, scope: str) -> Graph:
    """The evaluation's nodes under ``scope``, which read worker 0's variables, or the combined values of all workers.

    Args:
        evaluation: the computation and its outputs.
        model: the training step that owns the variables.
        plan: the plan of the emitted graph.
        scope: prefix of the new nodes, with a trailing slash.

    Returns:
        The nodes, and the functions that they call under names that no other function has.

    Raises:
        UnsupportedError: it writes a variable that all workers must have alike.
    """
    names = {v.node: v.name for v in model.variables}
    combined_nodes = combined_nodes_by_handle(model, plan)
    _refuse_writes(evaluation.graph, model, plan, combined_nodes)
    device = Device.parse(plan.devices[0])
    # Without the variables: nodes that are added to a running graph cannot be colocated with what is there already.
    own = Graph((n for n in evaluation.graph if n.op != ops.VARIABLE), evaluation.graph.library)
    holders = _Holders(model, combined_nodes, scope, str(device))
    nodes = []
    for original in own:
        copy = copy_node(original, 0, device, names, own, scope)
        combined_handles = [name for text in original.input if (name := node_of(text)) in combined_nodes]
        if combined_handles and original.op == "ReadVariableOp":
            controls = control_texts(copy)
            copy = node(
                copy.name,
                "Identity",
                [combined_nodes[combined_handles[0]], *controls],
                copy.device,
                T=original.attr["dtype"],
            )
        elif combined_handles and original.op == "ResourceGather":
            axis = constant(f"{copy.name}/axis", original.attr["batch_dims"].i, "int32", copy.device)
            nodes.append(axis)
            copy = _gathered(copy, combined_nodes[combined_handles[0]], axis.name)
        elif combined_handles:
            holders.redirect(original, copy)
        nodes.append(copy)
    nodes, library = canonical([*holders.nodes, *nodes], evaluation.graph.library)
    return Graph(nodes, library, evaluation.graph.versions)


def _gathered(copy: NodeDef, whole: str, axis: str) -> NodeDef:
    """A lookup in a variable, as one in a tensor, so that nothing of it is kept."""
    return node(
        copy.name,
        "GatherV2",
        [whole, copy.input[1], axis, *control_texts(copy)],
        copy.device,
        Tparams=copy.attr["dtype"],
        Tindices=copy.attr["Tindices"],
        Taxis=dtype_attribute("int32"),
        batch_dims=copy.attr["batch_dims"].i,
    )


def _refuse_writes(graph: Graph, model: Model, plan: Plan, combined_nodes: Mapping[str, str]) -> None:
    """An evaluation runs on worker 0 alone, so it must not write what other workers have, too."""
    library = Library(graph)
    variables = {v.node: v for v in model.variables if v.node in model.graph}
    for node_def in graph if plan.workers > 1 or plan.servers is not None else ():
        for producer in library.written(node_def):
            target = variables.get(producer)
            if target is None or (target.kind.is_local and target.node not in combined_nodes):
                continue
            raise UnsupportedError(
                f"op {node_def.name!r} ({node_def.op}) of the evaluation writes {target.kind.value} {target.name!r}, "
                "which the others would not see: an evaluation runs on worker 0. Leave the update to the "
                "step, or give all workers a value with Session.assign"
            )


@dataclass
class _Holders:
    """Variables of the evaluation's own that hold the combined values of all workers.

    Ops that take a handle (gathers, loops, calls) read these; a plain read needs none.
    """

    model: Model
    combined_nodes: Mapping[str, str]
    scope: str
    device: str

    def __post_init__(self) -> None:
        self.nodes: list[NodeDef] = []
        self._holders: dict[str, tuple[str, str]] = {}

    def redirect(self, original: NodeDef, copy: NodeDef) -> None:
        """Let a copied node take the holders' handles, once the holders have their values.

        Args:
            original: node of the evaluation's graph.
            copy: copy of the node; it is changed.
        """
        waits: dict[str, None] = {}
        for position, text in enumerate(original.input):
            name, index = parse_input(text)
            if name in self.combined_nodes:
                handle, filled = self._holder(name)
                copy.input[position] = format_input(handle, index)
                waits["^" + filled] = None
        copy.input.extend(waits)

    def _holder(self, name: str) -> tuple[str, str]:
        """The handle of a variable's holder, and the op that fills it."""
        if name not in self._holders:
            combined_variable = next(v for v in self.model.variables if v.node == name)
            handle = f"{self.scope.rstrip('/')}_combined/{len(self._holders)}"
            filled = f"{handle}/fill"
            self.nodes.append(variable(handle, combined_variable.dtype, combined_variable.shape, self.device))
            self.nodes.append(assign(filled, handle, self.combined_nodes[name], combined_variable.dtype, self.device))
            self._holders[name] = handle, filled
        return self._holders[name]


def add_evaluation(emission: Emission) -> Emission:
    """Add the declared evaluation, if there is one, and its functions; see `evaluation_graph`."""
    if emission.evaluation is None:
        return emission
    role = Role(Purpose.EVALUATION, 0)
    added = evaluation_graph(emission.evaluation, emission.model, emission.plan, EVALUATION_SCOPE)
    return emission.extended([(n, role) for n in added], libraries=[added.library])
