"""The shuffle: every rank owns a shard.

In the formulas n is the number of elements, N the number of workers, s_r the size of the shard of rank r (n / N if N
divides n).
"""

from __future__ import annotations

from caramel.collectives.all_reduce import AllReduce, Factors
from caramel.collectives.schedule import Builder, Schedule, cuts


def shuffle(workers: int, size: int, turn: int = 0) -> Schedule:
    """Every rank owns one shard, gathers it from all, adds in rank order, and sends the sum to all.

    2 rounds. Rank r sends n - s_r + (N-1) s_r elements, which is 2 (N-1) n / N if N divides n, in
    2 (N-1) messages (fewer where shards are empty).

    Args:
        workers: number of ranks N, at least 1.
        size: elements n of the tensor, at least 0.
        turn: number of the first rank that owns a shard, modulo N; it matters where elements are fewer than ranks.

    Returns:
        The schedule; its sums are the rank-order left fold.

    Raises:
        InputError: workers < 1 or size < 0.

    Source:
        Caramel, sections 2 and 6.3; the direct algorithm for reduce-scatter and all-gather.
    """
    builder = Builder(workers, size)
    shards = cuts(size, workers)
    sums = []
    for shard, (start, length) in enumerate(shards):
        owner = (shard + turn) % workers
        sums.append(builder.add(owner, [builder.take(rank, start, length) for rank in range(workers)]))
    return builder.schedule("shuffle", [[builder.copy(rank, value) for value in sums] for rank in range(workers)])


def factors(workers: int, depth: int) -> Factors:
    """The cost of the shuffle: both directions of a link carry (N-1) / N of the tensor twice.

    Args:
        workers: number of ranks N, at least 2.
        depth: number of chunks; they overlap and change nothing here.
    """
    others = workers - 1
    return Factors(2 * others, 2 * others / workers, others / workers)


SHUFFLE = AllReduce("shuffle", shuffle, factors, has_two_rounds=True)
