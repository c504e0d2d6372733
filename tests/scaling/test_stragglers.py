"""How long the slowest of some workers computes, against draws."""

import numpy as np
import pytest

from caramel.errors import InputError
from caramel.scaling.stragglers import Stragglers


@pytest.mark.parametrize("cv", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("workers", [1, 2, 7, 64])
def test_the_slowest_of_random_workers(cv, workers):
    rng = np.random.default_rng(3)
    sigma = np.sqrt(np.log(1 + cv**2))
    drawn = rng.lognormal(-0.5 * sigma**2, sigma, (200_000, workers))
    assert np.std(drawn[:, 0]) / np.mean(drawn[:, 0]) == pytest.approx(cv, rel=0.02)
    slowest = drawn.max(axis=1)
    error = 4 * slowest.std() / len(slowest) ** 0.5
    assert Stragglers(cv=cv).slowest(workers) == pytest.approx(slowest.mean(), abs=error + 1e-9)


def test_many_workers():
    known = [Stragglers(cv=0.1).slowest(n) for n in (1, 10, 100, 1000, 10_000)]
    assert known == sorted(known) and known[0] == 1.0 and known[-1] < 1.6


def test_one_worker_that_is_always_slower():
    given = Stragglers(rank=3, factor=1.5)
    assert [given.slowest(n) for n in (1, 3, 4, 100)] == [1.0, 1.0, 1.5, 1.5]
    assert Stragglers().slowest(10_000) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lognormal",
        "lognormal:",
        "lognormal:-0.1",
        "lognormal:4",
        "lognormal:nan",
        "a:2",
        "-1:2",
        "1:0.5",
        "1:inf",
        "1",
    ],
)
def test_bad(text):
    with pytest.raises(InputError):
        Stragglers.parsed(text)


@pytest.mark.parametrize(
    ("text", "reason"), [("lognormal:5", "between 0 and 3"), ("3:0.5", "at least 1"), ("slow", "write lognormal:CV")]
)
def test_the_reason_is_said(text, reason):
    with pytest.raises(InputError, match=reason):
        Stragglers.parsed(text)
