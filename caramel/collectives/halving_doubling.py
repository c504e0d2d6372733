"""Recursive halving and doubling, for any number of ranks.

In the formulas n is the number of elements, N the number of workers, s_r the size of the shard of rank r (n / N if N
divides n).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from caramel.collectives.all_reduce import AllReduce, Factors
from caramel.collectives.schedule import Builder, Schedule, cuts


def core_size(workers: int) -> tuple[int, tuple[int, ...]]:
    """The largest number 2^a 3^b that is at most ``workers``, and its prime factors.

    >>> core_size(7), core_size(8)
    ((6, (2, 3)), (8, (2, 2, 2)))
    """
    best: int = 1
    factors: tuple[int, ...] = ()
    power_of_three, threes = 1, 0
    while power_of_three <= workers:
        value, twos = power_of_three, 0
        while value * 2 <= workers:
            value, twos = value * 2, twos + 1
        if value > best:
            best, factors = value, (2,) * twos + (3,) * threes
        power_of_three, threes = power_of_three * 3, threes + 1
    return best, factors


def halving_doubling(workers: int, size: int, turn: int = 0) -> Schedule:
    """Recursive halving to reduce and scatter, recursive doubling to gather; also by thirds.

    Let m = 2^a 3^b be the largest such number that is at most N. The first m ranks halve (or cut in
    three) their range a + b times: each keeps a part, sends the others, and adds what it receives.
    Then they double it again. The other N - m ranks send each of the m its shard at the start, in
    parallel with the halving, and receive the m sums in parallel with the doubling: that costs no
    round, where the standard pre- and post-step costs two and sends the whole tensor twice more.

    2 (a + b) rounds. With shards of the m ranks, rank r < m sends n - s_r elements to halve, the sum
    of (f - 1) R_l over the levels l to double (f parts, of which its own has R_l elements), and
    (N - m) s_r to the others: 2 (m-1) n / m + (N-m) n / m if m divides n. These are
    2 (a + 2b) + (N - m) messages. A rank r >= m sends n elements in m messages.

    Args:
        workers: number of ranks N, at least 1.
        size: elements n of the tensor, at least 0.
        turn: has no effect, the ranks have the same roles in every turn.

    Returns:
        The schedule. The order of additions is that of a tree.

    Raises:
        InputError: workers < 1 or size < 0.

    Source:
        Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH,
        2005, section 4.4, for powers of two.
    """
    builder = Builder(workers, size)
    core, factors = core_size(workers)
    shards = cuts(size, core)

    def span(first: int, count: int) -> tuple[int, int]:
        """Range of ``count`` shards."""
        start = shards[first][0]
        last = shards[first + count - 1]
        return start, last[0] + last[1] - start

    values, firsts = _halve(builder, core, factors, span)
    extras = range(core, workers)
    for rank in range(core):
        own = shards[firsts[rank]]
        if extras:
            values[rank] = builder.add(rank, [values[rank], *(builder.take(extra, *own) for extra in extras)])
    by_shard = {firsts[rank]: values[rank] for rank in range(core)}
    gathered = _double(builder, core, factors, values)
    results = [[gathered[rank]] for rank in range(core)]
    results += [[builder.copy(extra, by_shard[shard]) for shard in range(core)] for extra in extras]
    return builder.schedule("halving_doubling", results)


def _groups(core: int, factors: Sequence[int], level: int) -> tuple[int, int]:
    """(distance between partners, number of ranks that share a range) at a level."""
    stride = core
    for factor in factors[: level + 1]:
        stride //= factor
    return stride, stride * factors[level]


def _halve(
    builder: Builder, core: int, factors: Sequence[int], span: Callable[[int, int], tuple[int, int]]
) -> tuple[list[int], list[int]]:
    """The shard of each rank, summed over the core, and its number."""
    firsts = [0] * core
    values = [builder.take(rank, *span(0, core)) for rank in range(core)]
    for level, factor in enumerate(factors):
        stride, group = _groups(core, factors, level)
        parts: dict[tuple[int, int], int] = {}
        for rank in range(core):
            for piece in range(factor):
                parts[rank, piece] = builder.part(values[rank], *span(firsts[rank] + piece * stride, stride))
        for rank in range(core):
            piece = rank % group // stride
            partners = [rank + (other - piece) * stride for other in range(factor)]
            values[rank] = builder.add(rank, [parts[partner, piece] for partner in partners])
            firsts[rank] += piece * stride
    return values, firsts


def _double(builder: Builder, core: int, factors: Sequence[int], values: Sequence[int]) -> list[int]:
    """The whole tensor on each rank of the core."""
    current = list(values)
    for level in reversed(range(len(factors))):
        stride, group = _groups(core, factors, level)
        following = []
        for rank in range(core):
            piece = rank % group // stride
            partners = [rank + (other - piece) * stride for other in range(factors[level])]
            following.append(builder.join(rank, [current[partner] for partner in partners]))
        current = following
    return current


def factors(workers: int, depth: int) -> Factors:
    """The cost of halving and doubling for a rank of the core.

    Args:
        workers: number of ranks N, at least 2.
        depth: number of chunks; they overlap and change nothing here.
    """
    core, parts = core_size(workers)
    others = core - 1 + (workers - core)  # shards that a core rank receives, and later sends
    return Factors(2 * (sum(f - 1 for f in parts) + workers - core), 2 * others / core, others / core)


HALVING_DOUBLING = AllReduce("halving_doubling", halving_doubling, factors)
