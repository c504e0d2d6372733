"""Programs that need values of the whole batch: changed so that they have them, to be assembled anew.

Source:
    Decision 16 (``docs/decisions/0016-collectives-in-the-forward-pass.md``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial

from caramel.errors import CaptureError, UnsupportedError
from caramel.frontend.batch.domain import Examples, mixed_by
from caramel.frontend.batch.elementwise import BATCH_NORMALISATION
from caramel.frontend.batch.tensor_gradients import pruned_with_differentiated
from caramel.frontend.captured import RawGradient, RawProgram
from caramel.frontend.roles import variable_classes
from caramel.frontend.roles.accumulation import Accumulation
from caramel.frontend.roles.asked_sums import is_settled
from caramel.frontend.roles.forward_search import GatherNeeded, Search
from caramel.frontend.roles.forward_sums import with_forward_sums
from caramel.frontend.roles.inner_sums import with_inner_sums
from caramel.frontend.roles.loss_reduction import reduce_program
from caramel.frontend.roles.needs import may_be_function_of_sums, written_by
from caramel.frontend.roles.step_gradients import differentiated_by, gradients_of, loss_of, step_of
from caramel.frontend.roles.tensor_reductions import Reductions, reductions_of
from caramel.graph.graph import Graph, data_texts, node_of
from caramel.model import Input, Reduction, VariableClass

_SAME_ENTRIES = frozenset({"Identity", "Cast", "Reshape", "Squeeze", "ExpandDims", "BroadcastTo", "StopGradient"})
"""Ops whose result has the entries of their input, in another shape or element type."""


def roles_of(
    raw: RawProgram,
    step: Graph,
    sums: Accumulation,
    used: Sequence[RawGradient],
    inputs: Sequence[Input],
    inside: Mapping[str, int],
) -> variable_classes.Roles | RawProgram:
    """The variables' classes; or a changed program to assemble anew, because an update depends on the loss.

    Args:
        raw: the captured program.
        step: the nodes of the step.
        sums: its gradients, and what adds them up over several steps.
        used: the same gradients, as they were captured.
        inputs: its inputs.
        inside: gradients that stay inside a loss, and in which call of a gradient function each was computed.

    Raises:
        UnsupportedError: what a variable is cannot be told, or it cannot be replicated.
        GatherNeeded: the examples of all workers are needed.
    """
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


def reduced(
    raw: RawProgram,
    graph: Graph,
    used: Sequence[RawGradient],
    inputs: Sequence[Input],
    roles: variable_classes.Roles,
    inside: Mapping[str, int],
) -> tuple[Reduction, Reductions] | RawProgram:
    """How the gradients are reduced, with the analysis; or a program with the sums over the workers that it needs.

    Args:
        raw: the captured program.
        graph: the nodes of the step and of its losses.
        used: its gradients.
        inputs: its inputs.
        roles: classes of its variables.
        inside: see `roles_of`.

    Raises:
        CaptureError: it cannot be told, and no sum helps.
        GatherNeeded: the examples of all workers are needed.
    """
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
    sum_of_all = partial(with_forward_sums, raw, _analyse(used, inputs, kinds), local_variables(kinds), refusal)
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
    ends = [node_of(tensor) for tensor in differentiated_by(raw, used)]
    shared, _ = _statistics_behind(graph, roles, ends)
    if not shared:
        return None
    writers = [writer for handle in shared for writer in roles.writes.get(handle, ())]
    summed = _search_for_updates(raw, used, inputs, roles, shared, refusal).with_updates(writers)
    return None if summed is raw else summed


def with_shared_state(
    raw: RawProgram,
    used: Sequence[RawGradient],
    inputs: Sequence[Input],
    roles: variable_classes.Roles,
    own: Sequence[str],
) -> RawProgram | None:
    """The program whose variables have the values of one device on all workers, where no loss reads them either.

    Args:
        raw: the captured program.
        used: its gradients.
        inputs: its inputs.
        roles: classes of its variables.
        own: handles of variables that each worker writes from its own examples.

    Returns:
        None where none of them can be shared.
    """
    left = list(own)
    while left:
        search = _search_for_updates(raw, used, inputs, roles, left, CaptureError("it is exact without"))
        writers = {handle: set(roles.writes.get(handle, ())) for handle in left}
        try:
            summed = search.with_updates([writer for each in writers.values() for writer in each])
        except GatherNeeded:
            summed = None
        if summed is not None:
            return None if summed is raw else summed
        those = [handle for handle in left if writers[handle].isdisjoint(search.unshared)]
        left = those if len(those) < len(left) else []
    return None


def beside_normalisation(
    raw: RawProgram, step: Graph, roles: variable_classes.Roles, reductions: Reductions, own: Sequence[str]
) -> list[str]:
    """Those of some variables that a normalisation of batches does not keep, or that are trainable.

    What it keeps stays each worker's, as what it divides by is.

    Args:
        raw: the captured program.
        step: the nodes of the step.
        roles: classes of its variables.
        reductions: analysis of how tensors reduce over the batch.
        own: handles of the variables that each worker writes from its own examples.
    """
    trained = {v.node for v in raw.variables if v.trainable}
    return [h for h in own if h in trained or not _is_of_normalisation(step, roles.writes.get(h, ()), reductions)]


def _is_of_normalisation(step: Graph, writers: Sequence[str], reductions: Reductions) -> bool:
    """Whether what some ops write is made of statistics by which TensorFlow or Keras normalise a batch."""
    waiting = [text for writer in writers for text in data_texts(step[writer])[1:]]
    seen: set[str] = set()
    while waiting:
        text = waiting.pop()
        name = node_of(text)
        if name in seen:
            continue
        seen.add(name)
        if step[name].op.startswith("FusedBatchNorm"):
            return True
        if isinstance(reductions.value_of(text), Examples):
            continue
        if _normalises(step, name):
            return True
        waiting += data_texts(step[name])
    return False


def _normalises(step: Graph, name: str) -> bool:
    """Whether a batch is normalised by what a node makes, perhaps in another shape or element type."""
    waiting = [name]
    seen: set[str] = set()
    while waiting:
        for reader in step.data_readers(waiting.pop()):
            if BATCH_NORMALISATION.search(reader):
                return True
            if step[reader].op in _SAME_ENTRIES and reader not in seen:
                seen.add(reader)
                waiting.append(reader)
    return False


def _search_for_updates(
    raw: RawProgram,
    used: Sequence[RawGradient],
    inputs: Sequence[Input],
    roles: variable_classes.Roles,
    shared: Sequence[str],
    refusal: CaptureError,
) -> Search:
    """The search for what makes some variables the same on all workers, which is taken to hold already."""
    kinds = {**roles.kinds, **dict.fromkeys(shared, VariableClass.HYPERPARAMETER)}
    return Search(raw, _analyse(used, inputs, kinds), (), refusal)


def _has_open_results(raw: RawProgram, reductions: Reductions) -> bool:
    """Whether a result of the step may be a function of sums over the examples, or have some in it."""
    values = [reductions.value_of(tensor) for tensor in raw.results]
    if raw.trains:
        return any(map(may_be_function_of_sums, values))
    values += [reductions.value_of(tensor) for tensor in written_by(raw)]
    return any(may_be_function_of_sums(value) or mixed_by(value) for value in values)


def local_variables(kinds: Mapping[str, VariableClass]) -> list[str]:
    """Handle nodes of the variables that have a value of their own on each worker.

    Args:
        kinds: class of each variable by its handle.
    """
    return [node for node, kind in kinds.items() if kind.is_local]


def _analyse(
    used: Sequence[RawGradient], inputs: Sequence[Input], kinds: Mapping[str, VariableClass]
) -> Callable[[RawProgram], tuple[Reductions, Sequence[str]]]:
    """The function that analyses a program with sums; see `caramel.frontend.roles.forward_search.Analyse`."""

    def analyse(program: RawProgram) -> tuple[Reductions, Sequence[str]]:
        losses = differentiated_by(program, used)
        roots = [*program.targets, *map(node_of, (*losses, *program.results)), *(node_of(g.tensor) for g in used)]
        graph = pruned_with_differentiated(program.graph, roots)
        return reductions_of(replace(program, graph=graph), used, (), inputs, kinds), losses

    return analyse


def with_gradients_summed(raw: RawProgram) -> RawProgram | None:
    """The program whose gradients inside losses are summed over the workers; None where they cannot be.

    Args:
        raw: the captured program.
    """
    if raw.reduction is not None or not raw.trains:
        return None
    step, used = step_of(raw, loss_of(raw, raw.gradients), raw.gradients)
    inputs = tuple(i for i in raw.inputs if i.node in step)
    gradients = gradients_of(used, raw, step)
    kinds = variable_classes.classify(step, raw.library, raw.variables, gradients, inputs, refuses=False).kinds
    return with_inner_sums(raw, inputs, kinds)
