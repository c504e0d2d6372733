"""Gradient functions of the program's own (`tf.custom_gradient`), which no analysis of the loss looks at."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from caramel.errors import CaptureError
from caramel.frontend.attributes import CUSTOM_ATTRIBUTE, UPSTREAM_ATTRIBUTE, own_results_at, scope_of
from caramel.frontend.batch.domain import Examples, Statistic, Total, Unknown, is_everywhere, is_invariant
from caramel.frontend.roles.tensor_reductions import Reductions
from caramel.graph.graph import Graph, NodeDef, data_texts


def refuse_mixed_gradients(step: Graph, reductions: Reductions, losses: Sequence[str]) -> None:
    """Refuse gradient functions of the program's own that multiply gradients by a sum over the batch, or the like.

    Args:
        step: nodes of the step.
        reductions: the analysis of the program.
        losses: tensors that are differentiated.

    Raises:
        CaptureError: there is one, whose sum, or number of examples, is that of a worker's part.
    """
    own = [node for node in step if CUSTOM_ATTRIBUTE in node.attr]
    if not own:
        return
    known = [loss for loss in losses if reductions.has(loss)]
    powers = {value.power for value in map(reductions.value_of, known) if isinstance(value, (Examples, Total))}
    power = min(powers) if len(powers) == 1 else Fraction(0)
    plain = _plain_upstream(step, reductions, power)
    if plain:
        reductions = reductions.assuming(plain)
    assumed = {_call_of(step[name], UPSTREAM_ATTRIBUTE) for name in plain}
    for node in own:
        value = reductions.value_of(node.name)
        expected = {power} if _call_of(node, CUSTOM_ATTRIBUTE) in assumed else powers
        if isinstance(value, (Examples, Total)) and expected and value.power not in expected:
            raise CaptureError(
                f"the gradient {node.name!r}, which comes from a tf.custom_gradient, is multiplied with the number of "
                "examples or divided by it; each worker would take that of its own part. Let the function do without "
                "it, or train with one worker"
            )
        mixing = _mixing_op(step, reductions, node.name)
        if mixing is not None:
            raise CaptureError(
                f"{step[mixing].op} {mixing!r} puts a sum or mean over the batch into a gradient that comes from a "
                "tf.custom_gradient; each worker would have that of its own part. Let the function do without it, or "
                "train with one worker"
            )


def _plain_upstream(step: Graph, reductions: Reductions, power: Fraction) -> dict[str, Examples | Total]:
    """Gradients that enter gradient functions of the program's own, by the node, as if only examples were behind them.

    Only those of which nothing is known, as behind a normalisation of batches, whose mixing is not the functions'.

    Args:
        step: nodes of the step.
        reductions: the analysis of the program.
        power: power of the number of examples that they then have.
    """
    results: dict[tuple[int, int], list[str]] = {}  # several of a function that is called several times
    for node in step:
        for number, place, tensor in own_results_at(node):
            results.setdefault((number, place), []).append(tensor)
    found: dict[str, Examples | Total] = {}
    for node in step:
        if UPSTREAM_ATTRIBUTE not in node.attr:
            continue
        number, place = node.attr[UPSTREAM_ATTRIBUTE].list.i
        entering = reductions.value_of(node.name)
        values = {reductions.value_of(tensor) for tensor in results.get((number, place), ())}
        is_known = isinstance(entering, (Examples, Total)) and not entering.mixed_by
        if is_known or len(values) != 1:
            continue
        (value,) = values
        if isinstance(value, Examples) and not value.chosen:
            found[node.name] = Examples(value.axis, power, value.before, value.after)
        elif is_invariant(value):
            found[node.name] = Total(power)
    return found


def _call_of(node: NodeDef, attribute: str) -> tuple[int, str]:
    """The number of the call that a mark is of, and where it was inlined."""
    return node.attr[attribute].list.i[0], scope_of(node)


def _mixing_op(step: Graph, reductions: Reductions, tensor: str) -> str | None:
    """The op that makes a tensor out of sums over the batch and other values of the examples, if one does."""
    value = reductions.value_of(tensor)
    if isinstance(value, Examples):
        return value.mixed_by or None
    if not isinstance(value, Unknown) or value.unmodelled or value.node not in step:
        return None
    values = [reductions.value_of(text) for text in data_texts(step[value.node])]
    has_sum = any(isinstance(each, (Total, Statistic)) for each in values)
    return value.node if has_sum and sum(not is_everywhere(each) for each in values) > 1 else None
