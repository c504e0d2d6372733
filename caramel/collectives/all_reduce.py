"""What the library knows of one all-reduce algorithm: a row of the table in `caramel.collectives.algorithms`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from caramel.collectives.schedule import Algorithm


@dataclass(frozen=True)
class Factors:
    """Factors of the cost of an all-reduce: T = alpha * messages + bytes * (beta * volume + gamma * added).

    Attributes:
        messages: number of messages that the busiest rank handles one after the other.
        volume: bytes on the busiest link, as a multiple of the tensor's bytes.
        added: bytes that the busiest rank adds, as a multiple of the tensor's bytes.
    """

    messages: float
    volume: float
    added: float


@dataclass(frozen=True)
class AllReduce:
    """One algorithm.

    Attributes:
        name: name of the algorithm in plans, files and options.
        schedule: function that makes the schedule; None for TensorFlow's own collective op, which has none.
        factors: function from the number of workers (at least 2) and of chunks (at least 1) to the cost.
        is_pipelined: whether its cost depends on the number of chunks.
        has_two_rounds: whether it has two rounds, however many workers there are.
        has_one_sender: whether a worker receives from the same one all the time, in every transfer: transfers that are
            under way at once never meet on a link that they do not share from end to end.
    """

    name: str
    schedule: Algorithm | None
    factors: Callable[[int, int], Factors]
    is_pipelined: bool = False
    has_two_rounds: bool = False
    has_one_sender: bool = False
