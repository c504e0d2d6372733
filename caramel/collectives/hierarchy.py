"""The hierarchy: workers of one host add among themselves first, so that a byte leaves the host once.

In the formulas n is the number of elements, N the number of workers, K that of a host, H = N / K that of hosts.
"""

from __future__ import annotations

import re
from functools import cache, partial
from itertools import pairwise

from caramel.collectives.all_reduce import AllReduce, Factors
from caramel.collectives.schedule import Builder, Schedule, cuts
from caramel.util.arguments import MOST_PREDICTED_WORKERS

_NAME = re.compile(r"hierarchy_([1-9]\d{0,5})")

NAME_FOR_PEOPLE = "hierarchy_K"
"""What the names of these algorithms look like; K is the number of workers of a host."""


def hierarchy(workers_on_host: int, workers: int, size: int, turn: int = 0) -> Schedule:
    """Reduce in each host, all-reduce between hosts, and gather in each host.

    On each host every worker owns a shard, and adds what the others of the host have of it. The owners of the same
    elements on different hosts then make a shuffle of them, and send the sums to the others of their hosts.

    4 rounds. A worker sends 2 (K-1) n / K elements in its host and 2 (H-1) n / N to other hosts, in 2 (K-1) and
    2 (H-1) messages, if all hosts have K workers and N divides n. So 2 (H-1) n / H leave a host, where a shuffle sends
    2 K (N-K) n / N.

    Args:
        workers_on_host: number of workers K of a host, at least 1. Ranks follow each other on hosts, and the last host
            has what is left.
        workers: number of workers N, at least 1.
        size: elements n of the tensor, at least 0.
        turn: number of the first worker of a host, and of the first host, that owns a part, modulo how many there are.

    Returns:
        The schedule. Its sums are sums of the hosts' sums: no rank-order left fold, unless there is one host, or one
        worker on each.

    Raises:
        InputError: workers < 1 or size < 0.

    Source:
        The two-level all-reduce of clusters of multiprocessors: Jia et al., Highly Scalable Deep Learning Training
        System with Mixed-Precision, 2018.
    """
    builder = Builder(workers, size)
    if size == 0:
        return builder.schedule(
            hierarchy_name(workers_on_host), [[builder.take(rank, 0, 0)] for rank in range(workers)]
        )
    hosts = [range(first, min(first + workers_on_host, workers)) for first in range(0, workers, workers_on_host)]
    owned = [_reduced_in_host(builder, host, size, turn) for host in hosts]
    edges = sorted({edge for pieces in owned for start, length, _ in pieces for edge in (start, start + length)})
    parts = [
        (first + start, length) for first, last in pairwise(edges) for start, length in cuts(last - first, len(hosts))
    ]
    sums = [
        _between_hosts(builder, [_part_of(builder, pieces, start, length) for pieces in owned], number + turn)
        for number, (start, length) in enumerate(parts)
    ]
    results: list[list[int]] = [[] for _ in range(workers)]
    for number, host in enumerate(hosts):
        for start, length, partial_sum in owned[number]:
            owner = builder.instructions[partial_sum].rank
            inside = [
                builder.copy(owner, value)
                for value, (first, count) in zip(sums, parts)
                if length and start <= first and first + count <= start + length
            ]
            if inside:
                whole = builder.join(owner, inside)
                for rank in host:
                    results[rank].append(builder.copy(rank, whole))
    return builder.schedule(hierarchy_name(workers_on_host), results)


def _reduced_in_host(builder: Builder, host: range, size: int, turn: int) -> list[tuple[int, int, int]]:
    """The shards of a host: first element, number of elements, and the sum over the host's workers."""
    pieces = []
    for shard, (start, length) in enumerate(cuts(size, len(host))):
        owner = host[(shard + turn) % len(host)]
        pieces.append((start, length, builder.add(owner, [builder.take(rank, start, length) for rank in host])))
    return pieces


def _part_of(builder: Builder, pieces: list[tuple[int, int, int]], start: int, length: int) -> int:
    """A host's sum of some elements, of which one worker of it owns all."""
    value = next(value for first, count, value in pieces if first <= start and start + length <= first + count)
    return builder.part(value, start, length)


def _between_hosts(builder: Builder, values: list[int], turn: int) -> int:
    """The sum of what each host has."""
    owner = builder.instructions[values[turn % len(values)]].rank
    return builder.add(owner, values)


def factors(workers_on_host: int, workers: int, depth: int) -> Factors:
    """The cost of the hierarchy where every worker has a link of its own.

    Args:
        workers_on_host: number of workers K of a host, at least 1.
        workers: number of workers N, at least 2.
        depth: number of chunks; they overlap and change nothing here.
    """
    on_host = min(workers_on_host, workers)
    hosts = -(-workers // on_host)
    inside, between = 1 - 1 / on_host, (1 - 1 / hosts) / on_host
    return Factors(2 * (on_host - 1 + hosts - 1), 2 * (inside + between), inside + between)


@cache
def named(name: str) -> AllReduce | None:
    """The algorithm for so many workers on a host as a name says, such as ``hierarchy_4``; None for another name."""
    match = _NAME.fullmatch(name)
    if match is None or not 2 <= int(match[1]) <= MOST_PREDICTED_WORKERS:
        return None
    on_host = int(match[1])
    return AllReduce(name, partial(hierarchy, on_host), partial(factors, on_host))


def hierarchy_name(workers_on_host: int) -> str:
    """The name of the algorithm for so many workers on a host."""
    return f"hierarchy_{workers_on_host}"


def workers_on_host_of(name: str) -> int | None:
    """The number of workers on a host in the name of such an algorithm; None for another name."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])
