"""From a captured program to a Model: prune to one step, check what cannot be replicated, give roles."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from caramel.errors import CaptureError, UnsupportedError
from caramel.frontend.attributes import GRADIENT_ATTRIBUTE, SINGLE_ATTRIBUTE, without_capture_attributes
from caramel.frontend.batch.domain import Examples
from caramel.frontend.captured import RawGradient, RawProgram
from caramel.frontend.roles import model_notes
from caramel.frontend.roles.accumulation import accumulated
from caramel.frontend.roles.asked_sums import unmet_sums, with_asked_sums
from caramel.frontend.roles.dealt_values import dealt_outputs, refuse_read_remainders, unordered_outputs
from caramel.frontend.roles.forward_search import GatherNeeded
from caramel.frontend.roles.forward_sums import (
    differing_entries,
    refuse_branches_that_differ,
    refuse_sums_of_others,
)
from caramel.frontend.roles.output_reductions import ReportedTensors, unknown_reduction_notes
from caramel.frontend.roles.own_gradients import refuse_mixed_gradients
from caramel.frontend.roles.refusals import (
    refuse_in_loops,
    refuse_irreplicable,
    refuse_uneven_rounds,
)
from caramel.frontend.roles.shared_rows import with_shared_rows
from caramel.frontend.roles.step_gradients import (
    gradients_of,
    is_used,
    loss_of,
    nothing_learned,
    seeds_of,
    sorted_gradients,
    step_of,
    with_losses,
    with_seeds,
)
from caramel.frontend.roles.tensor_reductions import Reductions
from caramel.frontend.roles.totals import addends_of, mixed_addends
from caramel.frontend.roles.variable_classes import Roles
from caramel.frontend.roles.whole_batch import (
    beside_normalisation,
    local_variables,
    reduced,
    roles_of,
    with_gradients_summed,
    with_shared_state,
)
from caramel.graph import ops
from caramel.graph.graph import Graph, NodeDef, behind_identities, copied, node_of, tensor_name
from caramel.graph.nodes import shape_attribute
from caramel.graph.shapes import with_inferred_shapes
from caramel.model import (
    Addend,
    Combination,
    ForwardSum,
    Gradient,
    Input,
    Model,
    Reduction,
    Table,
    Variable,
    VariableClass,
)
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
    except GatherNeeded:  # a wish, and no refusal
        raise
    except (CaptureError, ValueError) as error:  # the latter from TensorFlow, where an op takes no number
        refusal = error
    try:
        return _assembled(raw)
    except UnsupportedError:
        raise
    except CaptureError as error:
        raise (refusal if isinstance(refusal, CaptureError) else error) from error


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


@dataclass(frozen=True)
class _Findings:
    """What is found of a program that needs no further change.

    Attributes:
        raw: the program.
        loss: the tensor that is reported as the loss.
        step: the nodes of the step.
        graph: these, and those of the losses, which need not be part of it.
        used: its gradients.
        aggregated: gradients that may be aggregated, those that no step uses, too.
        inside: gradients that stay inside a loss, and in which call each was computed.
        inputs: inputs of the step.
        gradients: gradients, or sums of them, to aggregate.
        roles: classes of the variables, and what writes them.
        reduction: how the losses reduce over the batch.
        reductions: how all tensors do.
        addends: what is added to totals, by handle.
        left: handles of variables of which each worker has a value of its own, but for those that normalisations keep.
    """

    raw: RawProgram
    loss: str
    step: Graph
    graph: Graph
    used: Sequence[RawGradient]
    aggregated: Sequence[RawGradient]
    inside: Mapping[str, int]
    inputs: tuple[Input, ...]
    gradients: tuple[Gradient, ...]
    roles: Roles
    reduction: Reduction
    reductions: Reductions
    addends: Mapping[str, Sequence[Addend]]
    left: Sequence[str]


def _assembled(raw: RawProgram) -> Model:
    found: _Findings | RawProgram = raw
    while isinstance(found, RawProgram):  # changed, so that values of the whole batch are there
        found = _findings(found)
    return _model(found)


def _findings(raw: RawProgram) -> _Findings | RawProgram:
    """What is found of a program, or the program with a change that it needs.

    Raises:
        CaptureError: see `assemble`.
        UnsupportedError: see there.
    """
    if raw.trains:  # else no gradient is aggregated: in an evaluation, or with one worker
        if _uses_single_examples(raw, raw.graph.pruned(raw.targets)):
            raise UnsupportedError(raw.single_examples)
        refuse_in_loops(raw)
    raw = with_asked_sums(raw)
    try:
        sorted_out = sorted_gradients(raw)
    except UnsupportedError:
        summed = with_gradients_summed(raw)
        if summed is None:
            raise
        return summed
    loss = loss_of(raw, sorted_out.aggregated)
    step, used = step_of(raw, loss, sorted_out.aggregated)
    refuse_irreplicable(step, raw.library, raw)
    if raw.trains and not used:
        raise nothing_learned(raw)
    inputs = tuple(i for i in raw.inputs if i.node in step)
    _check_inputs(inputs)
    sums = accumulated(step, raw.library, gradients_of(used, raw, step), raw.variables, raw.row_constants or ())
    roles = roles_of(raw, step, sums, used, inputs, sorted_out.inside)
    if isinstance(roles, RawProgram):
        return roles
    graph = with_losses(raw, step, used, sorted_out.inside)
    told = reduced(raw, graph, used, inputs, roles, sorted_out.inside)
    if isinstance(told, RawProgram):
        return told
    reduction, reductions = told
    refuse_read_remainders(raw, reductions)
    refuse_sums_of_others(replace(raw, graph=graph), reductions)
    refuse_mixed_gradients(step, reductions, [loss for loss, _ in raw.differentiated])
    local = local_variables(roles.kinds)
    refuse_branches_that_differ(raw, step, local)
    refuse_uneven_rounds(step, raw.library, sums.gradients, inputs, local, reduction.kind)
    own = [node for node, kind in roles.kinds.items() if kind is VariableClass.STATISTICS and raw.trains]
    addends = addends_of(step, own, roles.writes, sums.gradients, reductions, reduction.kind)
    left = beside_normalisation(raw, step, roles, reductions, [node for node in own if node not in addends])
    if left and raw.reduction is None and not sorted_out.inside:
        shared = with_shared_state(raw, used, inputs, roles, left)
        if shared is not None:
            return shared
    return _Findings(
        raw=raw,
        loss=loss,
        step=step,
        graph=graph,
        used=used,
        aggregated=sorted_out.aggregated,
        inside=sorted_out.inside,
        inputs=inputs,
        gradients=sums.gradients,
        roles=roles,
        reduction=reduction,
        reductions=reductions,
        addends=addends,
        left=left,
    )


def _model(found: _Findings) -> Model:
    """The model of a program."""
    raw, step, roles, reductions = found.raw, found.step, found.roles, found.reductions
    whole = replace(raw, graph=found.graph)
    local = local_variables(roles.kinds)
    gradients = with_shared_rows(whole, found.gradients, found.inputs, local)
    is_plain = found.reduction.kind == "mean" and not (found.inside or raw.forward_sums)
    seeds = seeds_of(raw, step, found.used, gradients) if is_plain else ()
    losses = [tensor for call in {g.call: None for g in found.used} for tensor in raw.targets_of(call)]
    reports = ReportedTensors(found.graph, roles.origins, reductions)
    differentiated = {behind_identities(found.graph, tensor) for tensor in losses}
    is_differentiated = behind_identities(found.graph, found.loss) in differentiated
    reported = found.reduction.kind if is_differentiated else reports.reduction_of(found.loss)
    kinds = {**roles.kinds, **dict.fromkeys(found.addends, VariableClass.TOTAL)}
    variables = tuple(
        Variable(v.name, v.node, v.dtype, v.shape, kinds[v.node], ops.item_bytes(v.dtype), v.saved, v.part, v.renamed)
        for v in raw.variables
    )
    by_node = {v.node: v.name for v in raw.variables}
    combinations = tuple(reports.combination_of(tensor) for _, tensor in raw.outputs)
    return Model(
        graph=without_capture_attributes(step),
        inputs=found.inputs,
        loss=tensor_name(found.loss),
        outputs=raw.outputs,
        targets=raw.targets,
        variables=variables,
        gradients=with_seeds(step, gradients) if seeds else gradients,
        updates=tuple((by_node[node], writers) for node, writers in roles.writes.items()),
        reduction=found.reduction,
        values=raw.values,
        notes=(
            *raw.notes,
            *model_notes.several_losses(raw, found.loss, found.aggregated),
            *model_notes.own_state(raw, () if raw.is_alone else found.left),
            *model_notes.without_gradient(raw, found.gradients, roles.writes),
            *model_notes.batch_wide(reductions, losses),
            *model_notes.summed(raw),
            *unordered_outputs(raw, reductions),
            *model_notes.own_results(raw, combinations, reductions),
            *roles.notes,
            *(() if raw.is_alone else unknown_reduction_notes(found.loss, reported, found.reduction.kind)),
        ),
        step_counter=_step_counter(variables, dict(roles.writes)),
        unused_inputs=tuple(i.name for i in raw.inputs if i.node not in step),
        input_order=tuple(i.name for i in raw.inputs),
        reported=reported,
        combinations=combinations,
        synchronised=unmet_sums(whole, reductions),
        addends=tuple(addend for each in found.addends.values() for addend in each),
        mixed=tuple((by_node[node], why) for node, why in mixed_addends(step, local, roles.writes, reductions).items()),
        tables=tuple(Table(t.node, t.keys.name, t.values.name) for t in raw.tables),
        forward_sums=_forward_sums(raw, step, differing_entries(raw, local), reductions),
        seeds=seeds,
        dealing=raw.dealing,
        dealt_outputs=dealt_outputs(raw, reductions),
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
        kept = "with one worker there is nothing to aggregate: the step is as the program has it"
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
    return is_inside or _uses_single_examples(raw, step) or any(is_used(step, g) for g in raw.gradients)


def _uses_single_examples(raw: RawProgram, step: Graph) -> bool:
    if not raw.single_examples:
        return False
    return any(SINGLE_ATTRIBUTE in each.attr for each in (*step, *_inner_nodes(raw, step)))


def _inner_nodes(raw: RawProgram, step: Graph) -> Iterator[NodeDef]:
    """The nodes of the functions of loops and branches."""
    return (inner for each in step for _, inner in raw.library.inner_nodes(each))


def _check_inputs(inputs: Sequence[Input]) -> None:
    for item in inputs:
        if item.dtype in ("resource", "variant"):
            raise UnsupportedError(f"input {item.name!r} has dtype {item.dtype}, which cannot be fed to workers")
        if item.split and item.shape is None:
            raise CaptureError(
                f"input {item.name!r} has unknown rank, so it cannot be split over the workers. Give its placeholder "
                f"a shape such as [None, ...], or list it in replicated= if every worker gets the whole array"
            )


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


def _step_counter(variables: Sequence[Variable], writes: dict[str, tuple[str, ...]]) -> str | None:
    for variable in variables:
        is_integer = variable.dtype.startswith(("int", "uint")) and variable.shape == ()
        if is_integer and variable.node in writes and variable.name.rpartition("/")[2] in _STEP_COUNTERS:
            return variable.name
    return None
