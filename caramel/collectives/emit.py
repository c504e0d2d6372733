"""Emitting one all-reduce, whichever it is: a proved schedule, or TensorFlow's own collective op."""

from __future__ import annotations

from collections.abc import Sequence

from caramel.collectives.algorithms import NATIVE, Schedules
from caramel.collectives.lower import Lowered, OnSum, Request, lower
from caramel.collectives.native import is_on_gpus, lower_native


def emit_all_reduce(
    schedules: Schedules,
    algorithm: str,
    depth: int,
    request: Request,
    *,
    turn: int,
    instance: int,
    in_rank_order: bool = False,
    after: Sequence[str] = (),
    on_sum: OnSum | None = None,
) -> Lowered:
    """Emit the nodes of one all-reduce.

    Args:
        schedules: proved schedules that were made so far.
        algorithm: name of an all-reduce; to `NATIVE` depth, turn, in_rank_order and the wire mean nothing.
        depth: number of chunks.
        request: tensors to reduce.
        turn: number of the all-reduce, by which uneven work rotates among the ranks.
        instance: number of a native all-reduce, different for each in a graph; without effect on the others.
        in_rank_order: whether every sum must be the rank-order left fold.
        after: results of the native all-reduce before this one, if any. NCCL waits for ever if two workers start two
            of its collectives in different orders.
        on_sum: what each completed sum is replaced by, before all ranks get it; not with `NATIVE`.

    Returns:
        The nodes, and the reduced flat tensor of each rank.

    Raises:
        InputError: no such algorithm, or an argument is out of range.
        InvariantError: the schedule is wrong (a defect of this library), or does not add in rank order.
    """
    if algorithm == NATIVE:
        return lower_native(request, instance, after if is_on_gpus(request.devices) else ())
    schedule = schedules.proved(algorithm, request.workers, request.size, depth, turn, in_rank_order)
    return lower(schedule, request, on_sum)
