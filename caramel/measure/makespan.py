"""The time that ops take together: list scheduling on a number of threads."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from caramel.errors import InputError


def makespan(inputs: Mapping[str, Sequence[str]], op_s: Mapping[str, float], threads: int) -> float:
    """Seconds until the last op has ended.

    Whenever a thread is free it takes the op that has been ready for longest (of equals the first in ``inputs``),
    as TensorFlow's executor does.

    Args:
        inputs: names of the ops that an op waits for, by its name, producers first; names that are no key are no op.
        op_s: seconds of each op; 0 where it is missing.
        threads: number of ops that run at once.

    Returns:
        The seconds; 0 for no ops.

    Raises:
        InputError: fewer threads than one, or an op stands before one that it waits for.
    """
    if threads < 1:
        raise InputError(f"ops need at least one thread, got {threads}")
    position = {name: number for number, name in enumerate(inputs)}
    waits = {name: {p for p in producers if p in position} for name, producers in inputs.items()}
    readers: dict[str, list[str]] = {name: [] for name in inputs}
    for name, producers in waits.items():
        for producer in producers:
            if position[producer] >= position[name]:
                raise InputError(f"op {name!r} waits for {producer!r}, which comes after it: give producers first")
            readers[producer].append(name)
    missing = {name: len(producers) for name, producers in waits.items()}
    ready = [(0.0, position[name], name) for name, count in missing.items() if count == 0]
    heapq.heapify(ready)
    running: list[tuple[float, int, str]] = []
    now = 0.0
    while ready or running:
        while ready and len(running) < threads:
            _, number, name = heapq.heappop(ready)
            heapq.heappush(running, (now + op_s.get(name, 0.0), number, name))
        now, _, ended = heapq.heappop(running)
        for reader in readers[ended]:
            missing[reader] -= 1
            if missing[reader] == 0:
                heapq.heappush(ready, (now, position[reader], reader))
    return now
