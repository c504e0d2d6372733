"""The order that takes least in simulation: never worse than TicTac's, and how often it is a shortest one."""

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from pull_problems import KINDS, least_makespan_s, random_step, steps

from caramel.analyzers.servers import best_pulls as module
from caramel.analyzers.servers.best_pulls import best_pulls
from caramel.analyzers.servers.makespan import makespan_s
from caramel.analyzers.servers.pulls import ComputeOp, Pull, PullProblem
from caramel.analyzers.servers.tac import tac
from caramel.analyzers.servers.tao import tao
from caramel.analyzers.servers.tic import tic
from caramel.analyzers.servers.tio import tio


def least_of_channels_s(problem):
    """The shortest step over all orders of each channel."""
    channels = sorted({pull.channel for pull in problem.pulls})
    of_channels = [permutations([p.name for p in problem.pulls if p.channel == channel]) for channel in channels]
    return min(makespan_s(problem, [name for part in parts for name in part]) for parts in product(*of_channels))


@given(steps(channels=2))
def test_no_worse_than_those_it_begins_with(problem):
    for most_simulated in (4, 10, 500):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "MOST_SIMULATED", most_simulated)
            step_s = makespan_s(problem, best_pulls(problem))
        assert step_s <= min(makespan_s(problem, rule(problem)) for rule in (tac, tao, tic, tio))


# Of 60 steps of each kind on one channel, the share in which it was seen to find a shortest one.
SEEN = {"layers": 1.0, "sparse": 0.98, "dense": 0.98, "pairs": 1.0, "sets": 0.95}


@pytest.mark.parametrize("kind", KINDS)
def test_how_often_it_is_best(kind):
    rng = np.random.default_rng(11)
    problems = [random_step(rng, kind) for _ in range(60)]
    is_best = [makespan_s(p, best_pulls(p)) == least_makespan_s(p) for p in problems]
    assert np.mean(is_best) >= SEEN[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_how_often_it_is_best_on_two_channels(kind):
    rng = np.random.default_rng(11)
    drawn = [random_step(rng, kind, channels=2) for _ in range(120)]
    problems = [problem for problem in drawn if len(problem.pulls) <= 6][:60]
    assert len(problems) == 60
    # All of them, when this was written.
    assert np.mean([makespan_s(p, best_pulls(p)) == least_of_channels_s(p) for p in problems]) >= 0.98


def test_it_weighs_groups_of_pulls():
    # TAC sends A first, and the long op begins at 12; best is B and C first, it begins at 2.
    ops = ComputeOp("short", 1.0, ("A",)), ComputeOp("long", 100.0, ("B", "C"))
    problem = PullProblem(ops, (Pull("A", 10.0), Pull("B", 1.0), Pull("C", 1.0)))
    assert best_pulls(problem)[2] == "A"


def test_it_simulates_no_more_steps_than_it_may(monkeypatch):
    simulated = []
    monkeypatch.setattr(module, "makespan_s", lambda problem, order: simulated.append(order) or 100.0)
    problem = PullProblem((), tuple(Pull(f"p{n}", 1.0) for n in range(20)))
    monkeypatch.setattr(module, "MOST_SIMULATED", 20)
    best_pulls(problem)
    # That of the best to begin with is asked for twice.
    assert len(simulated) == 21


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_pulls(count):
    ops = tuple(ComputeOp(f"o{n}", 1.0, (f"p{n}",)) for n in range(count))
    problem = PullProblem(ops, tuple(Pull(f"p{n}", 1.0) for n in range(count)))
    assert sorted(best_pulls(problem)) == [f"p{n}" for n in range(count)]
