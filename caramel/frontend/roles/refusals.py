"""Refusal, by name, of ops of which a worker cannot have a copy; the messages say what to do instead."""

from __future__ import annotations

from collections.abc import Sequence

from caramel.errors import UnsupportedError
from caramel.frontend.attributes import GRADIENT_ATTRIBUTE
from caramel.frontend.captured import RawProgram
from caramel.frontend.rewrites.references import refuse_reference
from caramel.frontend.roles.divergence import Locality, rounds_differ
from caramel.graph import ops
from caramel.graph.functions import Library
from caramel.graph.graph import Graph, NodeDef, behind_identities, node_of
from caramel.model import Gradient, Input


def refuse_irreplicable(graph: Graph, library: Library, raw: RawProgram) -> None:
    """Refuse, by name, every op that a replica cannot have.

    Args:
        graph: nodes of a step or an evaluation.
        library: functions that the nodes call.
        raw: the captured program.

    Raises:
        UnsupportedError: for the first such op; the message says what to do instead.
    """
    refuse_functions_as_ops(graph, library)
    handles = {v.node for v in raw.variables}
    for node in graph:
        _check_node(node, f"op {node.name!r} ({node.op})", library)
        for producer in library.written(node):
            if graph[producer].op != ops.VARIABLE:
                raise UnsupportedError(
                    f"op {node.name!r} ({node.op}) writes a variable whose handle comes from {producer!r} "
                    f"({graph[producer].op}), so it cannot be told which variable it is. Write in each branch"
                )
        if node.op == ops.VARIABLE and node.name not in handles:
            raise UnsupportedError(
                f"variable {node.name!r} is in no collection of the graph, so its initial value cannot be found. "
                "Create it without collections=[]"
            )
        for function, inner in library.inner_nodes(node):
            where = f"op {inner.name!r} ({inner.op}) in function {function!r}, called by {node.name!r} ({node.op}),"
            _check_inner(inner, where, library)


def refuse_functions_as_ops(graph: Graph, library: Library) -> None:
    """Refuse nodes whose op is a function of the graph's library: TensorFlow has no definition of such an op.

    Args:
        graph: nodes of a step or an evaluation.
        library: functions of the program's graph.

    Raises:
        UnsupportedError: for the first such node; the message says what to do instead.
    """
    for node in graph:
        if node.op in library:
            raise UnsupportedError(
                f"op {node.name!r} calls function {node.op!r} by name, which cannot be replicated. "
                "Make it a tf.function"
            )


def refuse_initializer_effects(graph: Graph, library: Library, initializers: Sequence[str]) -> None:
    """Refuse, by name, initialisers of a graph's file that touch files or Python: they run when it is captured.

    Args:
        graph: nodes of the graph as it runs.
        library: functions that the nodes call.
        initializers: names of the nodes that run.

    Raises:
        UnsupportedError: for the first such op; the message says what to do instead.
    """
    needed = graph.pruned(initializers)
    refuse_functions_as_ops(needed, library)
    for node in needed:
        inner = ((n, f"op {n.name!r} ({n.op}) in function {f!r}") for f, n in library.inner_nodes(node))
        for each, what in ((node, f"op {node.name!r} ({node.op})"), *inner):
            if not ops.is_harmless_initializer(each):
                raise UnsupportedError(
                    f"an initialiser of the graph's file runs {what}, which may touch files or Python. Initialisers "
                    "run in this process when the program is captured, so that is refused: give the initial values, "
                    "values= a checkpoint or a dict"
                )


def _check_node(node: NodeDef, what: str, library: Library) -> None:
    """Refuse a node that neither a graph nor a function may have."""
    if node.op in ops.LEGACY_LOOPS:
        raise UnsupportedError(
            f"{what} is a loop of TensorFlow 1, which cannot be replicated yet. "
            "Call tf.compat.v1.enable_control_flow_v2() before building the graph"
        )
    if ops.is_reference_op(node):
        refuse_reference(node, what)
    if not (library.called(node) and ops.is_call(node)) and not ops.is_replicable(node):
        raise UnsupportedError(
            f"{what} has state or effects that cannot be copied to every worker yet. "
            "Move it out of the training step (feed its result, or run it between steps)"
        )


