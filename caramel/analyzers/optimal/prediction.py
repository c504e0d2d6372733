"""Prediction: the seconds of a step under a schedule, and its seconds with each transfer in its other window."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from caramel.analyzers.cost.in_flight import usual_in_flight
from caramel.analyzers.cost.network import Network
from caramel.analyzers.cost.simulate import simulate_on
from caramel.analyzers.optimal.interval import interval_of
from caramel.analyzers.optimal.local_search import LocalSearch
from caramel.analyzers.optimal.step_bound import step_bound_s
from caramel.facts import Boundaries, InFlight, Schedule, Trace
from caramel.plan import Transfers
from caramel.prediction import Prediction

_SUM_TOLERANCE = 1e-12
"""Relative difference below which two sums count as equal: of the same numbers, added in another order."""

_MOST_SIMULATED_TRANSFERS = 50_000
"""Largest number of transfers in all schedules that are simulated for the alternatives: less than a second."""


_MOST_TRANSFERS_WITH_ALTERNATIVES = 1000
"""Largest number of transfers for which alternatives are simulated: of one place for each of so many, some seconds."""


def predict(facts: Mapping[type, Any], has_alternatives: bool = True) -> Prediction | None:
    """The prediction that facts allow.

    Args:
        facts: facts of the analyzers by type; `Boundaries`, `Schedule`, `Trace`, `Network` and `Transfers` are used.
        has_alternatives: whether to simulate the step with each transfer in its other window, too.

    Returns:
        The prediction; None if times were not measured, or the network is not known.
    """
    trace: Trace | None = facts.get(Trace)
    network: Network = facts[Network]
    if trace is None or trace.runs == 0 or not network.is_known or not {Boundaries, Schedule} <= facts.keys():
        return None
    boundaries: Boundaries = facts[Boundaries]
    schedule: Schedule = facts[Schedule]
    transfers: Transfers | None = facts.get(Transfers)
    in_flight = schedule.in_flight if transfers is None else transfers.in_flight
    if schedule.in_flight is None and in_flight == usual_in_flight(schedule):
        in_flight = None  # so that another window for a transfer may have the other usual limit
    timeline = simulate_on(network, boundaries, schedule, in_flight)
    bound_s = step_bound_s(boundaries, network)
    if math.isclose(bound_s, timeline.iteration_s, rel_tol=_SUM_TOLERANCE):
        bound_s = timeline.iteration_s
    return Prediction(
        timeline,
        bound_s,
        boundaries.basis,
        _alternatives(boundaries, schedule, network, in_flight) if has_alternatives else (),
        interval_of(timeline, trace, network, boundaries, schedule, in_flight),
    )


def _alternatives(
    boundaries: Boundaries, schedule: Schedule, network: Network, in_flight: InFlight | None
) -> tuple[float | None, ...]:
    """Seconds of the step with each transfer at the best place of its other window.

    Of many transfers only some places are tried, those nearest to where its boundaries would put it; of very many none.
    """
    count = len(schedule.transfers)
    if count > _MOST_TRANSFERS_WITH_ALTERNATIVES:
        return ()
    most = max(1, _MOST_SIMULATED_TRANSFERS // max(count, 1) ** 2)
    search = LocalSearch(network, boundaries, in_flight=in_flight)
    return tuple(search.in_other_window_s(schedule, number, most) for number in range(count))
