"""Orders by name: each is an order, always the same, quickly; and nothing else has a name."""

import time

import numpy as np
import pytest
from hypothesis import given
from pull_problems import network_step, no_minimum, steps

from caramel.analyzers.servers.makespan import makespan_s
from caramel.analyzers.servers.pull_orders import ORDERINGS, pull_order
from caramel.analyzers.servers.pulls import PullProblem
from caramel.analyzers.servers.tac import tac
from caramel.errors import InputError

MOST_PLANNING_S = 1.0
"""For 500 pulls and 4,500 ops; 10 to 25 ms on a machine with two cores, so that slower and busier ones pass."""


@given(steps(channels=3))
def test_each_is_an_order_and_that_of_the_same_problem_listed_otherwise(problem):
    turned = PullProblem(problem.ops, problem.pulls[::-1])
    for name in ORDERINGS:
        order = pull_order(name, problem)
        assert sorted(order) == sorted(problem.position_of)
        assert pull_order(name, turned) == order


def test_seeds():
    problem = no_minimum()
    orders = {pull_order("random", problem, seed) for seed in range(20)}
    assert len(orders) > 10
    assert {pull_order("tac", problem, seed) for seed in range(20)} == {tac(problem)}


def test_reverse_is_bad():
    problem = network_step(np.random.default_rng(0), 20, 4)
    step_s = {name: makespan_s(problem, pull_order(name, problem)) for name in ORDERINGS}
    assert step_s["best"] <= step_s["tac"] < step_s["random"] < step_s["reverse"]


def test_a_name_that_is_none():
    with pytest.raises(InputError, match="order of pulls must be 'tac' or .*, got 'tik'"):
        pull_order("tik", no_minimum())


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("name", ["tac", "tic", "tao", "tio"])
def test_planning_is_quick(name, channels):
    problem = network_step(np.random.default_rng(0), 250, 6, channels)
    assert (len(problem.pulls), len(problem.ops)) == (500, 4500)
    start_s = time.perf_counter()
    pull_order(name, problem)
    assert time.perf_counter() - start_s < MOST_PLANNING_S
