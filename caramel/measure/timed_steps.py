"""Steps of a session with the time of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle, islice
from typing import Any

from caramel.errors import InputError
from caramel.runtime.session import Session
from caramel.util.arguments import shown

Batches = Callable[[int], Iterable[Any]]
"""Function that gives so many batches."""


def as_batches(given: Batches | Sequence[Any] | None) -> Batches | None:
    """What gives batches, from what a caller has.

    Args:
        given: a function that gives so many, or a list of some, which starts again at its end; None for data on the
            workers.

    Raises:
        InputError: it is something else, or an empty list.

    >>> as_batches(lambda count: [0] * count)(3)
    [0, 0, 0]
    >>> list(as_batches(["a", "b"])(3))
    ['a', 'b', 'a']
    """
    if given is None or callable(given):
        return given
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise InputError(f"batches is a list of batches, or a function that gives so many, got {shown(given)}")
    return lambda count: islice(cycle(given), count)


def timed_steps(
    session: Session, batches: Batches | None, steps: int, on_step: Callable[[int], None] = lambda done: None
) -> list[float]:
    """Run steps; the seconds of each, from the end of the one before.

    Args:
        session: session that trains.
        batches: function that gives so many batches, for inputs that are fed; None for data on the workers.
        steps: number of steps.
        on_step: is called after each with the number of those that are done.

    Raises:
        CaramelError: a step fails, or there are fewer batches.
    """
    times_s: list[float] = []
    before = time.perf_counter()

    def note(_: Any) -> None:
        nonlocal before
        now = time.perf_counter()
        times_s.append(now - before)
        before = now
        on_step(len(times_s))

    session.run(None if batches is None else batches(steps), steps, on_step=note, progress=False)
    return times_s
