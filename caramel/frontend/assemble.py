"""From a captured program to a Model: prune to one step, check what cannot be replicated, give roles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from caramel.errors import CaptureError, UnsupportedError, listed
from caramel.frontend import dataflow, reduction
from caramel.frontend.raw import RawGradient, RawProgram, RawVariable
from caramel.graph import ops
from caramel.graph.graph import Graph, NodeDef, node_of, parse_input, tensor_name
from caramel.model import Gradient, Input, Model, Reduction, Variable

_STEP_COUNTERS = ("global_step", "iteration", "iterations")


def assemble(raw: RawProgram) -> Model:
    """Work out the roles of a captured program.

    Raises:
        CaptureError: a role is missing or ambiguous.
        UnsupportedError: the step uses something that cannot be replicated.
    """
    notes = list(raw.notes)
    outer = _outer_gradients(raw)
    loss = _loss(raw, outer)
    roots = [*raw.targets, node_of(loss), *(node_of(t) for _, t in raw.outputs)]
    step = raw.graph.pruned(roots)
    check_replicable(step, raw.variables)
    used = [g for g in outer if _is_used(step, g)]
    if not used:
        what, advice = (
            ("training op", "Pass the op that applies the gradients as train_op=")
            if raw.is_graph
            else ("step", "Apply them in it (optimizer.apply_gradients, or assign to the variables)")
        )
        raise CaptureError(f"the {what} uses no gradient of the loss: nothing would be learned in common. {advice}")
    inputs = tuple(i for i in raw.inputs if i.node in step)
    _check_inputs(inputs)
    gradients = _gradients(used, raw, step)
    roles = dataflow.classify(step, raw.variables, gradients, inputs)
    kind, reason = _reduction(raw, used, inputs)
    variables = tuple(
        Variable(v.name, v.node, v.dtype, v.shape, roles.kinds[v.node], ops.item_bytes(v.dtype), v.saved)
        for v in raw.variables
    )
    by_node = {v.node: v.name for v in raw.variables}
    shape = _static_shape(step[node_of(loss)], loss)
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
        notes=(*notes, *_notes(raw, gradients), *_batch_wide(raw, used, inputs), *roles.notes),
        step_counter=_step_counter(variables, dict(roles.writes)),
        unused_inputs=tuple(i.name for i in raw.inputs if i.node not in step),
    )


def check_replicable(graph: Graph, variables: Iterable[RawVariable]) -> None:
    """Refuse, by name, every op that a replica cannot have.

    Raises:
        UnsupportedError: for the first such op, with what to do instead.
    """
    handles = {v.node for v in variables}
    bodies = {f.signature.name: f for f in graph.library.function} if graph.library is not None else {}
    for node in graph:
        if node.op in ops.LEGACY_CONTROL_FLOW:
            raise UnsupportedError(
                f"op {node.name!r} ({node.op}) is control flow of TensorFlow 1, which cannot be replicated yet. "
                "Call tf.compat.v1.enable_control_flow_v2() before building the graph"
            )
        if node.op in bodies:
            raise UnsupportedError(
                f"op {node.name!r} calls function {node.op!r} by name, which cannot be replicated yet"
            )
        if ops.is_reference_op(node):
            raise UnsupportedError(
                f"op {node.name!r} ({node.op}) uses a reference variable of TensorFlow 1, which cannot be replicated "
                "yet. Call tf.compat.v1.enable_resource_variables() before building the graph"
            )
        if node.op == ops.VARIABLE and node.name not in handles:
            raise UnsupportedError(
                f"variable {node.name!r} is in no collection of the graph, so its initial value cannot be found. "
                "Create it without collections=[]"
            )
        functions = _all_functions(node, bodies)
        if functions and ops.is_call(node):
            _check_call(node, functions, bodies)
        elif not ops.is_replicable(node):
            raise UnsupportedError(
                f"op {node.name!r} ({node.op}) has state or effects that cannot be copied to every worker yet. "
                "Move it out of the training step (feed its result, or run it between steps)"
            )


def _all_functions(node: NodeDef, bodies: dict[str, object]) -> list[str]:
    """The functions that the node calls, directly or not."""
    found: dict[str, None] = {}
    waiting = ops.functions_of(node)
    while waiting:
        name = waiting.pop(0)
        if name in found or name not in bodies:
            continue
        found[name] = None
        for inner in bodies[name].node_def:  # type: ignore[attr-defined]
            waiting.extend(ops.functions_of(inner))
            if inner.op in bodies:
                waiting.append(inner.op)
    return list(found)


def _check_call(node: NodeDef, functions: Sequence[str], bodies: dict[str, object]) -> None:
    from caramel.frontend.recorder import GRADIENT_ATTRIBUTE

    if any(t == ops.DT_RESOURCE for _, t in ops.input_types(node)):
        raise UnsupportedError(
            f"op {node.name!r} ({node.op}) passes variables into function {functions[0]!r}; reads and writes inside a "
            "function cannot be replicated yet. Call the Python function without tf.function (or read the "
            "variables outside it)"
        )
    for name in functions:
        for inner in bodies[name].node_def:  # type: ignore[attr-defined]
            where = f"op {inner.name!r} ({inner.op}) in function {name!r}, called by {node.name!r},"
            if GRADIENT_ATTRIBUTE in inner.attr:
                raise UnsupportedError(
                    f"{where} computes a gradient of a variable inside a function, where it cannot be aggregated "
                    "yet. Call that Python function without tf.function"
                )
            if not ops.is_call(inner) and not ops.is_pure(inner):
                raise UnsupportedError(
                    f"{where} has state or effects; inside a function that cannot be replicated yet. "
                    "Call that Python function without tf.function"
                )


def _outer_gradients(raw: RawProgram) -> list[RawGradient]:
    """Without those that only feed another differentiation (a gradient inside a loss)."""
    if not raw.gradients:
        raise CaptureError(
            "no gradient of a variable was computed: there is no loss to train on. Build the loss and call "
            "optimizer.minimize, tf.gradients or GradientTape.gradient in the captured code"
        )
    by_node: dict[str, list[RawGradient]] = {}
    for gradient in raw.gradients:
        by_node.setdefault(node_of(gradient.tensor), []).append(gradient)
    inner: set[int] = set()
    for gradient in raw.gradients:
        if len({g.call for g in raw.gradients}) == 1:
            break
        behind = raw.graph.ancestors([node_of(gradient.tensor)], control=False)
        inner.update(g.call for name in behind & by_node.keys() for g in by_node[name] if g.call < gradient.call)
    return [g for g in raw.gradients if g.call not in inner]


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
        if gradient.sparse:
            raise UnsupportedError(
                f"{gradient.location}: the gradient of {variable.name!r} is sparse (IndexedSlices, from an embedding "
                "lookup); sparse gradients cannot be aggregated yet. Look up in the table times 1.0 instead of the "
                "table: then its gradient is dense"
            )
        names[variable.name] = names.get(variable.name, 0) + 1
        suffix = "" if names[variable.name] == 1 else f"#{names[variable.name]}"
        name, index = parse_input(gradient.tensor)
        dtype = ops.dtype_name(ops.output_types(step[name])[index])
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
            )
        )
    return tuple(found)


def _check_inputs(inputs: Sequence[Input]) -> None:
    for item in inputs:
        if item.dtype in ("resource", "variant"):
            raise UnsupportedError(f"input {item.name!r} has dtype {item.dtype}, which cannot be fed to workers")
        if item.split and item.shape is None:
            raise CaptureError(
                f"input {item.name!r} has unknown rank, so it cannot be split over the workers. Give its placeholder "
                f"a shape such as [None, ...], or list it in replicated= if every worker gets the whole array"
            )


def _reduction(raw: RawProgram, used: Sequence[RawGradient], inputs: Sequence[Input]) -> tuple[str, str]:
    calls = {g.call for g in used}
    if raw.reduction is not None:
        if raw.reduction not in ("mean", "sum"):
            raise CaptureError(f"loss_reduction must be 'mean' or 'sum', got {raw.reduction!r}")
        return raw.reduction, "given by the caller"
    found: dict[str, str] = {}
    for tensor, call in raw.differentiated:
        if call not in calls:
            continue
        kind, reason = reduction.reduction_of(raw.graph, tensor, inputs)
        if kind is None:
            raise CaptureError(
                f"cannot tell whether the loss is a mean or a sum over the batch: {reason}. Say "
                "loss_reduction='mean' (gradients are averaged over the workers) or 'sum' (they are added)"
            )
        found[kind] = reason
    if len(found) != 1:
        raise CaptureError(
            "some losses are means over the batch and some are sums "
            f"({'; '.join(found.values())}): say loss_reduction='mean' or 'sum'"
        )
    return next(iter(found.items()))


def _batch_wide(raw: RawProgram, used: Sequence[RawGradient], inputs: Sequence[Input]) -> list[str]:
    """Say where the loss uses a value of the whole batch."""
    calls = {g.call for g in used}
    found: dict[str, None] = {}
    for tensor, call in raw.differentiated:
        if call in calls:
            found.update(dict.fromkeys(reduction.batch_wide_values(raw.graph, tensor, inputs)))
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
    """The graph without the shapes that only capture needs."""
    stripped = []
    for node in graph:
        copy = type(node)()
        copy.CopyFrom(node)
        copy.attr.pop("_output_shapes", None)
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
