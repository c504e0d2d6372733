"""From a captured program to a Model: prune to one step, check what cannot be replicated, give roles."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial

from caramel.errors import CaptureError, UnsupportedError, listed
from caramel.frontend.attributes import GRADIENT_ATTRIBUTE, SINGLE_ATTRIBUTE, without_capture_attributes
from caramel.frontend.batch.domain import Examples, mixed_by
from caramel.frontend.batch.tensor_gradients import pruned_with_differentiated
from caramel.frontend.captured import RawGradient, RawProgram
from caramel.frontend.roles import nested_gradients, variable_classes
from caramel.frontend.roles.accumulation import Accumulation, accumulated
from caramel.frontend.roles.asked_sums import is_settled, unmet_sums, with_asked_sums
from caramel.frontend.roles.forward_search import GatherNeeded, Search
from caramel.frontend.roles.forward_sums import differing_entries, refuse_sums_of_others, with_forward_sums
from caramel.frontend.roles.inner_sums import with_inner_sums
from caramel.frontend.roles.loss_reduction import Reductions, reduce_program, reductions_of
from caramel.frontend.roles.needs import may_be_function_of_sums, written_by
from caramel.frontend.roles.output_reductions import ReportedTensors, unknown_reduction_notes
from caramel.frontend.roles.refusals import (
    refuse_functions_as_ops,
    refuse_in_loops,
    refuse_irreplicable,
    refuse_mixed_gradients,
    refuse_uneven_rounds,
)
from caramel.frontend.roles.shared_rows import with_shared_rows
from caramel.frontend.roles.totals import addends_of, mixed_addends
from caramel.graph import ops
from caramel.graph.graph import Graph, NodeDef, behind_identities, copied, node_of, parse_input, tensor_name
from caramel.graph.nodes import shape_attribute
from caramel.graph.shapes import with_inferred_shapes
from caramel.model import Combination, ForwardSum, Gradient, Input, Model, Reduction, Table, Variable, VariableClass
from caramel.util.gc_pause import paused_gc

_NO_NUMBERS = ("resource", "variant")

_STEP_COUNTERS = ("global_step", "iteration", "iterations")
"""Last parts of the names under which TensorFlow and Keras keep the number of steps."""


@paused_gc()
def assemble(raw: RawProgram) -> Model:
    """Work out the roles of a captured program.

    An input without a rank is taken for a number, which every worker gets, where the step is then clear.

    Raises:
        CaptureError: a role is missing or ambiguous.
        UnsupportedError: the step uses something that cannot be replicated.
    """
    unranked = [i for i in raw.inputs if i.shape is None and i.component is None and i.dtype not in _NO_NUMBERS]
    if not unranked:
        return _assembled(raw)
    try:
        return _assembled(_with_numbers(raw, unranked))
    except (CaptureError, ValueError):  # the latter from TensorFlow, where an op takes no number
        return _assembled(raw)


def _with_numbers(raw: RawProgram, unranked: Sequence[Input]) -> RawProgram:
    """The program with numbers for some inputs; those that all workers get whole anyway may be arrays."""
    graph = with_inferred_shapes(raw.graph, {i.node: () for i in unranked})
    whole = {i.node: raw.graph[i.node].attr["shape"] for i in unranked if not i.split and i.node in raw.graph}
    changed = {}
    for name in (i.node for i in unranked if i.node in graph):
        changed[name] = copied(graph[name])
        if name in whole:
            changed[name].attr["shape"].CopyFrom(whole[name])
        else:
            changed[name].attr["shape"].CopyFrom(shape_attribute(()))
    names = {i.name for i in unranked if i.split}
    notes = [f"input {name!r} has no rank: it takes a number, which every worker gets" for name in sorted(names)]
    inputs = tuple(replace(i, split=False, shape=()) if i.name in names else i for i in raw.inputs)
    return replace(raw, graph=graph.replaced(changed), inputs=inputs, notes=(*raw.notes, *notes))


def _assembled(raw: RawProgram) -> Model:
    if raw.trains:  # else no gradient is aggregated: in an evaluation, or with one worker
        if _uses_single_examples(raw, raw.graph.pruned(raw.targets)):
            raise UnsupportedError(raw.single_examples)
        refuse_in_loops(raw)
    raw = with_asked_sums(raw)
    try:
        sorted_out = _sorted_out(raw)
    except UnsupportedError:
        summed = _with_inner_sums(raw)
        if summed is None:
            raise
        return _assembled(summed)
    loss = _loss(raw, sorted_out.aggregated)
    step, used = _step(raw, loss, sorted_out.aggregated)
    refuse_irreplicable(step, raw.library, raw)
    if raw.trains and not used:
        raise _nothing_learned(raw)
    inputs = tuple(i for i in raw.inputs if i.node in step)
    _check_inputs(inputs)
    sums = accumulated(step, raw.library, _gradients(used, raw, step), raw.variables)
    roles = _roles(raw, step, sums, used, inputs, sorted_out.inside)
    if isinstance(roles, RawProgram):
        return _assembled(roles)
    graph = _with_losses(raw, step, used, sorted_out.inside)
    told = _reduced(raw, graph, used, inputs, roles, sorted_out.inside)
    if isinstance(told, RawProgram):
        return _assembled(told)
    reduction, reductions = told
    refuse_sums_of_others(replace(raw, graph=graph), reductions)
    refuse_mixed_gradients(step, reductions)
    local = _local(roles.kinds)
    refuse_uneven_rounds(step, raw.library, sums.gradients, inputs, local, reduction.kind)
    gradients = with_shared_rows(replace(raw, graph=graph), sums.gradients, inputs, local)
    losses = [tensor for call in {g.call: None for g in used} for tensor in raw.targets_of(call)]
    batch_wide = _batch_wide(reductions, losses)
    reports = ReportedTensors(graph, roles.origins, reductions)
    is_differentiated = behind_identities(graph, loss) in {behind_identities(graph, t) for t in losses}
    reported = reduction.kind if is_differentiated else reports.reduction_of(loss)
    own = [node for node, kind in roles.kinds.items() if kind is VariableClass.STATISTICS and raw.trains]
    addends = addends_of(step, own, roles.writes, gradients, reductions)
    by_hand = [v.node for v in raw.variables if v.trainable and v.node in own and v.node not in addends]
    if by_hand and raw.reduction is None and not sorted_out.inside:
        shared = _with_shared_updates(raw, used, inputs, roles, by_hand)
        if shared is not None:
            return _assembled(shared)
    kinds = {**roles.kinds, **dict.fromkeys(addends, VariableClass.TOTAL)}
    variables = tuple(
        Variable(v.name, v.node, v.dtype, v.shape, kinds[v.node], ops.item_bytes(v.dtype), v.saved, v.part, v.renamed)
        for v in raw.variables
    )
    by_node = {v.node: v.name for v in raw.variables}
    return Model(
        graph=without_capture_attributes(step),
        inputs=inputs,
        loss=tensor_name(loss),
        outputs=raw.outputs,
        targets=raw.targets,
        variables=variables,
        gradients=gradients,
        updates=tuple((by_node[node], writers) for node, writers in roles.writes.items()),
        reduction=reduction,
        values=raw.values,
        notes=(
            *raw.notes,
            *_several_losses(raw, loss, sorted_out.aggregated),
            *_without_gradient(raw, sums.gradients, roles.writes),
            *batch_wide,
            *_summed_notes(raw),
            *roles.notes,
            *unknown_reduction_notes(loss, reported, reduction.kind),
        ),
        step_counter=_step_counter(variables, dict(roles.writes)),
        unused_inputs=tuple(i.name for i in raw.inputs if i.node not in step),
        input_order=tuple(i.name for i in raw.inputs),
        reported=reported,
        combinations=tuple(reports.combination_of(tensor) for _, tensor in raw.outputs),
        synchronised=unmet_sums(replace(raw, graph=graph), reductions),
        addends=tuple(addend for each in addends.values() for addend in each),
        mixed=tuple((by_node[node], why) for node, why in mixed_addends(step, local, roles.writes, reductions).items()),
        tables=tuple(Table(t.node, t.keys.name, t.values.name) for t in raw.tables),
        forward_sums=_forward_sums(raw, step, differing_entries(raw, local), reductions),
    )


def assemble_alone(raw: RawProgram) -> Model:
    """Work out the roles of a captured program for one worker, which has all examples: there is nothing to combine.

    Where `assemble` cannot tell how the parts of several workers combine, the step stays as it is.

    Raises:
        CaptureError: a role is missing or ambiguous.
        UnsupportedError: the step uses something that cannot be replicated.
    """
    raw = replace(raw, is_alone=True)
    try:
        return assemble(raw)
    except CaptureError as error:
        losses = [raw.loss] if raw.loss is not None else [tensor for tensor, _ in raw.differentiated]
        loss = next((tensor for tensor in losses if node_of(tensor) in raw.graph), None)
        if not _differentiates(raw):
            raise
        if loss is None:
            raise CaptureError("the loss cannot be found in the graph: pass it as loss=") from error
        kept = f"with one worker the step is as the program has it; with several it could not be: {error}"
        # What the program asks for over all replicas is what the only one has.
        plain = replace(
            raw, gradients=(), loss=loss, reduction="mean", notes=(*raw.notes, kept), trains=False, forward_sums=()
        )
        model = assemble(plain)
        return replace(model, reported="mean", combinations=tuple(Combination.SAME for _ in model.outputs))


def _differentiates(raw: RawProgram) -> bool:
    """Whether the step uses gradients of variables: of a loss, of single examples, or within a loop or branch."""
    step = raw.graph.pruned(raw.targets)
    is_inside = any(GRADIENT_ATTRIBUTE in each.attr for each in _inner_nodes(raw, step))
    return is_inside or _uses_single_examples(raw, step) or any(_is_used(step, g) for g in raw.gradients)


def _uses_single_examples(raw: RawProgram, step: Graph) -> bool:
    if not raw.single_examples:
        return False
    return any(SINGLE_ATTRIBUTE in each.attr for each in (*step, *_inner_nodes(raw, step)))


def _inner_nodes(raw: RawProgram, step: Graph) -> Iterator[NodeDef]:
    """The nodes of the functions of loops and branches."""
    return (inner for each in step for _, inner in raw.library.inner_nodes(each))


def _roles(
    raw: RawProgram,
    step: Graph,
    sums: Accumulation,
    used: Sequence[RawGradient],
    inputs: Sequence[Input],
    inside: Mapping[str, int],
) -> variable_classes.Roles | RawProgram:
    """The variables' classes; or a changed program to assemble anew, because an update depends on the loss."""
    of_all = (step, raw.library, raw.variables, sums.gradients, inputs, sums.accumulators)
    try:
        return variable_classes.classify(*of_all)
    except UnsupportedError as refusal:
        if inside:
            raise
        # A learning rate may follow a loss, or a step may be left out where the loss is not finite.
        roles = variable_classes.classify(*of_all, refuses=False)
        search = partial(Search, raw, at_ops=(), refusal=refusal)
        analyse = _analyse(used, inputs, roles.kinds)
        summed = search(analyse).with_gradients_by_tensors(step.nodes) or search(analyse).with_losses()
        if summed is None:  # or what is written follows other sums, or the number of examples
            parameters = [node for node, kind in roles.kinds.items() if kind is VariableClass.PARAMETER]
            differing = [w for node in parameters for w in roles.writes.get(node, ()) if roles.origins[w] is not None]
            shared, writers = _statistics_behind(step, roles, differing)
            kinds = {**roles.kinds, **dict.fromkeys(shared, VariableClass.HYPERPARAMETER)}
            found = search(_analyse(used, inputs, kinds)).with_updates([*differing, *writers]) if differing else None
            summed = None if found is raw else found
        if summed is None:
            raise
        return summed


