"""The best buckets of the backward window for the measured times of a network, whatever curve they are."""

from __future__ import annotations

import numpy as np

from caramel.analyzers.analyzer import Analyzer
from caramel.analyzers.cost.network import Network
from caramel.analyzers.optimal.problem import travels_alone
from caramel.facts import Boundaries, Boundary, Buckets
from caramel.simulator import check_boundaries

_GRID_SIZES = 160
"""Number of sizes at which a network is asked, between which its times are interpolated (our choice)."""


def measured_buckets() -> Analyzer:
    """Buckets of neighbours, in the order in which they are ready, the last of which ends first.

    A dynamic programme over the last gradient of each bucket: what is sent once the first j gradients are has ended at
    the least, over all i < j, of max(end[i], ready[j]) + T(gradients i + 1 to j). T is the network's time between
    measured sizes, not a line. Gradients of different element types in one bucket are one transfer for each.

    Raises:
        InputError: the analyzer: there is no network model.

    Source:
        Own.
    """

    def run(boundaries: Boundaries, network: Network) -> Buckets:
        network.must_be_known("buckets for measured times")
        check_boundaries(boundaries)
        top = max((g.level for g in boundaries.gradients), default=0)
        together = sorted((g for g in boundaries.gradients if not travels_alone(g, top)), key=lambda g: g.ready_s)
        alone = [g for g in boundaries.gradients if travels_alone(g, top)]
        groups = _neighbours(together, network, boundaries.compute_s) if together else []
        buckets = [bucket for group in groups for bucket in _by_kind(group)] + [[g] for g in alone]
        buckets.sort(key=lambda bucket: (max(g.ready_s for g in bucket), bucket[-1].name))
        reason = "of all buckets of neighbours, with the network's times, those that end first"
        return Buckets(tuple(tuple(g.name for g in bucket) for bucket in buckets), (reason,) * len(buckets))

    return Analyzer("buckets for measured times", (Boundaries, Network), Buckets, run)


def _neighbours(gradients: list[Boundary], network: Network, compute_s: float) -> list[list[Boundary]]:
    kinds = list(dict.fromkeys(g.kind for g in gradients))
    sizes = np.array([[g.size_bytes if g.kind == kind else 0.0 for g in gradients] for kind in kinds])
    sums = np.concatenate([np.zeros((len(kinds), 1)), sizes.cumsum(axis=1)], axis=1)
    counts = np.concatenate([np.zeros((len(kinds), 1)), (sizes > 0).cumsum(axis=1)], axis=1)
    total = float(sizes.sum())
    smallest = max(float(sizes[sizes > 0].min(initial=total)), 1.0)
    grid = np.unique(np.geomspace(smallest, max(total, smallest), _GRID_SIZES))
    times = np.array([network.channel_s(float(size)) for size in grid])
    ends = np.zeros(len(gradients) + 1)
    begins = np.zeros(len(gradients) + 1, int)
    for last in range(1, len(gradients) + 1):
        taken_s = np.zeros(last)
        for of_kind, count in zip(sums, counts):
            is_there = count[last] > count[:last]
            taken_s += np.where(is_there, np.interp(of_kind[last] - of_kind[:last], grid, times), 0.0)
        ready_s = min(gradients[last - 1].ready_s, compute_s)
        candidates = np.maximum(ends[:last], ready_s) + taken_s
        begins[last] = int(candidates.argmin())
        ends[last] = candidates[begins[last]]
    groups, last = [], len(gradients)
    while last > 0:
        groups.append(gradients[begins[last] : last])
        last = begins[last]
    return groups[::-1]


def _by_kind(group: list[Boundary]) -> list[list[Boundary]]:
    kinds: dict[str, list[Boundary]] = {}
    for gradient in group:
        kinds.setdefault(gradient.kind, []).append(gradient)
    return list(kinds.values())
