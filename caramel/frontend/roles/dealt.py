"""Steps that cut their batch into micro-batches: what they are where each worker has its part of every micro-batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from caramel.dealing import Dealing
from caramel.errors import CaptureError
from caramel.frontend.batch.micro_batches import Count, possible_counts
from caramel.frontend.captured import RawProgram
from caramel.frontend.roles.assemble import assemble
from caramel.frontend.roles.fixed_micro_batches import with_sizes_of_micro_batches
from caramel.frontend.roles.forward_search import GatherNeeded
from caramel.model import Model


def assemble_dealt(raw: RawProgram, examples: int | None) -> Model:
    """Work out the roles of a captured program, where need be with the rows of each micro-batch dealt to the workers.

    What the caller says of the loss does not say how the step cuts its batch: it must hold for the micro-batches, too.

    Args:
        raw: the captured program.
        examples: number of examples in every batch, of all workers together; None where it is not fixed.

    Raises:
        CaptureError: see `caramel.frontend.roles.assemble.assemble`.
        UnsupportedError: see there.
        GatherNeeded: the examples of all workers are needed; a batch that K does not divide can only be cut so.
    """
    if raw.reduction is not None:
        counts = _counts(raw)
        is_cut = bool(counts) and _is_refused(replace(raw, reduction=None))
        return (_dealt(raw, counts, examples, is_sure=True) if is_cut else None) or assemble(raw)
    try:
        return assemble(raw)
    except CaptureError as refusal:
        counts = _counts(raw)
        model = _dealt(raw, counts, examples, is_sure=True) or _cut_by_numbers(raw, examples)
        if model is None and not isinstance(refusal, GatherNeeded):
            model = _dealt(raw, counts, examples, is_sure=False)
        if model is None:
            raise
        return model


def assemble_divisible(raw: RawProgram, examples: int | None, refusal: CaptureError) -> Model:
    """The same for a step that is refused otherwise: all its batches must be multiples of its micro-batches.

    Args:
        raw: the captured program, without values of other workers.
        examples: number of examples in every batch, of all workers together; None where it is not fixed.
        refusal: why it is refused otherwise.

    Raises:
        CaptureError: that, where it cannot be so either.
    """
    model = _dealt(raw, _counts(raw), examples, is_sure=False)
    if model is None:
        raise refusal
    return model


def _cut_by_numbers(raw: RawProgram, examples: int | None) -> Model | None:
    """The model of a step that cuts batches of a fixed size by numbers of rows; None where that cannot be."""
    if examples is None or not _is_divided(raw):
        return None
    changed = with_sizes_of_micro_batches(raw, examples)
    return None if changed is None else _model_of(changed[0], Dealing(changed[1], rows=examples))


def _is_divided(raw: RawProgram) -> bool:
    """Whether workers train on parts of the batch."""
    return raw.trains and not raw.is_alone and any(i.split for i in raw.inputs)


def _dealt(raw: RawProgram, counts: Sequence[Count], examples: int | None, is_sure: bool) -> Model | None:
    """The model of a step whose workers have their part of each micro-batch; None where that cannot be.

    Args:
        raw: the captured program.
        counts: numbers of micro-batches to try.
        examples: number of examples in every batch; None where it is not fixed.
        is_sure: whether the step must run with any batch with which it runs on one device, or else with only some.
    """
    models = (_model_of(raw, dealing) for dealing in _dealings(counts, examples, is_sure))
    return next((model for model in models if model is not None), None)


def _model_of(raw: RawProgram, dealing: Dealing) -> Model | None:
    """The model of a step with a batch that is dealt so; None where it is not to be."""
    count = dealing.micro_batches
    note = f"the step cuts its batch into {count} micro-batches: each worker takes its rows of every one of them"
    if dealing.leaves_remainder:
        note += ", and the rows that are left over are nobody's, as on one device"
    try:
        model = assemble(replace(raw, dealing=dealing, reduction=None, notes=(*raw.notes, note)))
    except CaptureError:
        return None
    return model if raw.reduction in (None, model.reduction.kind) else None


def _counts(raw: RawProgram) -> Sequence[Count]:
    """The numbers of micro-batches into which the step may cut its batch; none where there is nothing to deal."""
    return possible_counts(raw.graph, raw.library, raw.row_constants) if _is_divided(raw) else ()


def _is_refused(raw: RawProgram) -> bool:
    try:
        assemble(raw)
    except CaptureError:
        return True
    return False


def _dealings(counts: Sequence[Count], examples: int | None, is_sure: bool) -> Iterator[Dealing]:
    for count in counts:
        if is_sure:
            yield Dealing(count.number, leaves_remainder=True)
        if examples is not None and examples % count.number:
            continue
        if is_sure == (count.must_divide or examples is not None):
            yield Dealing(count.number)
