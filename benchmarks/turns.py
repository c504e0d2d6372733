"""Contenders that take turns on hosts with emulated accelerators, so that all see the same machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from benchmarks.collectives import cluster
from benchmarks.testbed import Testbed
from benchmarks.testbed.cores import SharedCores
from benchmarks.testbed.shaping import LONG_BURST_BYTES, PAYLOAD
from caramel.errors import InvariantError

SETTLING_STEPS = 3
"""Of a contender that was just made."""

_LOSS_TOLERANCE = 1e-3
"""Relative."""


def open_hosts(opened: ExitStack, count: int, rate_bytes_per_s: float) -> Any:
    """Hosts of a new testbed, which share the processors; their servers compute on one thread per op.

    Args:
        opened: what closes them.
        count: number of hosts.
        rate_bytes_per_s: rate of each host's link, for what messages contain.

    Returns:
        `caramel.LocalProcesses` on them.

    Raises:
        UnavailableError: this machine allows none.
    """
    from caramel.runtime.host.run_options import RunOptions

    testbed = opened.enter_context(Testbed(count, rate_bytes_per_s / PAYLOAD, LONG_BURST_BYTES))
    opened.enter_context(SharedCores(testbed))
    return replace(cluster(count, testbed), options=RunOptions(intra_op_threads=1, inter_op_threads=4))


def first_hosts(processes: Any, count: int) -> Any:
    """The first hosts of some.

    Args:
        processes: `caramel.LocalProcesses` on hosts.
        count: number of those that are left.
    """
    assert processes.hosts is not None
    return replace(processes, hosts=processes.hosts[:count])


def in_turn(contenders: Sequence[str], rounds: int, show: Callable[[int, str], None]) -> Iterator[str]:
    """Names of contenders, in each round all of them, and another one first.

    Args:
        contenders: names.
        rounds: number of rounds.
        show: function that shows progress: number of turns done, and whose turn it is.
    """
    for turn in range(rounds * len(contenders)):
        number, position = divmod(turn, len(contenders))
        name = contenders[(number + position) % len(contenders)]
        show(turn, name)
        yield name


def turn_s(session: Any, steps: int) -> float:
    """Seconds of a step: the mean of those after the first one, so that nothing that one leaves to the next is lost.

    Args:
        session: session that trains.
        steps: number of steps after the first one.
    """
    ends: list[float] = []
    session.run(steps=steps + 1, progress=False, on_step=lambda _: ends.append(time.perf_counter()))
    return (ends[-1] - ends[0]) / steps


def compare_losses(name: str, losses: Sequence[float], other: str, others: Sequence[float]) -> None:
    """Check that two contenders train alike.

    Args:
        name: name of one.
        losses: losses of its first steps.
        other: name of the other.
        others: losses of the other's.

    Raises:
        InvariantError: they do not.
    """
    for step, (one, two) in enumerate(zip(losses, others), start=1):
        if not math.isclose(one, two, rel_tol=_LOSS_TOLERANCE):
            raise InvariantError(f"in step {step} the loss of {name} is {one:.6g}, and that of {other} is {two:.6g}")
