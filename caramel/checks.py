"""Checks of arguments that more than one module takes."""

from __future__ import annotations

import operator
from typing import Any

from caramel.errors import InputError


def positive_integer(value: Any, name: str) -> int:
    """The argument, as an int.

    Args:
        value: what was given; NumPy's integers are as good as Python's.
        name: what to call it in the error.

    Raises:
        InputError: it is no whole number of at least 1.

    >>> positive_integer(3, "depth")
    3
    """
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
    return number
