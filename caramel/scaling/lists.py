"""Lists of numbers as people write them."""

from __future__ import annotations

from itertools import pairwise

from caramel.errors import InputError
from caramel.util.arguments import shown

_DOTS = "..."
_MOST = 10_000
"""Longest list: more numbers are a slip of the pen (our choice)."""
MOST_DIGITS = 12
"""Of a number that people mean."""


def parse_counts(text: str) -> list[int]:
    """Numbers with commas; three dots stand for those between, as the two numbers in front of them go on.

    >>> parse_counts("2,4,...,64")
    [2, 4, 8, 16, 32, 64]
    >>> parse_counts("4, 8, ..., 16, 100")
    [4, 8, 16, 100]
    >>> parse_counts("10,20,...,50")
    [10, 20, 30, 40, 50]

    Raises:
        InputError: it cannot be read, or does not ascend.
    """
    found: list[int] = []
    parts = [part.strip() for part in text.split(",")]
    for place, part in enumerate(parts):
        if part == _DOTS:
            if place < 2 or place + 1 >= len(parts) or _DOTS in (parts[place - 1], parts[place - 2], parts[place + 1]):
                raise InputError(f"cannot read {text!r}: three dots stand between numbers, as in 2,4,...,64")
            found += _between(found[-2], found[-1], _number(parts[place + 1], text), text)
        else:
            found.append(_number(part, text))
    if any(later <= earlier for earlier, later in pairwise(found)) or len(found) > _MOST:
        raise InputError(f"the numbers in {text!r} must ascend, and be at most {_MOST:,}")
    return found


def _number(part: str, text: str) -> int:
    if not part.isdecimal() or len(part) > MOST_DIGITS:
        raise InputError(
            f"cannot read {shown(part)} in {shown(text)}: write numbers with commas, as in 2,4,8 or 2,4,...,64"
        )
    return int(part)


def _between(first: int, second: int, last: int, text: str) -> list[int]:
    """What is between the second number and the last one: each as many times the one before, or as much more."""
    if 0 < first < second <= last:
        times = [(second // first, 0)] if second % first == 0 else []
        for factor, more in (*times, (1, second - first)):
            found, value = [first], first
            while value < last and len(found) <= _MOST:
                value = factor * value + more
                found.append(value)
            if value == last:
                return found[2:-1]
            if len(found) > _MOST:
                raise InputError(f"there are more than {_MOST:,} numbers in {text!r}")
    raise InputError(f"{first}, {second}, ... does not come to {last} in {text!r}")
