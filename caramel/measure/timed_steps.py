"""Steps of a session with the time of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from caramel.runtime.session import Session

Batches = Callable[[int], Iterable[Any]]
"""Function that gives so many batches."""


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