def _statistics_behind(graph: Graph, roles: variable_classes.Roles, ends: Sequence[str]) -> tuple[list[str], list[str]]:
    """The variables of which each worker has its own value and that go into some nodes, and what writes them."""
    statistics = [handle for handle, kind in roles.kinds.items() if kind is VariableClass.STATISTICS]
    shared: list[str] = []
    writers: list[str] = []
    while True:
        read = graph.ancestors([*ends, *writers], control=False)
        found = [handle for handle in statistics if handle in read and handle not in shared]
        if not found:
            return shared, writers
        shared += found
        writers += [writer for handle in found for writer in roles.writes.get(handle, ())]


def _reduced(
    raw: RawProgram,
    graph: Graph,
    used: Sequence[RawGradient],
    inputs: Sequence[Input],
    roles: variable_classes.Roles,
    inside: Mapping[str, int],
) -> tuple[Reduction, Reductions] | RawProgram:
    """How the gradients are reduced, with the analysis; or a program with the sums over the workers that it needs."""
    kinds = roles.kinds
    refusal = CaptureError(
        "values of the whole batch stand beside others in a way that cannot be followed: with several workers the loss "
        "would be another"
    )
    seen, told = replace(raw, graph=graph), None
    try:
        told = reduce_program(seen, used, inside, inputs, kinds)
    except CaptureError as error:
        refusal = error
    is_alone = raw.reduction is not None and not raw.trains  # see `assemble_alone`
    is_settled_now = told is not None and (is_alone or is_settled(seen, told[1], told[0].kind))
    summed: RawProgram | None = raw
    # Where the caller has said how each worker's loss counts, nothing is summed. What trains nothing has no loss.
    may_sum = not inside and (raw.reduction is None or not raw.trains)
    sum_of_all = partial(with_forward_sums, raw, _analyse(used, inputs, kinds), _local(kinds), refusal)
    if may_sum and raw.trains and (not is_settled_now or raw.forward_sums):
        summed = sum_of_all()
    elif may_sum and is_settled_now and told is not None and _has_open_results(raw, told[1]):
        # A result may stay as it is where the step trains, and one worker has all examples.
        with suppress(GatherNeeded) if raw.trains or raw.is_alone else nullcontext():
            summed = sum_of_all() or raw
    if summed is not None and summed is not raw:
        return summed
    if told is None or summed is None or not is_settled_now:
        shared = _with_shared_statistics(raw, graph, used, inputs, roles, refusal) if may_sum else None
        if shared is None:
            raise refusal
        return shared
    return told


