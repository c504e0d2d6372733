"""The star: one rank adds everything.

In the formulas n is the number of elements, N the number of workers, s_r the size of the shard of rank r (n / N if N
divides n).
"""

from __future__ import annotations

from caramel.collectives.all_reduce import AllReduce, Factors
from caramel.collectives.schedule import Builder, Schedule


def star(workers: int, size: int, turn: int = 0) -> Schedule:
    """One rank gathers everything, adds in rank order, and sends the sum to all: fewest messages.

    2 rounds and 2 (N-1) messages in all. The root sends (N-1) n elements in N-1 messages, the others
    n in 1. For small tensors, where a message costs more than its bytes; with as many chunks as
    ranks, each with another root, it becomes a shuffle.

    Args:
        workers: number of ranks N, at least 1.
        size: elements n of the tensor, at least 0.
        turn: number of the root, modulo N; different roots let several small transfers share the work.

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


def factors(workers: int, depth: int) -> Factors:
    """The cost of the star at its root; chunks share the work of a root.

    Args:
        workers: number of ranks N, at least 2.
        depth: number of chunks; they have different roots, which work at the same time.
    """
    others, owners = workers - 1, min(depth, workers)
    return Factors(2 * others, 2 * others / owners, others / owners)


STAR = AllReduce("star", star, factors, is_pipelined=True, has_two_rounds=True)
