"""What is tuned with parameter servers: how parameters are pulled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from caramel.analyzers.servers.pull_orders import NO_ORDER
from caramel.facts import Trace

_ORDERINGS = ("tic", "tac", "best")
_IN_FLIGHT = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class PullLimits:
    """The order in which parameters are pulled, and how many may be on the way.

    Attributes:
        ordering: name of the rule, or ``"none"``.
        in_flight: number of parameters on the way from a server to a worker at once; None without an order, where
            nothing limits them.
    """

    ordering: str
    in_flight: int | None

    def __str__(self) -> str:
        if self.in_flight is None:
            return "pulls in no order"
        return f"pulls in the order {self.ordering}, {self.in_flight} in flight"

    def options(self, trace: Trace) -> Mapping[str, Any]:
        """Options of `caramel.ARModel` with these.

        Args:
            trace: measured times of the program.
        """
        window = {} if self.in_flight is None else {"pulls_in_flight": self.in_flight}
        return {"trace": trace, "ordering": self.ordering, **window}

    def point(self) -> Sequence[float]:
        """A point that is near those of like settings: an axis for each rule, and the logarithm of the window."""
        window = math.inf if self.in_flight is None else self.in_flight
        return [*(float(self.ordering == rule) for rule in _ORDERINGS), math.log2(window)]


def all_pull_limits() -> Sequence[PullLimits]:
    """All of them to choose from."""
    ordered = [PullLimits(rule, count) for rule, count in product(_ORDERINGS, _IN_FLIGHT)]
    return [*ordered, PullLimits(NO_ORDER, None)]
