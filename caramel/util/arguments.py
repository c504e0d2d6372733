"""Checks of arguments that more than one module takes."""

from __future__ import annotations

import operator
from numbers import Real
from typing import Any

from caramel.errors import InputError


def whole_number(value: Any, name: str, least: int = 1) -> int:
    """The argument, as an int.

    Args:
        value: the argument; NumPy's integers are as good as Python's.
        name: noun for the argument in the error, such as ``"depth"``.
        least: least allowed value.

    Raises:
        InputError: the argument is no whole number of at least ``least``.

    >>> whole_number(3, "depth"), whole_number(0, "steps", 0)
    (3, 0)
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return number


def byte_count(value: Any, name: str, is_zero_allowed: bool = False) -> float:
    """The argument, as a float; infinity is allowed.

    Args:
        value: the argument, in bytes.
        name: noun for the argument in the error, such as ``"threshold_bytes"``.
        is_zero_allowed: whether the argument may be 0.

    Raises:
        InputError: the argument is no number, or too small.

    >>> byte_count(4096, "threshold_bytes"), byte_count(0, "threshold_bytes", is_zero_allowed=True)
    (4096.0, 0.0)
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not (value > 0 or (is_zero_allowed and value == 0)):
        least = "at least 0" if is_zero_allowed else "more than 0"
        raise InputError(f"{name} must be a number of bytes, {least}, got {value!r}")
    return float(value)
