"""What policies share that put transfers into both windows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

from caramel.analyzers.policies.pending_transfers import PendingTransfer
from caramel.facts import BACKWARD, FORWARD, Boundaries, InFlight, Schedule, Scheduled
from caramel.simulator import validate_schedule


def schedule_of_windows(
    boundaries: Boundaries,
    forward: Sequence[tuple[PendingTransfer, str]],
    backward: Sequence[tuple[PendingTransfer, str]],
    reason: str,
    in_flight: InFlight | None = None,
) -> Schedule:
    """The schedule of pending transfers with their reasons, in the order in which each window sends.

    A gradient of a higher level may need updates of all lower ones, so in their own step these go first.

    Args:
        boundaries: boundaries of all gradients.
        forward: transfers of the forward window.
        backward: transfers of the backward window.
        reason: policy that made it.
        in_flight: see `Schedule`.

    Raises:
        PlanError: it is no schedule.
    """
    backward = sorted(backward, key=lambda pair: boundaries.by_name[pair[0].pieces[0].gradient].level)
    scheduled = [
        Scheduled(transfer.pieces, window, f"{window} window: {why}; {transfer.reason}")
        for window, window_transfers in ((FORWARD, forward), (BACKWARD, backward))
        for transfer, why in window_transfers
    ]
    schedule = Schedule(tuple(scheduled), reason, in_flight)
    validate_schedule(boundaries, schedule)
    return schedule


class Stalls:
    """The stalls of the computation for transfers that all start with the step.

    Args:
        forward: transfers of the forward window in the order of their reads.
        arrivals_s: seconds from the start of the step until each has arrived.
        compute_s: seconds of the computation, at whose end nothing is left to stall.
    """

    def __init__(self, forward: Iterable[PendingTransfer], arrivals_s: Iterable[float], compute_s: float) -> None:
        waits = [(t.read_s, arrival_s - t.read_s) for t, arrival_s in zip(forward, arrivals_s) if t.read_s < compute_s]
        self._reads_s = [read_s for read_s, _ in waits]
        self._stalls_s = list(accumulate((wait_s for _, wait_s in waits), max, initial=0.0))

    def before(self, at_s: float) -> float:
        """Seconds by which the computation is later than by itself, at a time of its clock."""
        return self._stalls_s[bisect_right(self._reads_s, at_s)]
