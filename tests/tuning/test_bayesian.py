"""Bayesian optimisation: it finds what is best among few trials, and lives with failures."""

import numpy as np
import pytest

from caramel.errors import InputError
from caramel.tuning.bayesian import BayesianSearch
from caramel.tuning.limits import Limits, coordinates, limits_for
from caramel.tuning.pull_limits import PullLimits, all_pull_limits


def grid(side=12):
    axis = np.linspace(0, 1, side)
    return np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)


def bowl(points, seed):
    """Times like those of limits: a valley somewhere, steeper on one side, and a little noise that stays."""
    rng = np.random.default_rng(seed)
    centre, steep = rng.uniform(0.1, 0.9, 2), rng.uniform(0.5, 2.0, 2)
    away = (points - centre) * np.where(points > centre, 1.0, 1.5)
    return 0.1 * (1 + (steep * away**2).sum(axis=1)) * (1 + 0.002 * rng.standard_normal(len(points)))


def trials_until_close(points, times_s, order):
    """Number of trials until one is within 2 % of the best."""
    best_s = times_s.min()
    for count, number in enumerate(order, 1):
        if times_s[number] <= 1.02 * best_s:
            return count
    return len(points)


def searched(points, times_s, most=40, seed=0):
    search = BayesianSearch(points, seed)
    for _ in range(most):
        number = search.propose()
        yield number
        search.note(number, float(times_s[number]))


@pytest.mark.soak
@pytest.mark.slow
def test_it_needs_fewer_trials_than_chance():
    points = grid()
    ours, chance = [], []
    for seed in range(30):
        times_s = bowl(points, seed)
        ours.append(trials_until_close(points, times_s, searched(points, times_s)))
        order = np.random.default_rng(100 + seed).permutation(len(points))
        chance.append(trials_until_close(points, times_s, order))
    assert np.median(ours) <= 10 and np.quantile(ours, 0.9) <= 20
    assert np.median(ours) < 0.7 * np.median(chance), (ours, chance)


def test_it_is_as_good_as_the_best_of_a_small_grid():
    points = grid(4)
    times_s = bowl(points, 5)
    seen = list(searched(points, times_s, len(points)))
    assert sorted(seen) == list(range(len(points)))
    search = BayesianSearch(points)
    for number in seen:
        search.note(number, float(times_s[number]))
    assert search.propose() is None


def test_the_same_seed_and_times_give_the_same_trials():
    points = grid()
    times_s = bowl(points, 1)
    assert list(searched(points, times_s, 8)) == list(searched(points, times_s, 8))


def test_failures_are_avoided_and_not_repeated():
    """Half of the points fail; the search goes on, and finds the best of the others."""
    points = grid()
    times_s = bowl(points, 2)
    fails = points[:, 0] > 0.5
    search, seen = BayesianSearch(points), []
    for _ in range(25):
        number = search.propose()
        assert number not in seen
        seen.append(number)
        search.note(number, None if fails[number] else float(times_s[number]))
    assert min(times_s[n] for n in seen if not fails[n]) <= 1.05 * times_s[~fails].min()
    assert sum(fails[n] for n in seen) < 13


def test_all_fail():
    search = BayesianSearch(grid(2))
    for _ in range(4):
        search.note(search.propose(), None)
    assert search.propose() is None


def test_what_there_is_without_a_search_counts_as_the_best():
    """Far better than all points, so that no improvement is expected: the search explores, and does not fail."""
    points = grid(3)
    search = BayesianSearch(points, incumbent_s=1e-3)
    for _ in range(9):
        number = search.propose()
        search.note(number, float(bowl(points, 3)[number]))
    assert search.propose() is None


@pytest.mark.parametrize("points", [np.zeros([0, 2]), np.zeros([3])])
def test_points_without_which_there_is_no_search(points):
    with pytest.raises(InputError, match="needs points"):
        BayesianSearch(points)


@pytest.mark.parametrize("total_bytes", [1, 100_000, 10_000_000, 4_000_000_000])
def test_limits_and_their_coordinates(total_bytes):
    limits = limits_for(total_bytes)
    assert len(set(limits)) == len(limits) >= 20
    assert max(each.bucket_bytes for each in limits) >= total_bytes  # one bucket
    assert all(each.partition_bytes is None or each.partition_bytes < total_bytes for each in limits)
    points = coordinates(limits)
    assert points.shape == (len(limits), 4) and points.min() >= 0 and points.max() <= 1
    assert len({tuple(point) for point in points.round(9).tolist()}) == len(limits)
    assert {each.depth for each in limits_for(total_bytes, 3)} == {3}
    assert {each.depth for each in limits_for(total_bytes, algorithm="native")} == {None}


def test_no_limit_is_beyond_the_largest():
    limits = limits_for(2**20)
    points = dict(zip(limits, coordinates(limits)[:, 1]))
    largest = max(point for each, point in points.items() if each.partition_bytes is not None)
    assert {point for each, point in points.items() if each.partition_bytes is None} == {1.0} and largest < 1.0


def test_orders_of_pulls_and_their_coordinates():
    limits = all_pull_limits()
    assert len(set(limits)) == len(limits) == 16
    points = coordinates(limits)
    assert points.min() >= 0 and points.max() <= 1 and len({tuple(each) for each in points.round(9).tolist()}) == 16
    assert points[limits.index(PullLimits("none", None))].tolist() == [0.0, 0.0, 0.0, 1.0]
    texts = {str(each) for each in limits}
    assert {"pulls in no order", "pulls in the order tac, 4 in flight"} <= texts and len(texts) == 16


def test_limits_in_words():
    assert str(Limits(65536, None, 2, None)) == "buckets of 64 KiB, uncut, 2 in flight, depth as predicted"
    assert str(Limits(1 << 20, 1 << 18, 1, 4)) == "buckets of 1 MiB, cut at 256 KiB, 1 in flight, depth 4"
