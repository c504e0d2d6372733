"""Which transfers must have arrived before another one starts, so that few enough are under way at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from caramel.facts import FORWARD, InFlight


def awaited(sizes_bytes: Sequence[float], most: int | None, credit_bytes: float | None) -> list[tuple[int, ...]]:
    """For each transfer of a window the places of the earlier ones that must have arrived before it starts.

    A number of transfers: each waits for the one so many places before it. A credit in bytes: say all transfers lie
    one behind the other. Each byte waits for the one that lies the credit before it, and a transfer for all that its
    bytes wait for. So of all bytes at places that differ by multiples of the credit one is under way at a time: there
    are never more than the credit under way, in whatever order transfers arrive. A transfer of more than the credit
    waits for all before it. Where all have one size, and the credit is W times that, each waits for the one W places
    before it.

    Args:
        sizes_bytes: bytes of the transfers, in the order in which they are sent.
        most: number of transfers that may be under way at once; None for any.
        credit_bytes: bytes that may be under way at once; None for any.

    Returns:
        For each transfer places in the same order, ascending.

    Source:
        ByteScheduler, section 4.2, as waits that do not depend on what happens.

    >>> awaited([4, 4, 4, 4], None, 8), awaited([4, 4, 4, 4], 3, None)
    ([(), (), (0,), (1,)], [(), (), (), (0,)])
    >>> awaited([1, 1, 6, 1, 20, 1], None, 8)
    [(), (), (), (0,), (1, 2, 3), (4,)]
    """
    waits: list[set[int]] = [set() for _ in sizes_bytes]
    if most is not None:
        for place in range(most, len(waits)):
            waits[place].add(place - most)
    if credit_bytes is not None:
        edges = list(accumulate(sizes_bytes, initial=0.0))
        first = 0
        for place, (start, end) in enumerate(pairwise(edges)):
            while first < place and edges[first + 1] <= start - credit_bytes:
                first += 1
            for earlier in range(first, place):
                if edges[earlier] >= end - credit_bytes:
                    break
                if sizes_bytes[earlier] > 0:
                    waits[place].add(earlier)
    return [tuple(sorted(each)) for each in waits]


def awaited_in_windows(
    windows: Sequence[str], sizes_bytes: Sequence[float], in_flight: InFlight
) -> list[tuple[int, ...]]:
    """`awaited` of all transfers: each window has its own limits, and waits for its own transfers only.

    Args:
        windows: window of each transfer; those of the forward window come first.
        sizes_bytes: bytes of each transfer on the wire.
        in_flight: limits of the windows.
    """
    firsts = sum(window == FORWARD for window in windows)
    forward = awaited(sizes_bytes[:firsts], in_flight.forward, in_flight.credit_bytes)
    backward = awaited(sizes_bytes[firsts:], in_flight.backward, in_flight.credit_bytes)
    return forward + [tuple(firsts + place for place in places) for places in backward]
