"""Bounds, efficiency and speedup: by hand, and what holds for any order."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pull_problems import figure_1a, steps

from caramel.analyzers.servers.efficiency import busiest_resource_s, efficiency, speedup, upper_bound_s
from caramel.analyzers.servers.makespan import makespan_s
from caramel.analyzers.servers.pulls import ComputeOp, Pull, PullProblem


def test_figure_1a():
    # Computation takes 2, transfers take 2. The good order takes 3 of at most 4, the bad one 4.
    problem = figure_1a()
    assert upper_bound_s(problem) == 4
    assert busiest_resource_s(problem) == 2
    assert efficiency(problem, 3) == 0.5
    assert efficiency(problem, 4) == 0
    assert efficiency(problem, 2) == 1
    assert speedup(problem) == 1


def test_the_most_loaded_resource():
    # Channel 0 sends for 5, channel 1 for 4; the worker computes for 3.
    pulls = Pull("a", 2.0, 0), Pull("b", 3.0, 0), Pull("c", 4.0, 1)
    problem = PullProblem((ComputeOp("x", 3.0),), pulls)
    assert busiest_resource_s(problem) == 5
    assert upper_bound_s(problem) == 12
    assert speedup(problem) == pytest.approx(7 / 5)
    longer = replace(problem, ops=(ComputeOp("x", 6.0),))
    assert busiest_resource_s(longer) == 6


def test_nothing_to_overlap():
    problem = PullProblem((ComputeOp("x", 3.0),), ())
    assert efficiency(problem, 3) == 1
    assert speedup(problem) == 0
    assert speedup(PullProblem((), ())) == 0


@given(steps(channels=2), st.data())
def test_any_order_is_between_the_bounds(problem, data):
    step_s = makespan_s(problem, data.draw(st.permutations(sorted(problem.position_of))))
    assert busiest_resource_s(problem) <= step_s <= upper_bound_s(problem)
    assert 0 <= efficiency(problem, step_s) <= 1
