"""Building graphs of hundreds of thousands of nodes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_gc() -> Iterator[None]:
    """Pause Python's garbage collector while many objects are made that all stay.

    The collector would look at all of them again and again: at 64 workers that took a third of the time of building,
    and made the time of a node grow with the number of nodes.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
