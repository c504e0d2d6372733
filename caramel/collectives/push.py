"""Pushes: gradients of all workers, added up on a device that is none of theirs."""

from __future__ import annotations

from collections.abc import Sequence

from caramel.collectives.lower import Emitter
from caramel.graph.graph import NodeDef


def lower_push(
    *, prefix: str, sources: Sequence[str], devices: Sequence[str], server: str, dtype: str, mean: bool
) -> tuple[list[tuple[NodeDef, int]], str]:
    """Emit the sum over the workers of a tensor, or their mean, on a server, in rank order.

    The bits are those of an all-reduce in rank order: where float16 is added up, a mean begins to be divided before,
    so that no sum is too large.

    Args:
        prefix: scope of the new nodes.
        sources: tensor of each worker, all of one shape.
        devices: device string of each worker.
        server: device string of the server.
        dtype: element type.
        mean: whether the sum is divided by the number of workers.

    Returns:
        Pairs of a node and its rank, where the server counts as one more worker; and the tensor on the server.
    """
    workers = len(sources)
    emitter = Emitter(prefix, [*devices, server], dtype)
    divisor: float = workers
    if mean and dtype == "float16" and workers > 1:
        power = 1 << (workers - 1).bit_length()
        sources = [emitter.divided(rank, f"share_{rank}", source, power) for rank, source in enumerate(sources)]
        divisor = workers / power
    total = emitter.identity(workers, "first", sources[0])
    for rank, source in enumerate(sources[1:], start=1):
        total = emitter.added(workers, f"sum_{rank}", [total, source])
    if mean and divisor != 1:
        total = emitter.divided(workers, "mean", total, divisor)
    return emitter.out.nodes, total