def _with_shared_statistics(
    raw: RawProgram,
    graph: Graph,
    used: Sequence[RawGradient],
    inputs: Sequence[Input],
    roles: variable_classes.Roles,
    refusal: CaptureError,
) -> RawProgram | None:
    """The program whose statistics are those of the whole batch, where the losses read them; None if that is not so.

    That they are the same on all workers is assumed, and then holds: they are at first, and so is what is written.
    """
    ends = [node_of(tensor) for tensor in _differentiated(raw, used)]
    shared, _ = _statistics_behind(graph, roles, ends)
    return _with_shared_updates(raw, used, inputs, roles, shared, refusal) if shared else None


def _with_shared_updates(
    raw: RawProgram,
    used: Sequence[RawGradient],
    inputs: Sequence[Input],
    roles: variable_classes.Roles,
    shared: Sequence[str],
    refusal: CaptureError | None = None,
) -> RawProgram | None:
    """The program that writes the same to some variables on all workers, as if each had the whole batch.

    Args:
        raw: the captured program.
        used: its gradients.
        inputs: its inputs.
        roles: classes of its variables.
        shared: handles of variables that are no parameters, or that the program trains without gradients.
        refusal: why the program cannot be replicated without; None where it can.

    Returns:
        None if what is written is no function of sums over the examples, as far as can be told.

    Raises:
        GatherNeeded: the examples of all workers are needed, and there is a refusal.
    """
    kinds = {**roles.kinds, **dict.fromkeys(shared, VariableClass.HYPERPARAMETER)}
    writers = [writer for handle in shared for writer in roles.writes.get(handle, ())]
    search = Search(raw, _analyse(used, inputs, kinds), (), refusal or CaptureError("it is exact without"))
    try:
        summed = search.with_updates(writers)
    except GatherNeeded:
        if refusal is not None:
            raise
        return None
    return None if summed is raw else summed