def _check_inner(inner: NodeDef, where: str, library: Library) -> None:
    """Refuse a node that the function of a loop or branch may not have."""
    _check_node(inner, where, library)
    if inner.op == ops.VARIABLE:
        raise UnsupportedError(f"{where} makes a variable of its own. Make it outside the loop or branch")


def refuse_in_loops(raw: RawProgram) -> None:
    """Refuse gradients inside a loop, unless the loop just adds them up, and inside a branch.

    Raises:
        UnsupportedError: for the first such gradient; the message says what to do instead.
    """
    for gradient in raw.gradients:
        if not gradient.scales_inside.isdisjoint(raw.row_constants or ()):
            raise UnsupportedError(
                f"the loop of {gradient.tensor!r} scales the gradients that it adds up by a number that follows from "
                "that of the examples, which is another one on each worker: scale the sum after the loop"
            )
    for node in raw.graph:
        for function, inner in raw.library.inner_nodes(node):
            if GRADIENT_ATTRIBUTE in inner.attr and inner.attr[GRADIENT_ATTRIBUTE].i not in raw.loop_gradient_numbers:
                if node.op in ops.BRANCHES:
                    raise UnsupportedError(
                        f"op {node.name!r} ({node.op}) computes a gradient of a variable inside function {function!r}, "
                        "one of its branches, where it cannot be aggregated. Differentiate outside the branches, and "
                        "choose there between losses or between results"
                    )
                raise UnsupportedError(
                    f"op {node.name!r} ({node.op}) computes a gradient of a variable inside function {function!r} and "
                    "does more with it than add it to a sum that starts from zeros, so it cannot be aggregated. Use "
                    "the sum after the loop, give it a constant number of rounds, with which it can be unrolled, or "
                    "write it in Python"
                )


def refuse_uneven_rounds(
    step: Graph,
    library: Library,
    gradients: Sequence[Gradient],
    inputs: Sequence[Input],
    local: Sequence[str],
    kind: str,
) -> None:
    """Refuse a loop that adds up gradients in a number of rounds that differs between workers.

    A loop that adds up gradients of a sum may have a round for each of the worker's own examples.

    Args:
        step: nodes of the step.
        library: functions that the nodes call.
        gradients: gradients to aggregate.
        inputs: inputs of the step.
        local: handle nodes of the variables that have a value of their own on each worker.
        kind: reduction of the gradients, ``"mean"`` or ``"sum"``.

    Raises:
        UnsupportedError: for the first such loop; the message says what to do instead.
    """
    by_shape = kind != "sum"
    start = {*(i.node for i in inputs if i.split), *local}
    differ: set[str] | None = None
    for gradient in gradients:
        for tensor in (gradient.tensor, *(source for source, _ in gradient.sources)):
            loop = step[node_of(behind_identities(step, tensor))]
            is_marked = GRADIENT_ATTRIBUTE in step[node_of(tensor)].attr  # a gradient, of which the loop is a part
            if is_marked or loop.op not in ops.LOOPS:
                continue
            if differ is None:
                equal = {node_of(g.tensor) for g in gradients if not g.consumers}
                differ = Locality(step, library).differing(start, equal, by_shape=by_shape)
            positions = [p for p, (name, _) in enumerate(ops.data_inputs(loop)) if name in differ]
            if rounds_differ(loop, library, positions, by_shape=by_shape):
                raise UnsupportedError(
                    f"op {loop.name!r} ({loop.op}) adds up gradients of {gradient.parameter!r} in a number of rounds "
                    "that differs between workers, because it depends on the worker's own examples. One device goes "
                    "round as often as the whole batch needs; let the number depend on constants, variables or inputs "
                    "listed in replicated= only"
                )
