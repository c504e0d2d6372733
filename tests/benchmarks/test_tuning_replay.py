"""Searches on grids: each tries every setting once, and the count of trials is that of the first one that is near."""

import numpy as np
import pytest
from variants import in_soak

from benchmarks.tuning_replay import CREDITS, NEAR, PARTITIONS_BYTES, SEARCHES, points_of, replayed, table, trials_until


def record(time_of):
    settings = [(size, credit) for size in PARTITIONS_BYTES for credit in CREDITS]
    return {
        "network": "made up",
        "workers": 4,
        "rho": 1.0,
        "settings": [
            {"partition_bytes": size, "credit": credit, "times_s": [time_of(n), time_of(n) + 1.0, 0.0]}
            for n, (size, credit) in enumerate(settings)
        ],
    }


COUNT = len(PARTITIONS_BYTES) * len(CREDITS)


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("seed", [0, *in_soak(7)])
def test_every_setting_is_tried_once(name, seed):
    points = points_of(record(float))
    times_s = np.random.default_rng(seed).uniform(1, 2, COUNT)
    assert sorted(SEARCHES[name](points, times_s, seed)) == list(range(COUNT))


def test_points_are_on_logarithmic_scales():
    points = points_of(record(float))
    assert points.min() == 0 and points.max() == 1
    assert np.unique(points[:, 1]).tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])


def test_trials_until_one_is_near():
    times_s = np.array([2.0, 1.0 + NEAR / 2, 1.0, 3.0])
    assert trials_until(times_s, iter([0, 3, 1, 2])) == 3
    assert trials_until(times_s, iter([2])) == 1
    with pytest.raises(AssertionError):
        trials_until(times_s, iter([0, 3]))


@pytest.mark.parametrize("name", ["by chance", "one after the other"])
def test_chance_needs_half_of_all_where_one_is_best(name):
    """The mean of a uniform place among all."""
    times_s = np.where(np.arange(COUNT) == 11, 1.0, 2.0)
    points = points_of(record(float))
    trials = [trials_until(times_s, SEARCHES[name](points, times_s, seed)) for seed in range(200)]
    assert np.mean(trials) == pytest.approx((COUNT + 1) / 2, abs=2)


def test_searches_that_look_at_times_need_fewer_in_a_valley():
    points = points_of(record(float))
    times_s = 1.0 + 3.0 * ((points - [0.43, 0.67]) ** 2).sum(axis=1)
    found = replayed(record(lambda n: float(times_s[n])), seeds=4)
    means = {name: np.mean(trials) for name, trials in found.items()}
    assert means["Bayesian optimisation"] < 0.7 * means["by chance"]
    assert "| Bayesian optimisation |" in table({**record(lambda n: float(times_s[n])), "trials": found})