def _has_open_results(raw: RawProgram, reductions: Reductions) -> bool:
    """Whether a result of the step may be a function of sums over the examples, or have some in it."""
    values = [reductions.value_of(tensor) for tensor in raw.results]
    if raw.trains:
        return any(map(may_be_function_of_sums, values))
    values += [reductions.value_of(tensor) for tensor in written_by(raw)]
    return any(may_be_function_of_sums(value) or mixed_by(value) for value in values)


def _local(kinds: Mapping[str, VariableClass]) -> list[str]:
    """Handle nodes of the variables that have a value of their own on each worker."""
    return [node for node, kind in kinds.items() if kind.is_local]


def _analyse(
    used: Sequence[RawGradient], inputs: Sequence[Input], kinds: Mapping[str, VariableClass]
) -> Callable[[RawProgram], tuple[Reductions, Sequence[str]]]:
    """The function that analyses a program with sums; see `caramel.frontend.roles.forward_search.Analyse`."""

    def analyse(program: RawProgram) -> tuple[Reductions, Sequence[str]]:
        losses = _differentiated(program, used)
        roots = [*program.targets, *map(node_of, (*losses, *program.results)), *(node_of(g.tensor) for g in used)]
        graph = pruned_with_differentiated(program.graph, roots)
        return reductions_of(replace(program, graph=graph), used, (), inputs, kinds), losses

    return analyse


