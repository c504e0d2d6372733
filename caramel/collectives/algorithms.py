"""The all-reduce algorithms, as schedules for any number of workers and any size.

In the formulas n is the number of elements, N the number of workers, s_r the size of the shard of
rank r (n / N if N divides n). All are proved by `caramel.collectives.schedule.check`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from caramel.collectives.schedule import Algorithm, Builder, Proof, Schedule, check, cuts, in_chunks
from caramel.errors import InputError, InvariantError


def shuffle(workers: int, size: int, turn: int = 0) -> Schedule:
    """Every rank owns one shard, gathers it from all, adds in rank order, and sends the sum to all.

    2 rounds. Rank r sends n - s_r + (N-1) s_r elements, which is 2 (N-1) n / N if N divides n, in
    2 (N-1) messages (fewer where shards are empty).

    Args:
        workers: number of ranks N, at least 1.
        size: elements n of the tensor, at least 0.
        turn: the first rank that owns a shard; matters where there are fewer elements than ranks.

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


def star(workers: int, size: int, turn: int = 0) -> Schedule:
    """One rank gathers everything, adds in rank order, and sends the sum to all: fewest messages.

    2 rounds and 2 (N-1) messages in all. The root sends (N-1) n elements in N-1 messages, the others
    n in 1. For small tensors, where a message costs more than its bytes; with as many chunks as
    ranks, each with another root, it becomes a shuffle.

    Args:
        workers: number of ranks N, at least 1.
        size: elements n of the tensor, at least 0.
        turn: the root is rank ``turn`` modulo N, so that several small transfers share the work.

    Returns:
        The schedule; its sums are the rank-order left fold.

    Raises:
        InputError: workers < 1 or size < 0.

    Source:
        A parameter server on one of the workers, in-graph; Caramel, section 2. The flat tree of
        Thakur, Rabenseifner and Gropp 2005.
    """
    builder = Builder(workers, size)
    root = turn % workers
    total = builder.add(root, [builder.take(rank, 0, size) for rank in range(workers)])
    return builder.schedule("star", [[builder.copy(rank, total)] for rank in range(workers)])


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


def chain(workers: int, size: int, turn: int = 0) -> Schedule:
    """The sum travels from rank 0 to the last rank, and the result back; a pipeline when cut in chunks.

    2 (N-1) rounds. Inner ranks send 2n elements in 2 messages, the first and the last n in 1.

    Args:
        workers: number of ranks N, at least 1.
        size: elements n of the tensor, at least 0.
        turn: has no effect, the ranks have the same roles in every turn.

    Returns:
        The schedule; its sums are the rank-order left fold.

    Raises:
        InputError: workers < 1 or size < 0.

    Source:
        The pipelined chain of reduce and broadcast; Thakur, Rabenseifner and Gropp 2005, section 4.
    """
    builder = Builder(workers, size)
    value = builder.take(0, 0, size)
    for rank in range(1, workers):
        value = builder.add(rank, [value, builder.take(rank, 0, size)])
    results = {workers - 1: value}
    for rank in reversed(range(workers - 1)):
        value = builder.copy(rank, value)
        results[rank] = value
    return builder.schedule("chain", [[results[rank]] for rank in range(workers)])


def core_size(workers: int) -> tuple[int, tuple[int, ...]]:
    """The largest number 2^a 3^b that is at most ``workers``, and its factors.

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


ALGORITHMS: dict[str, Algorithm] = {
    "shuffle": shuffle,
    "star": star,
    "ring": ring,
    "halving_doubling": halving_doubling,
    "chain": chain,
}
"""By name, in the order in which ties are broken."""

NATIVE = "native"
"""Name of the choice, beside those in `ALGORITHMS`: TensorFlow's own CollectiveReduceV2, which is no schedule."""

ALL_GATHER = "all_gather"
"""What sparse gradients travel by; there is no choice."""

CHOICES = (*ALGORITHMS, NATIVE)
"""Whatever can be chosen, in the order in which ties are broken."""

FEW_ROUNDS = ("shuffle", "star")
"""Those with two rounds, however many workers there are."""

ONE_SENDER = ("ring", NATIVE)
"""Those in which a worker receives from the same one all the time, in every transfer: transfers that are under way at
once never meet on a link that they do not share from end to end."""


def check_algorithm(name: object, among: Collection[str] = CHOICES) -> None:
    """Check the name of an algorithm.

    Args:
        name: what was given.
        among: those that there are.

    Raises:
        InputError: it is none of them.
    """
    if name not in tuple(among):
        raise InputError(f"there is no all-reduce algorithm {name!r}; there are {', '.join(among)}")


class Schedules:
    """Proved schedules, each made and checked once however many transfers use it."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int, int, int, int], tuple[Schedule, Proof]] = {}

    def proved(
        self, algorithm: str, workers: int, size: int, depth: int, turn: int = 0, in_rank_order: bool = False
    ) -> Schedule:
        """The schedule of an all-reduce.

        Args:
            algorithm: a name in `ALGORITHMS`.
            workers: number of ranks, at least 1.
            size: elements of the tensor, at least 0.
            depth: number of chunks, at least 1.
            turn: number of the transfer, so that uneven work goes around.
            in_rank_order: whether every sum must be the rank-order left fold.

        Raises:
            InputError: no such algorithm, or an argument is out of range.
            InvariantError: the schedule is wrong (a defect of this library), or does not add in rank order.
        """
        check_algorithm(algorithm, ALGORITHMS)
        key = (algorithm, workers, size, depth, turn % max(workers, 1))
        if key not in self._made:
            made = in_chunks(ALGORITHMS[algorithm], workers, size, depth, turn)
            self._made[key] = made, check(made)
        schedule, proof = self._made[key]
        if in_rank_order and not proof.is_rank_order_fold:
            raise InvariantError(f"the {algorithm} of {size} elements over {workers} ranks does not add in rank order")
        return schedule
