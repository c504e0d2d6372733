"""What is found about a step once, whoever asks."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from caramel.model import Model

_Found = TypeVar("_Found")


def once_per_model(find: Callable[[Model], _Found]) -> Callable[[Model], _Found]:
    """A function that goes through a step's graph, and is called once for each Model: the result is kept with it.

    Args:
        find: the function; what it returns must not be changed.
    """
    key = f"_{find.__module__}.{find.__qualname__}"

    @wraps(find)
    def kept(model: Model) -> _Found:
        values = vars(model)
        if key not in values:
            values[key] = find(model)
        found: _Found = values[key]
        return found

    return kept
