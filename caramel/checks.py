"""Checks of arguments that more than one module takes."""

from __future__ import annotations

import operator
from typing import Any

from caramel.errors import InputError


def whole_number(value: Any, name: str, least: int = 1) -> int:
    """The argument, as an int.

    Args:
        value: what was given; NumPy's integers are as good as Python's.
        name: what to call it in the error.
        least: what it must be at least.

    Raises:
        InputError: it is no whole number of at least so much.

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
