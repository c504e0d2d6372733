"""Pushes: gradients of all workers, added up on a device that is none of theirs."""

from __future__ import annotations

from collections.abc import Sequence

from caramel.collectives.lower import Emitter


def lower_push(emitter: Emitter, sources: Sequence[str], there: int, *, mean: bool) -> str:
    """Emit the sum over the workers of a tensor, or their mean, on a server, in rank order.

    The bits are those of an all-reduce in rank order: where float16 is added up, a mean begins to be divided before,
    so that no sum is too large.

    Args:
        emitter: collector of the nodes, with the devices of the workers first.
        sources: tensor of each worker, all of one shape.
        there: rank of the server.
        mean: whether the sum is divided by the number of workers.

    Returns:
        The tensor on the server.
    """
    workers = len(sources)
    divisor: float = workers
    if mean and emitter.dtype == "float16" and workers > 1:
        power = 1 << (workers - 1).bit_length()
        sources = [emitter.divided(rank, f"share_{rank}", source, power) for rank, source in enumerate(sources)]
        divisor = workers / power
    total = emitter.identity(there, "first", sources[0])
    for rank, source in enumerate(sources[1:], start=1):
        total = emitter.added(there, f"sum_{rank}", [total, source])
    if mean and divisor != 1:
        total = emitter.divided(there, "mean", total, divisor)
    return total
