"""Shuffle: every rank owns one shard, gathers it from all, adds, and sends the sum back.

A direct reduce-scatter followed by a direct all-gather (Dean & Ghemawat 2008's shuffle, as Caramel's
section 2 names it). Each rank sends its N-1 foreign shards and then its own sum N-1 times.
"""

from __future__ import annotations

from caramel.collectives.schedule import Schedule, Step, balanced
from caramel.errors import InputError


def shuffle(workers: int, size: int) -> Schedule:
    """Schedule of a shuffle all-reduce that adds in rank order.

    Rank r owns shard r of the balanced cut into N shards of about n / N elements. Messages sent by
    each rank: 2(N-1) (fewer where shards are empty). Elements sent by rank r:
    (n - s_r) + (N-1) s_r, with s_r the size of its shard; 2 (N-1) n / N if N divides n.

    Args:
        workers: number of ranks N, at least 1.
        size: elements n of the tensor, at least 0.

    Returns:
        The schedule; its sums are the rank-order left fold.

    Raises:
        InputError: workers < 1 or size < 0.

    Source:
        Caramel, sections 2 and 6.3.
    """
    if workers < 1:
        raise InputError(f"a collective needs at least 1 worker, got {workers}")
    if size < 0:
        raise InputError(f"a collective needs a size of at least 0 elements, got {size}")
    chunks = balanced(size, workers)
    steps: list[Step] = []
    taken: dict[tuple[int, int], int] = {}
    for rank in range(workers):
        for chunk in range(workers):
            taken[rank, chunk] = len(steps)
            steps.append(Step(rank, chunk, "take"))
    sums = []
    for owner in range(workers):
        sums.append(len(steps))
        steps.append(Step(owner, owner, "add", tuple(taken[rank, owner] for rank in range(workers))))
    results: list[tuple[int, ...]] = []
    for rank in range(workers):
        row = []
        for owner in range(workers):
            if owner == rank:
                row.append(sums[owner])
            else:
                row.append(len(steps))
                steps.append(Step(rank, owner, "copy", (sums[owner],)))
        results.append(tuple(row))
    return Schedule("shuffle", workers, size, chunks, tuple(steps), tuple(results))
