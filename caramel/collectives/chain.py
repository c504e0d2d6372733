"""The chain: the sum travels to the last rank and back.

In the formulas n is the number of elements, N the number of workers, s_r the size of the shard of rank r (n / N if N
divides n).
"""

from __future__ import annotations

from caramel.collectives.all_reduce import AllReduce, Factors
from caramel.collectives.schedule import Builder, Schedule


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


def factors(workers: int, depth: int) -> Factors:
    """The cost of the chain as a pipeline.

    Args:
        workers: number of ranks N, at least 2.
        depth: number of chunks, which follow each other; an inner rank sends each of them twice, up and down.
    """
    others = workers - 1
    slots = 2 * others + (depth - 1) * min(others, 2)
    return Factors(slots, slots / depth, (others + depth - 1) / depth)


CHAIN = AllReduce("chain", chain, factors, is_pipelined=True)
