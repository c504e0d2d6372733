"""Cuts of a number of elements into ranges."""

from __future__ import annotations


def balanced(size: int, parts: int) -> tuple[tuple[int, int], ...]:
    """Cut ``size`` elements into ``parts`` ranges (start, size) whose sizes differ by at most one.

    >>> balanced(10, 4)
    ((0, 3), (3, 3), (6, 2), (8, 2))
    """
    whole, remainder = divmod(size, parts)
    ranges, start = [], 0
    for number in range(parts):
        length = whole + (1 if number < remainder else 0)
        ranges.append((start, length))
        start += length
    return tuple(ranges)