def _differentiated(raw: RawProgram, used: Sequence[RawGradient]) -> list[str]:
    """The tensors of which some gradients are."""
    return [tensor for call in sorted({g.call for g in used}) for tensor in raw.targets_of(call)]


def _step(raw: RawProgram, loss: str, gradients: Sequence[RawGradient]) -> tuple[Graph, list[RawGradient]]:
    """The nodes that a step needs, and the gradients that it uses."""
    roots = [*raw.targets, node_of(loss), *(node_of(t) for _, t in raw.outputs)]
    step = raw.graph.pruned(roots)
    # What enters a sum has to be scaled for it, also where nobody reads the sum.
    unread = [s.node for s in raw.forward_sums if s.node not in step and any(e in step for e in s.entries)]
    if unread:
        roots += unread
        step = raw.graph.pruned(roots)
    used = [g for g in gradients if _is_used(step, g)]
    # Only the values of a sparse gradient may be used (for a norm); its rows travel with them all the same.
    return raw.graph.pruned([*roots, *(node_of(g.indices) for g in used if g.indices is not None)]), used


def _with_losses(raw: RawProgram, step: Graph, used: Sequence[RawGradient], inside: Mapping[str, int]) -> Graph:
    """The nodes of a step and of its losses, which need not be part of it; other nodes may be of any kind."""
    calls = sorted({*(g.call for g in used), *inside.values()})
    losses = [node_of(tensor) for call in calls for tensor in raw.targets_of(call)]
    roots = [*step.nodes, *losses, *(node_of(tensor) for tensor in inside)]
    graph = pruned_with_differentiated(raw.graph, roots)
    refuse_functions_as_ops(graph, raw.library)
    return graph


def _nothing_learned(raw: RawProgram) -> CaptureError:
    what, advice = (
        ("training op", "Pass the op that applies the gradients as train_op=")
        if raw.is_graph
        else ("step", "Apply them in it (optimizer.apply_gradients, or assign to the variables)")
    )
    return CaptureError(f"the {what} uses no gradient of the loss: nothing would be learned in common. {advice}")


def _with_inner_sums(raw: RawProgram) -> RawProgram | None:
    """The program whose gradients inside losses are summed over the workers; None where they cannot be."""
    if raw.reduction is not None or not raw.trains:
        return None
    step, used = _step(raw, _loss(raw, raw.gradients), raw.gradients)
    inputs = tuple(i for i in raw.inputs if i.node in step)
    gradients = _gradients(used, raw, step)
    kinds = variable_classes.classify(step, raw.library, raw.variables, gradients, inputs, refuses=False).kinds
    return with_inner_sums(raw, inputs, kinds)


def _sorted_out(raw: RawProgram) -> nested_gradients.SortedGradients:
    """The gradients that are aggregated, and those that stay as they are inside a loss."""
    if raw.trains and not raw.gradients:
        raise CaptureError(
            "no gradient of a variable was computed: there is no loss to train on, or nothing to train (is every layer "
            "frozen, trainable=False?). Build the loss and call optimizer.minimize, tf.gradients or "
            "GradientTape.gradient in the captured code"
        )
    return nested_gradients.sort_gradients(raw)


def _loss(raw: RawProgram, gradients: Sequence[RawGradient]) -> str:
    if raw.loss is not None:
        if node_of(raw.loss) not in raw.graph:
            raise CaptureError(f"loss {raw.loss!r} is not a tensor of the captured graph")
        return raw.loss
    calls = {g.call for g in gradients}
    losses = list(dict.fromkeys(tensor for tensor, call in raw.differentiated if call in calls))
    if not losses:
        raise CaptureError("the loss cannot be found in the graph: pass it as loss=")
    return losses[0]


