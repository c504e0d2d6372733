"""What an algorithm costs on any number of workers, in messages, bytes and additions.

T = alpha * messages + bytes * (beta * volume + gamma * added), with

* alpha seconds for each message that its busiest rank handles one after the other,
* beta seconds for each byte on a link, gamma for each byte that is added,
* the three factors in the table of `factors`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from caramel.collectives.algorithms import NATIVE, all_reduce_named
from caramel.collectives.all_reduce import Factors
from caramel.collectives.hierarchy import workers_on_host_of
from caramel.errors import FitError, InputError
from caramel.netmodel.line import Curve
from caramel.util.arguments import shown

_MOST_S_PER_BYTE = 1e9
"""Upper bound of a plausible time to add a byte, in seconds (our choice: anything above is a mistake)."""


def factors(algorithm: str, workers: int, depth: int = 1) -> Factors:
    """The factors of one algorithm; `docs/explanation/algorithms.md` explains them.

    Args:
        algorithm: name of an all-reduce.
        workers: number of workers N, at least 1.
        depth: number of chunks. It matters for the chain, which becomes a pipeline, and for the star,
            whose chunks have different roots; for the others chunks overlap and change nothing here.

    Raises:
        InputError: no such algorithm, or an argument out of range.
    """
    if workers < 1 or depth < 1:
        raise InputError(
            f"costs need at least 1 worker and depth 1, got {shown(workers)} workers and depth {shown(depth)}"
        )
    row = all_reduce_named(algorithm)
    return Factors(0, 0, 0) if workers == 1 else row.factors(workers, depth)


def link_load(algorithm: str, workers: int, workers_on_host: int, depth: int = 1) -> float:
    """The bytes on the busiest link of hosts that some workers share, over those where each has a host of its own.

    Ranks follow each other on hosts. In a ring and in a chain one worker of a host sends to another host; a star's root
    gets the bytes of the other hosts' workers, and the roots of its chunks are on one host as far as they fit; in a
    hierarchy each byte leaves a host of as many workers once; in the others all workers of a host send to all other
    hosts at once.

    Args:
        algorithm: name of an all-reduce.
        workers: number of workers N, at least 1.
        workers_on_host: number K of workers of each host.
        depth: number of chunks.

    >>> [link_load(name, 8, 4) for name in ("ring", "star", "shuffle")]
    [1.0, 0.5714285714285714, 2.2857142857142856]
    """
    if workers_on_host == 1 or workers == 1:
        return 1.0
    if workers_on_host >= workers:
        return 0.0
    if algorithm in ("ring", "chain", NATIVE):
        return 1.0
    others = (workers - workers_on_host) / (workers - 1)
    if of_hierarchy := workers_on_host_of(algorithm):
        return _link_load_of_hierarchy(of_hierarchy, workers, workers_on_host)
    if algorithm == "star":
        return others * min(depth, workers_on_host)
    if algorithm == "halving_doubling" and workers & (workers - 1):
        return float(workers_on_host)  # at most: where cuts by thirds fall together with hosts it is less
    return workers_on_host * others


def _link_load_of_hierarchy(of_hierarchy: int, workers: int, workers_on_host: int) -> float:
    """`link_load` of a hierarchy for hosts of some workers, on hosts of these or of others.

    Args:
        of_hierarchy: number of workers in its groups.
        workers: number of workers.
        workers_on_host: number of workers of each host.
    """
    of_hierarchy = min(of_hierarchy, workers)
    if of_hierarchy == workers:  # a shuffle
        return workers_on_host * (workers - workers_on_host) / (workers - 1)
    groups = -(-workers // of_hierarchy)
    inside, between = 1 - 1 / of_hierarchy, (1 - 1 / groups) / of_hierarchy  # what a worker sends, and receives
    if workers_on_host % of_hierarchy == 0:  # whole groups on a host
        outside = between * (groups - workers_on_host // of_hierarchy) / (groups - 1)
    elif of_hierarchy % workers_on_host == 0:
        outside = between + inside * (of_hierarchy - workers_on_host) / (of_hierarchy - 1)
    else:
        outside = inside + between  # at most
    return workers_on_host * outside / (inside + between)


@dataclass(frozen=True)
class Cost:
    """Alpha, beta and gamma of `factors`.

    Attributes:
        alpha_s: seconds for each message.
        beta_s_per_byte: seconds for each byte on the busiest link.
        gamma_s_per_byte: seconds for each byte that is added.
    """

    alpha_s: float
    beta_s_per_byte: float
    gamma_s_per_byte: float

    def time_s(self, algorithm: str, workers: int, depth: int, size_bytes: float, workers_on_host: int = 1) -> float:
        """Predicted seconds of an all-reduce of ``size_bytes``, where so many workers share the link of a host."""
        f = factors(algorithm, workers, depth)
        load = link_load(algorithm, workers, workers_on_host, depth)
        per_byte = self.beta_s_per_byte * load * f.volume + self.gamma_s_per_byte * f.added
        return self.alpha_s * f.messages + per_byte * size_bytes


def fit_cost(curves: Sequence[Curve], gamma_s_per_byte: float) -> Cost:
    """Alpha and beta of one algorithm at one depth, from measurements with several numbers of workers.

    Beta and gamma cannot be told apart by the times of all-reduces, because in a ring (and most others)
    both factors grow alike with the number of workers. So gamma is measured by itself, and what it
    explains is taken off first. Samples are weighted by 1 / T^2.

    Args:
        curves: measured curves of one algorithm and depth, for at least two numbers of workers above 1.
        gamma_s_per_byte: measured seconds for adding a byte.

    Raises:
        FitError: curves of different algorithms or depths, or of too few numbers of workers.
    """
    from sklearn.linear_model import LinearRegression  # takes a second to import

    if len({(c.algorithm, c.depth) for c in curves}) != 1:
        raise FitError("a cost is fitted to curves of one algorithm and depth")
    if len({c.workers for c in curves if c.workers > 1}) < 2:
        raise FitError("a cost needs measurements with at least 2 numbers of workers above 1")
    rows, times = [], []
    for curve in curves:
        f = factors(curve.algorithm, curve.workers, curve.depth)
        for sample in curve.samples:
            rows.append((f.messages, f.volume * sample.size_bytes, f.added * sample.size_bytes))
            times.append(sample.time_s)
    if not 0 <= gamma_s_per_byte < _MOST_S_PER_BYTE:
        raise FitError(f"adding a byte takes between 0 and {_MOST_S_PER_BYTE:g} s, not {gamma_s_per_byte:g} s")
    features, measured = np.array(rows, float), np.array(times)
    unexplained_s = measured - gamma_s_per_byte * features[:, 2]
    units = features[:, :2].max(axis=0)
    time_unit = measured.min()
    model = LinearRegression(fit_intercept=False, positive=True)
    model.fit(features[:, :2] / units, unexplained_s / time_unit, sample_weight=(time_unit / measured) ** 2)
    alpha, beta = model.coef_ * time_unit / units
    return Cost(float(alpha), float(beta), gamma_s_per_byte)
