"""What the values of a step are where each worker has its part of every micro-batch; see `dealt`."""

from __future__ import annotations

from caramel.errors import CaptureError
from caramel.frontend.batch.domain import Examples, MicroBatches
from caramel.frontend.captured import RawProgram
from caramel.frontend.roles.tensor_reductions import Reductions


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


def dealt_outputs(raw: RawProgram, reductions: Reductions) -> tuple[tuple[str, int], ...]:
    """The results that have entries of all micro-batches, by name, with the axis along which these lie.

    Args:
        raw: the captured program.
        reductions: analysis of how tensors reduce over the batch.
    """
    count = raw.dealing.micro_batches
    if count == 1:
        return ()
    values = ((name, reductions.value_of(tensor)) for name, tensor in raw.outputs)
    return tuple((name, v.axis) for name, v in values if isinstance(v, Examples) and v.before == count)
