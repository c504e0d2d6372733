"""From a captured program to a Model: prune to one step, check what cannot be replicated, give roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from caramel.errors import CaptureError, UnsupportedError, listed
from caramel.frontend import dataflow, inner, reduction
from caramel.frontend.accumulation import accumulated
from caramel.frontend.locality import LOOPS, differing, rounds_differ
from caramel.frontend.raw import RawGradient, RawProgram
from caramel.frontend.recorder import GRADIENT_ATTRIBUTE, OWN_ATTRIBUTES
from caramel.frontend.references import refuse_reference
from caramel.frontend.reports import Reports, untold
from caramel.graph import ops
from caramel.graph.functions import Library
from caramel.graph.graph import Graph, NodeDef, behind_identities, node_of, parse_input, tensor_name
from caramel.model import Gradient, Input, Model, Reduction, Variable

_STEP_COUNTERS = ("global_step", "iteration", "iterations")


def assemble(raw: RawProgram) -> Model:
    """Work out the roles of a captured program.

    Raises:
        CaptureError: a role is missing or ambiguous.
        UnsupportedError: the step uses something that cannot be replicated.
    """
    notes = list(raw.notes)
    _refuse_in_loops(raw)
    sorted_out = _sorted_out(raw)
    outer = sorted_out.outer
    loss = _loss(raw, outer)
    roots = [*raw.targets, node_of(loss), *(node_of(t) for _, t in raw.outputs)]
    step = raw.graph.pruned(roots)
    used = [g for g in outer if _is_used(step, g)]
    # Only the values of a sparse gradient may be used (for a norm); its rows travel with them all the same.
    step = raw.graph.pruned([*roots, *(node_of(g.indices) for g in used if g.indices is not None)])
    check_replicable(step, raw)
    if not used:
        what, advice = (
            ("training op", "Pass the op that applies the gradients as train_op=")
            if raw.is_graph
            else ("step", "Apply them in it (optimizer.apply_gradients, or assign to the variables)")
        )
        raise CaptureError(f"the {what} uses no gradient of the loss: nothing would be learned in common. {advice}")
    inputs = tuple(i for i in raw.inputs if i.node in step)
    _check_inputs(inputs)
    sums = accumulated(step, _gradients(used, raw, step), raw.variables)
    gradients = sums.gradients
    roles = dataflow.classify(step, raw.variables, gradients, inputs, sums.accumulators)
    kind, reason, known = _reduction(raw, used, sorted_out.inside, inputs)
    _refuse_uneven_rounds(step, gradients, inputs, [v for v, k in roles.kinds.items() if k.is_local], kind)
    variables = tuple(
        Variable(v.name, v.node, v.dtype, v.shape, roles.kinds[v.node], ops.item_bytes(v.dtype), v.saved)
        for v in raw.variables
    )
    by_node = {v.node: v.name for v in raw.variables}
    shape = _static_shape(step[node_of(loss)], loss)
    reports = Reports(raw.graph, inputs, roles.origins, known)
    reported = kind if _is_differentiated(raw, used, loss) else reports.reduction_of(loss)
    return Model(
        graph=_without_shapes(step),
        inputs=inputs,
        loss=tensor_name(loss),
        loss_is_scalar=shape == (),
        outputs=raw.outputs,
        targets=raw.targets,
        variables=variables,
        gradients=gradients,
        updates=tuple((by_node[node], writers) for node, writers in roles.writes.items()),
        reduction=Reduction(kind, reason),
        values=raw.values,
        notes=(
            *notes,
            *_notes(raw, gradients),
            *_batch_wide(raw, used, sorted_out.inside, inputs),
            *roles.notes,
            *untold(loss, reported, kind),
        ),
        step_counter=_step_counter(variables, dict(roles.writes)),
        unused_inputs=tuple(i.name for i in raw.inputs if i.node not in step),
        input_order=tuple(i.name for i in raw.inputs),
        reported=reported,
        combinations=tuple(reports.combination_of(tensor) for _, tensor in raw.outputs),
    )


def check_replicable(graph: Graph, raw: RawProgram) -> None:
    """Refuse, by name, every op that a replica cannot have.

    Raises:
        UnsupportedError: for the first such op, with what to do instead.
    """
    handles = {v.node for v in raw.variables}
    library = Library(graph)
    for node in graph:
        if node.op in library:
            raise UnsupportedError(
                f"op {node.name!r} calls function {node.op!r} by name, which cannot be replicated. "
                "Make it a tf.function"
            )
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
        for function, each in library.inner_nodes(node):
            where = f"op {each.name!r} ({each.op}) in function {function!r}, called by {node.name!r} ({node.op}),"
            _check_inner(each, where, library)


def _check_node(node: NodeDef, what: str, library: Library) -> None:
    """What holds in the graph and in functions alike."""
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
    """What holds inside the functions of loops and branches."""
    _check_node(inner, where, library)
    if inner.op == ops.VARIABLE:
        raise UnsupportedError(f"{where} makes a variable of its own. Make it outside the loop or branch")


def _refuse_in_loops(raw: RawProgram) -> None:
    """Gradients inside a loop are only of use where the loop just adds them up."""
    library = Library(raw.graph)
    for node in raw.graph:
        for function, each in library.inner_nodes(node):
            if GRADIENT_ATTRIBUTE in each.attr and each.attr[GRADIENT_ATTRIBUTE].i not in raw.loop_marks:
                if node.op in ops.BRANCHES:
                    raise UnsupportedError(
                        f"op {node.name!r} ({node.op}) computes a gradient of a variable inside function {function!r}, "
                        "one of its branches, where it cannot be aggregated. Differentiate outside the branches, and "
                        "choose there between losses or between results"
                    )
                raise UnsupportedError(
                    f"op {node.name!r} ({node.op}) computes a gradient of a variable inside function {function!r} and "
                    "does more with it than add it to a sum that starts from zeros, so it cannot be aggregated. Use "
                    "the sum after the loop, or write the loop in Python so that it is unrolled"
                )


def _refuse_uneven_rounds(
    step: Graph, gradients: Sequence[Gradient], inputs: Sequence[Input], local: Sequence[str], kind: str
) -> None:
    """A loop that adds up gradients must go round as often on every worker.

    One that adds up gradients of a sum may have a round for each of the worker's own examples.
    """
    library = Library(step)
    by_shape = kind != "sum"
    start = {*(i.node for i in inputs if i.split), *local}
    differ: set[str] | None = None
    for gradient in gradients:
        for tensor in (gradient.tensor, *(source for source, _ in gradient.sources)):
            loop = step[node_of(tensor)]
            if loop.op not in LOOPS:
                continue
            if differ is None:
                equal = {node_of(g.tensor) for g in gradients if not g.consumers}
                differ = differing(step, library, start, equal, by_shape=by_shape)
            positions = [p for p, (name, _) in enumerate(ops.data_inputs(loop)) if name in differ]
            if rounds_differ(loop, library, positions, by_shape=by_shape):
                raise UnsupportedError(
                    f"op {loop.name!r} ({loop.op}) adds up gradients of {gradient.parameter!r} in a number of rounds "
                    "that differs between workers, because it depends on the worker's own examples. One device goes "
                    "round as often as the whole batch needs; let the number depend on constants, variables or inputs "
                    "listed in replicated= only"
                )


def _sorted_out(raw: RawProgram) -> inner.Sorted:
    """Without those that only feed another differentiation (a gradient inside a loss)."""
    if not raw.gradients:
        raise CaptureError(
            "no gradient of a variable was computed: there is no loss to train on. Build the loss and call "
            "optimizer.minimize, tf.gradients or GradientTape.gradient in the captured code"
        )
    return inner.sort_out(raw)


def _loss(raw: RawProgram, gradients: Sequence[RawGradient]) -> str:
    if raw.loss is not None:
        if node_of(raw.loss) not in raw.graph:
            raise CaptureError(f"loss {raw.loss!r} is not a tensor of the captured graph")
        return raw.loss
    calls = {g.call for g in gradients}
    losses = list(dict.fromkeys(tensor for tensor, call in raw.differentiated if call in calls))
    if not losses:
        raise CaptureError("the loss cannot be found in the graph: pass it as loss=")
    if len(losses) > 1:
        raise CaptureError(f"several tensors are differentiated ({listed(losses)}): say with loss= which one to report")
    return losses[0]


def _is_used(step: Graph, gradient: RawGradient) -> bool:
    name, index = parse_input(gradient.tensor)
    if name not in step:
        return False
    readers = {r for r, p in step.consumers[name] if parse_input(step[r].input[p])[1] == index}
    return bool(readers & set(gradient.consumers) if gradient.consumers else readers)


def _gradients(used: Sequence[RawGradient], raw: RawProgram, step: Graph) -> tuple[Gradient, ...]:
    by_node = {v.node: v for v in raw.variables}
    found: list[Gradient] = []
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
        found.append(
            Gradient(
                variable.name + suffix,
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
    return tuple(found)


def _dtype(step: Graph, tensor: str) -> str:
    name, index = parse_input(tensor)
    return ops.dtype_name(ops.output_types(step[name])[index])


def _check_inputs(inputs: Sequence[Input]) -> None:
    for item in inputs:
        if item.dtype in ("resource", "variant"):
            raise UnsupportedError(f"input {item.name!r} has dtype {item.dtype}, which cannot be fed to workers")
        if item.split and item.shape is None:
            raise CaptureError(
                f"input {item.name!r} has unknown rank, so it cannot be split over the workers. Give its placeholder "
                f"a shape such as [None, ...], or list it in replicated= if every worker gets the whole array"
            )


def _reduction(
    raw: RawProgram, used: Sequence[RawGradient], inside: Mapping[str, int], inputs: Sequence[Input]
) -> tuple[str, str, dict[str, str]]:
    """The kind of reduction, what it was concluded from, and what is known of the gradients in it."""
    given = raw.reduction
    if given not in (None, "mean", "sum"):
        raise CaptureError(f"loss_reduction must be 'mean' or 'sum', got {given!r}")
    inner_calls = set(inside.values())
    known = _known(used, inside)
    found: dict[str, str] = {}
    for call in sorted(inner_calls if given else {g.call for g in used} | inner_calls):
        for tensor in raw.targets_of(call):
            kind, reason = reduction.reduction_of(raw.graph, tensor, inputs, known)
            kind = kind or given
            if kind is None:
                raise _untold(reason)
            found[kind] = reason
            known |= {gradient: kind for gradient, number in inside.items() if number == call}
    if given is not None:
        if found.keys() - {given}:
            raise CaptureError(f"loss_reduction={given!r} does not hold inside the loss: {'; '.join(found.values())}")
        return given, "given by the caller", known
    if not found:
        raise _untold("it is computed inside a loop, or the program gave the gradient to start from (grad_ys)")
    if len(found) != 1:
        raise CaptureError(
            "some losses are means over the batch and some are sums "
            f"({'; '.join(found.values())}): say loss_reduction='mean' or 'sum'"
        )
    return (*next(iter(found.items())), known)


def _untold(reason: str) -> CaptureError:
    error = CaptureError(
        f"cannot tell whether the loss is a mean or a sum over the batch: {reason}. Say "
        "loss_reduction='mean' (gradients are averaged over the workers) or 'sum' (they are added)"
    )
    error.wants_reduction = True
    return error


def _known(used: Sequence[RawGradient], inside: Mapping[str, int]) -> dict[str, str]:
    """For the analysis of losses: gradients that are aggregated before they get there are equal everywhere."""
    outer = [g for g in used if g.tensor not in inside]
    return {t: "equal" for g in outer for t in (g.tensor, g.indices) if t is not None}


def _is_differentiated(raw: RawProgram, used: Sequence[RawGradient], tensor: str) -> bool:
    targets = {behind_identities(raw.graph, t) for call in {g.call for g in used} for t in raw.targets_of(call)}
    return behind_identities(raw.graph, tensor) in targets


def _batch_wide(
    raw: RawProgram, used: Sequence[RawGradient], inside: Mapping[str, int], inputs: Sequence[Input]
) -> list[str]:
    """Say where the loss uses a value of the whole batch."""
    calls = {g.call for g in used}
    found: dict[str, None] = {}
    for tensor, call in raw.differentiated:
        if call in calls:
            found.update(dict.fromkeys(reduction.batch_wide_values(raw.graph, tensor, inputs, _known(used, inside))))
    if not found:
        return []
    return [
        f"the loss uses values over the whole batch ({listed(found, 3)}): each worker computes them over its own part, "
        "as batch normalisation does"
    ]


def _static_shape(node: NodeDef, tensor: str) -> tuple[int, ...] | None:
    shapes = node.attr["_output_shapes"].list.shape
    index = parse_input(tensor)[1]
    if index >= len(shapes) or shapes[index].unknown_rank:
        return None
    return tuple(d.size for d in shapes[index].dim)


def _without_shapes(graph: Graph) -> Graph:
    """The graph without the shapes and marks that only capture needs."""
    stripped = []
    for node in graph:
        copy = type(node)()
        copy.CopyFrom(node)
        if GRADIENT_ATTRIBUTE in copy.attr:
            copy.attr.pop("_gradient_op_type", None)
        for name in ("_output_shapes", *OWN_ATTRIBUTES):
            copy.attr.pop(name, None)
        stripped.append(copy)
    return Graph(stripped, graph.library, graph.versions)


def _notes(raw: RawProgram, gradients: Sequence[Gradient]) -> list[str]:
    with_gradient = {g.parameter for g in gradients}
    without = [v.name for v in raw.variables if v.trainable and v.name not in with_gradient]
    notes = []
    if without:
        notes.append(f"no gradient reaches {listed(without)}: left as it is")
    return notes


def _step_counter(variables: Sequence[Variable], writes: dict[str, tuple[str, ...]]) -> str | None:
    for variable in variables:
        is_integer = variable.dtype.startswith(("int", "uint")) and variable.shape == ()
        if is_integer and variable.node in writes and variable.name.rpartition("/")[2] in _STEP_COUNTERS:
            return variable.name
    return None
