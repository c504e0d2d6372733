"""The ring: sums travel around it twice.

In the formulas n is the number of elements, N the number of workers, s_r the size of the shard of rank r (n / N if N
divides n).
"""

from __future__ import annotations

from caramel.collectives.all_reduce import AllReduce, Factors
from caramel.collectives.schedule import Builder, Schedule, cuts


def ring(workers: int, size: int, turn: int = 0) -> Schedule:
    """Sums travel around the ring once to be completed, and once more to reach everybody.

    2 (N-1) rounds. Rank r sends 2n - s_{r+1} - s_{r+2} elements (indices modulo N), which is
    2 (N-1) n / N if N divides n, in 2 (N-1) messages (fewer where shards are empty).

    Args:
        workers: number of ranks N, at least 1.
        size: elements n of the tensor, at least 0.
        turn: has no effect, the ranks have the same roles in every turn.

    Returns:
        The schedule. The order of additions differs from shard to shard.

    Raises:
        InputError: workers < 1 or size < 0.

    Source:
        Patarasu and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009;
        the bucket algorithm of Barnett et al., 1994.
    """
    builder = Builder(workers, size)
    results: list[dict[int, int]] = [{} for _ in range(workers)]
    for shard, (start, length) in enumerate(cuts(size, workers)):
        value = builder.take(shard, start, length)
        for step in range(1, workers):
            rank = (shard + step) % workers
            value = builder.add(rank, [value, builder.take(rank, start, length)])
        owner = (shard + workers - 1) % workers
        results[owner][shard] = value
        for step in range(1, workers):
            rank = (owner + step) % workers
            value = builder.copy(rank, value)
            results[rank][shard] = value
    return builder.schedule("ring", [[row[shard] for shard in range(workers)] for row in results])


def factors(workers: int, depth: int) -> Factors:
    """The cost of the ring: every link carries (N-1) / N of the tensor twice.

    Args:
        workers: number of ranks N, at least 2.
        depth: number of chunks; they overlap and change nothing here.
    """
    others = workers - 1
    return Factors(2 * others, 2 * others / workers, others / workers)


RING = AllReduce("ring", ring, factors, has_one_sender=True)