def _several_losses(raw: RawProgram, reported: str, gradients: Sequence[RawGradient]) -> list[str]:
    """A note on losses of which the program does not say which one to report."""
    calls = {g.call for g in gradients}
    losses = list(dict.fromkeys(tensor for tensor, call in raw.differentiated if call in calls))
    if raw.loss is not None or len(losses) < 2:
        return []
    return [
        f"several tensors are differentiated ({listed(losses)}), and {reported!r} is reported as the loss: choose with "
        "loss="
    ]


def _is_used(step: Graph, gradient: RawGradient) -> bool:
    if node_of(gradient.tensor) not in step:
        return False
    readers = step.readers(gradient.tensor)
    return any(r in gradient.consumers for r in readers) if gradient.consumers else bool(readers)


def _gradients(used: Sequence[RawGradient], raw: RawProgram, step: Graph) -> tuple[Gradient, ...]:
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


def _check_inputs(inputs: Sequence[Input]) -> None:
    for item in inputs:
        if item.dtype in ("resource", "variant"):
            raise UnsupportedError(f"input {item.name!r} has dtype {item.dtype}, which cannot be fed to workers")
        if item.split and item.shape is None:
            raise CaptureError(
                f"input {item.name!r} has unknown rank, so it cannot be split over the workers. Give its placeholder "
                f"a shape such as [None, ...], or list it in replicated= if every worker gets the whole array"
            )


def _batch_wide(reductions: Reductions, losses: Sequence[str]) -> list[str]:
    """Notes on values of the whole batch that the losses use."""
    values = reductions.batch_wide_values(losses)
    if not values:
        return []
    return [
        f"the loss uses values over the whole batch ({listed(values, 3)}): each worker computes them over its own "
        "part, as batch normalisation does"
    ]


def _forward_sums(
    raw: RawProgram, step: Graph, differing: Collection[str], reductions: Reductions
) -> tuple[ForwardSum, ...]:
    """The sums over the workers that a step needs, in the order in which it can compute them."""
    place = {name: number for number, name in enumerate(step.order)}
    sums = sorted((s for s in raw.forward_sums if s.node in place), key=lambda s: place[s.node])

    def batches(forward_sum: ForwardSum) -> int:
        value = reductions.value_of(raw.graph[forward_sum.node].input[0])
        return value.before or 1 if forward_sum.kind == "gather" and isinstance(value, Examples) else 1

    return tuple(
        replace(
            s,
            entries=tuple(e for e in s.entries if e in place),
            gradients_differ=any(e in differing for e in s.entries),
            batches=batches(s),
        )
        for s in sums
    )


def _summed_notes(raw: RawProgram) -> list[str]:
    """A note on tensors that are summed over the workers in the forward pass."""
    if not raw.forward_sums:
        return []
    names = [node_of(raw.graph[s.node].input[0]) for s in raw.forward_sums]
    sums = {s.node for s in raw.forward_sums}
    made = [n for n, t in raw.outputs if t != raw.loss and sums & raw.graph.ancestors([node_of(t)], control=False)]
    readers = f"; the step returns what is made of that: {listed(made, 3)}" if made else ""
    return [
        f"values of the whole batch are needed: {listed(names, 3)} {'is' if len(names) == 1 else 'are'} "
        f"summed over the workers in the forward pass, so that each of them has these values{readers}"
    ]


def _without_gradient(raw: RawProgram, gradients: Sequence[Gradient], writes: Collection[str]) -> list[str]:
    """Notes on trainable variables that no gradient reaches, and nothing writes."""
    with_gradient = {g.parameter for g in gradients}
    without = [v.name for v in raw.variables if v.trainable and v.name not in with_gradient and v.node not in writes]
    return [f"no gradient reaches {listed(without)}: left as it is"] if without else []


def _step_counter(variables: Sequence[Variable], writes: dict[str, tuple[str, ...]]) -> str | None:
    for variable in variables:
        is_integer = variable.dtype.startswith(("int", "uint")) and variable.shape == ()
        if is_integer and variable.node in writes and variable.name.rpartition("/")[2] in _STEP_COUNTERS:
            return variable.name
    return None
