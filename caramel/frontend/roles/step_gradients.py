"""The loss and the gradients of a captured step: which tensors they are, and which of them the step uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from caramel.errors import CaptureError, UnsupportedError
from caramel.frontend.batch.tensor_gradients import pruned_with_differentiated
from caramel.frontend.captured import RawGradient, RawProgram
from caramel.frontend.roles import nested_gradients
from caramel.frontend.roles.refusals import refuse_functions_as_ops
from caramel.graph import ops
from caramel.graph.graph import Graph, behind_identities, node_of, parse_input
from caramel.model import Gradient


def step_of(raw: RawProgram, loss: str, gradients: Sequence[RawGradient]) -> tuple[Graph, list[RawGradient]]:
    """The nodes that a step needs, and the gradients that it uses.

    Args:
        raw: the captured program.
        loss: the tensor that is reported.
        gradients: those that may be aggregated.
    """
    roots = [*raw.targets, node_of(loss), *(node_of(t) for _, t in raw.outputs)]
    step = raw.graph.pruned(roots)
    # What enters a sum has to be scaled for it, also where nobody reads the sum.
    unread = [s.node for s in raw.forward_sums if s.node not in step and any(e in step for e in s.entries)]
    if unread:
        roots += unread
        step = raw.graph.pruned(roots)
    used = [g for g in gradients if is_used(step, g)]
    # Only the values of a sparse gradient may be used (for a norm); its rows travel with them all the same.
    return raw.graph.pruned([*roots, *(node_of(g.indices) for g in used if g.indices is not None)]), used


def is_used(step: Graph, gradient: RawGradient) -> bool:
    """Whether a step reads a gradient, where it would be read aggregated.

    Args:
        step: the nodes of the step.
        gradient: one that the program computes.
    """
    if node_of(gradient.tensor) not in step:
        return False
    readers = step.readers(gradient.tensor)
    return any(r in gradient.consumers for r in readers) if gradient.consumers else bool(readers)


def gradients_of(used: Sequence[RawGradient], raw: RawProgram, step: Graph) -> tuple[Gradient, ...]:
    """The gradients of a model: with names of their own, sizes, and what reads them.

    Args:
        used: those that the step uses.
        raw: the captured program.
        step: the nodes of the step.

    Raises:
        UnsupportedError: the shape of a parameter is not known.
    """
    by_node = {v.node: v for v in raw.variables}
    gradients: list[Gradient] = []
    names: dict[str, int] = {}
    for gradient in used:
        variable = by_node[gradient.variable]
        names[variable.name] = names.get(variable.name, 0) + 1
        suffix = "" if names[variable.name] == 1 else f"#{names[variable.name]}"
        dtype = _dtype(step, gradient.tensor)
        if None in variable.shape:
            raise UnsupportedError(
                f"parameter {variable.name!r} has unknown shape {variable.shape}; give it a static shape"
            )
        gradients.append(
            Gradient(
                variable.plan_name + suffix,
                variable.name,
                gradient.tensor,
                tuple(c for c in gradient.consumers if c in step),
                dtype,
                variable.shape,
                ops.item_bytes(dtype),
                gradient.indices,
                None if gradient.indices is None else _dtype(step, gradient.indices),
            )
        )
    return tuple(gradients)


def _dtype(step: Graph, tensor: str) -> str:
    name, index = parse_input(tensor)
    return ops.dtype_name(ops.output_types(step[name])[index])


def loss_of(raw: RawProgram, gradients: Sequence[RawGradient]) -> str:
    """The tensor that is reported as the loss: the one that was named, or the first that is differentiated.

    Args:
        raw: the captured program.
        gradients: those that are aggregated.

    Raises:
        CaptureError: there is no such tensor.
    """
    if raw.loss is not None:
        if node_of(raw.loss) not in raw.graph:
            raise CaptureError(f"loss {raw.loss!r} is not a tensor of the captured graph")
        return raw.loss
    calls = {g.call for g in gradients}
    losses = list(dict.fromkeys(tensor for tensor, call in raw.differentiated if call in calls))
    if not losses:
        raise CaptureError("the loss cannot be found in the graph: pass it as loss=")
    return losses[0]


def sorted_gradients(raw: RawProgram) -> nested_gradients.SortedGradients:
    """The gradients that are aggregated, and those that stay as they are inside a loss.

    Args:
        raw: the captured program.

    Raises:
        CaptureError: the program computes none.
    """
    if raw.trains and not raw.gradients:
        raise CaptureError(
            "no gradient of a variable was computed: there is no loss to train on, or nothing to train (is every layer "
            "frozen, trainable=False?). Build the loss and call optimizer.minimize, tf.gradients or "
            "GradientTape.gradient in the captured code"
        )
    return nested_gradients.sort_gradients(raw)


def with_losses(raw: RawProgram, step: Graph, used: Sequence[RawGradient], inside: Mapping[str, int]) -> Graph:
    """The nodes of a step and of its losses, which need not be part of it; other nodes may be of any kind.

    Args:
        raw: the captured program.
        step: the nodes of the step.
        used: gradients that the step uses.
        inside: gradients that stay inside a loss, and in which call of a gradient function each was computed.
    """
    calls = sorted({*(g.call for g in used), *inside.values()})
    losses = [node_of(tensor) for call in calls for tensor in raw.targets_of(call)]
    roots = [*step.nodes, *losses, *(node_of(tensor) for tensor in inside)]
    graph = pruned_with_differentiated(raw.graph, roots)
    refuse_functions_as_ops(graph, raw.library)
    return graph


def differentiated_by(raw: RawProgram, used: Sequence[RawGradient]) -> list[str]:
    """The tensors of which some gradients are.

    Args:
        raw: the captured program.
        used: the gradients.
    """
    return [tensor for call in sorted({g.call for g in used}) for tensor in raw.targets_of(call)]


def nothing_learned(raw: RawProgram) -> CaptureError:
    """The error for a step that uses no gradient of its loss.

    Args:
        raw: the captured program.
    """
    what, advice = (
        ("training op", "Pass the op that applies the gradients as train_op=")
        if raw.is_graph
        else ("step", "Apply them in it (optimizer.apply_gradients, or assign to the variables)")
    )
    return CaptureError(f"the {what} uses no gradient of the loss: nothing would be learned in common. {advice}")


def seeds_of(
    raw: RawProgram, step: Graph, used: Sequence[RawGradient], gradients: Sequence[Gradient]
) -> tuple[str, ...]:
    """The tensors of ones with which all differentiations of a step begin; none where one begins otherwise.

    Args:
        raw: the captured program.
        step: the nodes of the step.
        used: its gradients, as they were captured.
        gradients: the same as a model has them.
    """
    calls = {gradient.call for gradient in used}
    seeds = {tensor: call for tensor, call in raw.seeds if call in calls and node_of(tensor) in step}
    is_plain = {*seeds.values()} == calls and not any(gradient.sources for gradient in gradients)
    return tuple(seeds) if is_plain else ()


def with_seeds(step: Graph, gradients: Sequence[Gradient]) -> tuple[Gradient, ...]:
    """The gradients of a step that begin with ones of its own, and whether each has been a float16 on its way.

    Args:
        step: the nodes of the step.
        gradients: its gradients.
    """

    def is_rounded(gradient: Gradient) -> bool:
        made = step[node_of(behind_identities(step, gradient.tensor))]
        return not gradient.is_sparse and made.op == "Cast" and made.attr["SrcT"].type == ops.DT_HALF

    return tuple(replace(g, is_seeded=True, is_rounded=is_rounded(g)) for g in gradients)
