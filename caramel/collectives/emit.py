"""Emitting one all-reduce, whichever it is: a proved schedule, or TensorFlow's own collective op."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from caramel.collectives.algorithms import NATIVE, Schedules
from caramel.collectives.lower import Lowered, lower
from caramel.collectives.native import is_on_gpus, lower_native


def emit_all_reduce(
    schedules: Schedules,
    algorithm: str,
    depth: int,
    *,
    prefix: str,
    size: int,
    sources: Sequence[str],
    devices: Sequence[str],
    dtype: str,
    mean: bool,
    turn: int,
    instances: Iterator[int],
    in_rank_order: bool = False,
    wire: str | None = None,
    after: Sequence[str] = (),
) -> Lowered:
    """Emit the nodes of one all-reduce.

    Args:
        schedules: those made so far.
        algorithm: a name in `ALGORITHMS`, or `NATIVE`, to which depth, turn, in_rank_order and wire mean nothing.
        depth: number of chunks.
        prefix: scope of the new nodes.
        size: elements of the tensor.
        sources: the local, flat tensor of each rank.
        devices: the device of each rank.
        dtype: element type.
        mean: whether to divide the sum by the number of ranks.
        turn: number of the all-reduce, so that uneven work goes around.
        instances: gives a native all-reduce its number, different for each in a graph; not used by the others.
        in_rank_order: whether every sum must be the rank-order left fold.
        wire: element type of the messages, if another one.
        after: results of the native all-reduce before this one, if any. NCCL waits for ever if two workers start two
            of its collectives in different orders.

    Returns:
        The nodes, and the reduced flat tensor of each rank.

    Raises:
        InputError: no such algorithm, or an argument is out of range.
        InvariantError: the schedule is wrong (a defect of this library), or does not add in rank order.
    """
    if algorithm == NATIVE:
        return lower_native(
            prefix=prefix,
            size=size,
            sources=sources,
            devices=devices,
            dtype=dtype,
            mean=mean,
            instance=next(instances),
            after=after if is_on_gpus(devices) else (),
        )
    schedule = schedules.proved(algorithm, len(sources), size, depth, turn, in_rank_order)
    return lower(schedule, prefix=prefix, sources=sources, devices=devices, dtype=dtype, mean=mean, wire=wire)
