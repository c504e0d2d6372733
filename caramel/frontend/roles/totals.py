"""Variables to which a step only adds: sums over the examples, as metrics count them.

Each worker adds up its own examples, in a variable that is zero at first on all workers but one. The sum over the
workers is then what one device would have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from caramel.frontend.batch.domain import Examples, Independent, Total, Unknown, is_invariant, mixed_by
from caramel.frontend.roles.tensor_reductions import Reductions
from caramel.graph.graph import Graph, behind_identities, node_of
from caramel.graph.guards import guards_of
from caramel.model import Addend, Gradient

_ADDING_OPS = ("AddV2", "Add")

_SCATTER_ADDS = ("ResourceScatterAdd", "ResourceScatterNdAdd", "TensorScatterAdd")
"""Ops that add updates, their last input, at places, the input before."""


def addends_of(
    step: Graph,
    variables: Sequence[str],
    writes: Mapping[str, Sequence[str]],
    gradients: Sequence[Gradient],
    reductions: Reductions,
    kind: str,
) -> dict[str, tuple[Addend, ...]]:
    """What a step adds to the variables to which it does nothing else, by their handle nodes.

    Means over the examples must be weighted by the workers' numbers of examples, which no sum of gradients is.

    Args:
        step: nodes of the step.
        variables: handle nodes of the variables that each worker writes from its own examples.
        writes: names of the ops that write each variable, by its handle node.
        gradients: gradients to aggregate; a variable on which one depends is left out.
        reductions: analysis of how tensors reduce over the batch.
        kind: reduction of the gradients, ``"mean"`` or ``"sum"``.
    """
    learning = step.ancestors([node_of(g.tensor) for g in gradients], control=False)
    guards = guards_of(step).by_node
    owner = {writer: handle for handle, writers in writes.items() for writer in writers}
    found = {}
    for handle in variables:
        if any(guards[writer] for writer in writes.get(handle, ())):
            continue  # what a branch does not add must not be weighted
        addends = [_addend(step, handle, writer, reductions) for writer in writes.get(handle, ())]
        known = [each for each in addends if each is not None and (each.reduction == "sum" or kind == "mean")]
        is_sum = known and len(known) == len(addends) and handle not in learning
        if is_sum and all(owner.get(node, handle) == handle for node in _behind(step, handle)):
            found[handle] = tuple(known)
    return found


def mixed_addends(
    step: Graph, variables: Sequence[str], writes: Mapping[str, Sequence[str]], reductions: Reductions
) -> dict[str, str]:
    """Variables to which a step adds something for which examples were brought together, with what does that.

    Args:
        step: nodes of the step.
        variables: handle nodes of variables that each worker writes from its own examples.
        writes: names of the ops that write each variable, by its handle node.
        reductions: analysis of how tensors reduce over the batch.
    """
    found: dict[str, str] = {}
    for handle in variables:
        added = [added_to(step, handle, writer) for writer in writes.get(handle, ())]
        values = [reductions.value_of(each[2]) for each in added if each is not None]
        causes = [value.why for value in values if isinstance(value, Unknown) and not value.unmodelled]
        mixers = filter(None, map(mixed_by, values))
        causes += [f"{step[name].op} {name!r} uses statistics of the batch" for name in mixers]
        if causes:
            found[handle] = causes[0]
    return found


def _behind(step: Graph, handle: str) -> set[str]:
    """The nodes to which a variable's value goes; on a worker it is not that of one device."""
    seen, waiting = {handle}, [handle]
    while waiting:
        for reader in step.data_readers(waiting.pop()):
            if reader not in seen:
                seen.add(reader)
                waiting.append(reader)
    return seen


def _addend(step: Graph, handle: str, writer: str, reductions: Reductions) -> Addend | None:
    """What an op adds to a variable; None if it does something else."""
    added = added_to(step, handle, writer)
    if added is None:
        return None
    if step[added[0]].op in _SCATTER_ADDS:
        return _at_places(step, *added, reductions)
    return _of_examples(*added, reductions) or _counted(step, *added, reductions)


def added_to(step: Graph, handle: str, writer: str) -> tuple[str, int, str] | None:
    """The op that adds something to a variable, its input that does, and the tensor there; None if it does not.

    Args:
        step: nodes of the step.
        handle: handle node of the variable.
        writer: name of the op that writes it.
    """
    node = step[writer]
    if len(node.input) < 2 or node_of(node.input[0]) != handle:
        return None
    if node.op == "AssignAddVariableOp":
        return writer, 1, node.input[1]
    if node.op in _SCATTER_ADDS:
        return writer, 2, node.input[2]
    if node.op != "AssignVariableOp":
        return None
    adding = step[node_of(behind_identities(step, node.input[1]))]
    if adding.op in _SCATTER_ADDS and _is_read_of(step, adding.input[0], handle):
        return adding.name, 2, adding.input[2]
    if adding.op not in _ADDING_OPS:
        return None
    for position, other in ((0, 1), (1, 0)):
        if _is_read_of(step, adding.input[position], handle):
            return adding.name, other, adding.input[other]
    return None


def _is_read_of(step: Graph, text: str, handle: str) -> bool:
    """Whether an input is the value of a variable."""
    read = step[node_of(behind_identities(step, text))]
    return read.op == "ReadVariableOp" and node_of(read.input[0]) == handle


def _of_examples(consumer: str, position: int, tensor: str, reductions: Reductions) -> Addend | None:
    value = reductions.value_of(tensor)
    if isinstance(value, Independent) and value.power == 1:  # the number of examples
        return Addend(consumer, position, tensor, "sum")
    if isinstance(value, Total) and not value.mixed_by and value.power in (0, -1):
        return Addend(consumer, position, tensor, "sum" if value.power == 0 else "mean")
    return None


def _at_places(step: Graph, consumer: str, position: int, tensor: str, reductions: Reductions) -> Addend | None:
    """What each example adds at a place that follows from it."""
    places, data = (reductions.value_of(text) for text in (step[consumer].input[position - 1], tensor))
    if not all(isinstance(value, Examples) and value.axis == 0 and value.power == 0 for value in (places, data)):
        return None
    assert isinstance(places, Examples) and isinstance(data, Examples)
    is_plain = places.arrangement == data.arrangement and not (mixed_by(places) or mixed_by(data))
    return Addend(consumer, position, tensor, "sum") if is_plain else None


def _counted(step: Graph, consumer: str, position: int, tensor: str, reductions: Reductions) -> Addend | None:
    """Counts of numbers up to the largest that there is; the variable says how many counts there are."""
    counting = step[node_of(_behind_casts(step, tensor))]
    if counting.op != "DenseBincount" or counting.attr["binary_output"].b:
        return None
    values, weights = (reductions.value_of(counting.input[place]) for place in (0, 2))
    is_plain = isinstance(values, Examples) and values.axis == 0 and values.power == 0 and not values.repeated
    is_own = is_plain and is_invariant(weights) and not mixed_by(values)
    return Addend(consumer, position, tensor, "sum") if is_own else None


def _behind_casts(step: Graph, text: str) -> str:
    """The tensor that a tensor has the numbers of."""
    tensor = behind_identities(step, text)
    while step[node_of(tensor)].op == "Cast":
        tensor = behind_identities(step, step[node_of(tensor)].input[0])
    return tensor
