"""What the values of a step are where each worker has its part of every micro-batch; see `dealt`."""

from __future__ import annotations

from caramel.errors import CaptureError, listed
from caramel.frontend.batch.domain import Examples, MicroBatches, Unknown, Value
from caramel.frontend.captured import RawProgram
from caramel.frontend.roles.tensor_reductions import Reductions
from caramel.graph.shapes import static_shape


def refuse_read_remainders(raw: RawProgram, reductions: Reductions) -> None:
    """Refuse a step that uses rows which no micro-batch has, or their number, where its workers do not get them.

    Args:
        raw: the captured program.
        reductions: analysis of how tensors reduce over the batch.

    Raises:
        CaptureError: it does.
    """
    if not raw.dealing.leaves_remainder:
        return
    given_back = [t for t in raw.results if isinstance(reductions.value_of(t), MicroBatches)]
    readers = [*given_back, *reductions.remainder_readers()]
    if readers:
        raise CaptureError(f"{readers[0]!r} uses the rows of the batch that no micro-batch has, or their number")


def dealt_outputs(raw: RawProgram, reductions: Reductions) -> tuple[tuple[str, int, int], ...]:
    """The results that have several batches, or parts of micro-batches, one after the other.

    Args:
        raw: the captured program.
        reductions: analysis of how tensors reduce over the batch.

    Returns:
        Their names, the axis along which these lie, and how many there are.
    """
    values = ((name, reductions.value_of(tensor)) for name, tensor in raw.outputs)
    known = ((name, v) for name, v in values if isinstance(v, Examples) and not v.chosen)
    return tuple((name, v.axis, v.before) for name, v in known if v.before is not None and v.before > 1)


def unordered_outputs(raw: RawProgram, reductions: Reductions) -> list[str]:
    """A note on results of which it is not known which entries are of which micro-batch.

    Args:
        raw: the captured program.
        reductions: analysis of how tensors reduce over the batch.
    """
    if raw.dealing.micro_batches == 1:
        return []
    names = [
        name
        for name, tensor in raw.outputs
        if _is_unordered(reductions.value_of(tensor)) and static_shape(raw.graph, tensor) != ()
    ]
    if not names:
        return []
    return [
        f"how the rows of the batch lie in the results {listed(names)} cannot be told: each worker's are in the order "
        "of its parts of the micro-batches, which need not be that of the batch"
    ]


def _is_unordered(value: Value) -> bool:
    """Whether it is not known which entries of a tensor are of which micro-batch."""
    if isinstance(value, Examples):
        return value.before is None or (bool(value.chosen) and value.before > 1)
    return isinstance(value, Unknown)
