"""How a program's losses reduce over the batch: they are means over the examples, or sums.

Where that cannot be told of a loss, the caller has to say it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from caramel.errors import CaptureError
from caramel.frontend.captured import RawGradient, RawProgram
from caramel.frontend.roles.tensor_reductions import NOT_FOLLOWED, Reductions, reductions_of
from caramel.model import Input, Reduction, VariableClass

_CUTS = re.compile(r"(StridedSlice|Slice|SplitV?|Reshape) '")
"""Beginning of a reason that names an op which cuts the batch."""


def reduce_program(
    raw: RawProgram,
    used: Sequence[RawGradient],
    inside: Mapping[str, int],
    inputs: Sequence[Input],
    kinds: Mapping[str, VariableClass],
) -> tuple[Reduction, Reductions]:
    """Find how a program's gradients are reduced.

    Args:
        raw: the captured program.
        used: gradients to aggregate.
        inside: number of the call, by tensor, of the gradients that stay as they are inside a later loss.
        inputs: inputs that the step needs.
        kinds: class of each variable, by its handle node.

    Returns:
        The reduction of the gradients, and the analysis, for other tensors of the program.

    Raises:
        CaptureError: the reduction cannot be told, or the caller's does not hold.
    """
    given = raw.reduction
    if given not in (None, "mean", "sum"):
        raise CaptureError(f"loss_reduction must be 'mean' or 'sum', got {given!r}")
    reductions = reductions_of(raw, used, inside, inputs, kinds)
    inner_calls = set(inside.values())
    reasons: dict[str, str] = {}
    alike: list[str] = []  # losses that are the same on all workers, so that any mean of their gradients is theirs
    for call in sorted(inner_calls if given else {g.call for g in used} | inner_calls):
        losses = raw.targets_of(call)
        for loss in losses:
            kind, reason = reductions.reduction_of(loss)
            kind = kind or given
            if kind is None and call not in inner_calls and reductions.is_the_same(loss):
                alike.append(loss)
                continue
            if kind is None:
                is_of_a_part = reductions.is_of_a_part(loss)
                raise _untold(reason, is_of_a_part=is_of_a_part, is_graph=raw.is_graph)
            reasons[kind] = reason
            for tensor, number in inside.items():
                if number == call:
                    reductions.assume(tensor, kind)
        if given is None and not losses:
            reasons |= _reasons_inside(reductions, [g for g in used if g.call == call])
    if given is not None:
        if reasons.keys() - {given}:
            raise CaptureError(f"loss_reduction={given!r} does not hold inside the loss: {'; '.join(reasons.values())}")
        losses = [tensor for call in {g.call: None for g in used} for tensor in raw.targets_of(call)]
        if raw.forward_sums and not raw.is_alone:
            _check_sums(given, losses, reductions)
        return Reduction(given, _given_reason(given, reductions, losses)), reductions
    if alike and reasons.keys() != {"mean"}:
        raise _untold(reductions.reduction_of(alike[0])[1], is_of_a_part=True, is_graph=raw.is_graph)
    if not reasons:
        raise _untold(NOT_FOLLOWED)
    if len(reasons) != 1:
        raise CaptureError(
            "some losses are means over the batch and some are sums "
            f"({'; '.join(reasons.values())}): say loss_reduction='mean' or 'sum'"
        )
    ((kind, reason),) = reasons.items()
    return Reduction(kind, reason), reductions


def _check_sums(given: str, losses: Sequence[str], reductions: Reductions) -> None:
    """Check what the caller has said of losses that use sums over all workers, for which the program asks itself.

    Raises:
        CaptureError: it does not hold: such a program means its loss to be that of all workers.
    """
    for kind, reason in map(reductions.reduction_of, losses):
        if kind not in (None, given):
            raise CaptureError(f"loss_reduction={given!r} does not hold: {reason}, and asks for sums over all workers")


def _reasons_inside(reductions: Reductions, gradients: Sequence[RawGradient]) -> Mapping[str, str]:
    """How the losses reduce whose gradients a loop adds up, as reason by kind.

    Raises:
        CaptureError: that cannot be told.
    """
    reasons: dict[str, str] = {}
    for gradient in gradients:
        for loss in gradient.losses_inside or [""]:
            kind, reason = reductions.reduction_inside(gradient.tensor, loss)
            if kind is None:
                raise _untold(reason)
            reasons[kind] = reason
    return reasons


def _given_reason(given: str, reductions: Reductions, losses: Sequence[str]) -> str:
    """What the caller said, and what follows where that is not what the program says by itself."""
    others = [reason for kind, reason in map(reductions.reduction_of, losses) if kind != given]
    if not others:
        return "given by loss_reduction="
    return f"given by loss_reduction=, so that each worker's gradients are those of its own part, though {others[0]}"


def _untold(reason: str, *, is_of_a_part: bool = False, is_graph: bool = False) -> CaptureError:
    advice = (
        "With loss_reduction='mean' each worker trains on the loss of its own part of the batch, which is another, "
        "unless each example counts by itself"
        if is_of_a_part
        else "Where each example counts by itself, say loss_reduction='mean' (gradients are averaged over the workers) "
        "or 'sum' (they are added)"
    )
    if _CUTS.match(reason) and not is_of_a_part:
        advice = (
            "Micro-batches are exact as x[i * m : (i + 1) * m] with m = tf.shape(x)[0] // K and a constant K, by "
            "tf.split or tf.reshape(x, [K, -1, ...]), or as an axis of the inputs, [None, K, ...], from which the step "
            "takes x[:, i]. Only where it does not matter which of its own rows a worker takes so, say "
            "loss_reduction='mean' or 'sum'"
        )
    if is_of_a_part and is_graph:
        advice += ". If the loss compares examples, write it as a step function, which can be traced with all of them"
    error = CaptureError(f"cannot tell whether the loss is a mean or a sum over the batch: {reason}. {advice}")
    error.wants_reduction = True
    return error
