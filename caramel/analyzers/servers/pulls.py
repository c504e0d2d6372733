"""The problem of ordering pulls: one worker's step, and the parameters that it receives from servers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from caramel.analyzers.servers.pull_sets import PullSets
from caramel.errors import InputError, listed
from caramel.util.arguments import shown, whole_number


@dataclass(frozen=True)
class ComputeOp:
    """An op of the worker's own computation.

    Attributes:
        name: of the op; no pull has the same.
        time_s: seconds that it computes.
        inputs: names of the ops and pulls that it waits for.
    """

    name: str
    time_s: float
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pull:
    """A parameter that a worker receives from a server (a *recv* op of the papers).

    Attributes:
        name: of the pull; no op has the same.
        time_s: seconds of its transfer, with the channel to itself.
        channel: index of the server that sends it.
    """

    name: str
    time_s: float
    channel: int = 0


@dataclass(frozen=True)
class PullProblem:
    """One worker's step. The order of its pulls is to be decided; servers have all of them ready when it begins.

    Attributes:
        ops: what it computes, on one serial resource; in topological order.
        pulls: what it receives; each channel is serial, channels are parallel.

    Raises:
        InputError: a name is there twice, an input is not there or comes later (as in every cycle), a time is negative
            or no number, or a channel is no index.

    Source:
        TicTac, section 3.1: the partitioned graph of a worker, with its time oracle.
    """

    ops: tuple[ComputeOp, ...]
    pulls: tuple[Pull, ...]

    def __post_init__(self) -> None:
        """Check it; see the class."""
        parts: tuple[ComputeOp | Pull, ...] = (*self.ops, *self.pulls)
        repeated = [name for name, count in Counter(part.name for part in parts).items() if count > 1]
        if repeated:
            raise InputError(f"each op and each pull has a name of its own; not so {listed(repeated)}")
        for part in parts:
            if not 0 <= part.time_s < math.inf:
                raise InputError(f"time_s of {part.name!r} must be a number of at least 0, got {shown(part.time_s)}")
        for pull in self.pulls:
            whole_number(pull.channel, f"channel of {pull.name!r}", least=0)
        self._check_inputs()

    def _check_inputs(self) -> None:
        """Refuse ops whose inputs are not there before them."""
        ops = {op.name for op in self.ops}
        before = {pull.name for pull in self.pulls}
        for op in self.ops:
            for name in op.inputs:
                if name not in before and name in ops:
                    raise InputError(
                        f"op {op.name!r} needs {name!r}, which does not come before it: list ops in topological "
                        "order, without cycles"
                    )
                if name not in before:
                    raise InputError(f"op {op.name!r} needs {name!r}, which is neither an op nor a pull")
            before.add(op.name)

    @cached_property
    def sets(self) -> PullSets:
        """The pulls that each op waits for, directly or not."""
        return PullSets.of([pull.name for pull in self.pulls], [(op.name, op.inputs) for op in self.ops])

    @cached_property
    def compute_s(self) -> np.ndarray:
        """Seconds of the ops of each set."""
        return self.sets.totals(np.array([op.time_s for op in self.ops], dtype=np.float64))

    @cached_property
    def position_of(self) -> Mapping[str, int]:
        """Position of each pull in `pulls`, by name."""
        return {pull.name: position for position, pull in enumerate(self.pulls)}

    def positions(self, order: Sequence[str]) -> list[int]:
        """Positions in `pulls` of an order of all pulls.

        Args:
            order: names of the pulls, first the one that is sent first.

        Raises:
            InputError: a pull is not there, there twice, or there is no such one.
        """
        known = self.position_of
        if len(order) != len(known) or set(order) != known.keys():
            given = Counter(order)
            wrong = sorted((given - Counter(known.keys())) + (Counter(known.keys()) - given))
            raise InputError(f"an order names each pull once, and no others; not so {listed(wrong, 4)}")
        return [known[name] for name in order]
