"""A lower bound on the time of a step on a network: no plan can be faster, whatever it merges, splits or postpones."""

from __future__ import annotations

from dataclasses import replace

from caramel.analyzers.cost.bounds import checked_boundaries, lower_bounds, rooms
from caramel.analyzers.cost.network import Network
from caramel.analyzers.cost.simulate import with_least_contention
from caramel.analyzers.optimal.search import exposed_bound_s
from caramel.facts import Boundaries
from caramel.netmodel.line import Line

_MOST_PACKED_LINES = 2
"""Number of lines below the network for which the least exposed time is searched; for all others the quick bounds of
`lower_bounds` do (our choice)."""


def step_bound_s(boundaries: Boundaries, network: Network) -> float:
    """Seconds that no plan for these gradients has less than, in the simulator of this library.

    Each line below the network's times (`Network.lines_below`) gives a bound. That of `lower_bounds` holds for any plan
    at all. That of `exposed_bound_s` holds for plans in which the forward pass never waits; any other plan saves at
    most one start of a transfer, so that is taken off. Where some gradient has no room in either window, as that of a
    first layer, nothing is saved: it travels in the backward window after everything else, whatever was stalled.

    Args:
        boundaries: boundaries of all gradients.
        network: network as planners see it.

    Source:
        Own; docs/explanation/two-windows.md.
    """
    boundaries = with_least_contention(network, boundaries)
    lines = network.lines_below(sum(g.size_bytes for g in boundaries.gradients))
    ranked = sorted(((lower_bounds(boundaries, line).lb2_s, n) for n, line in enumerate(lines)), reverse=True)
    best_s = ranked[0][0]
    for _, n in ranked[:_MOST_PACKED_LINES]:
        best_s = max(best_s, _packed_bound_s(boundaries, lines[n]))
    return best_s


def _packed_bound_s(boundaries: Boundaries, line: Line) -> float:
    without_updates = replace(boundaries, gradients=tuple(replace(g, update_s=0.0) for g in boundaries.gradients))
    exposed_s = exposed_bound_s(without_updates, line)
    checked = checked_boundaries(boundaries, line)
    has_no_room = any(
        g.size_bytes > 0 and back_s <= 0 and fore_s <= 0
        for g, back_s, fore_s in zip(checked.gradients, *rooms(checked))
    )
    return boundaries.compute_s + max(exposed_s - (0.0 if has_no_room else line.a_s), 0.0)
