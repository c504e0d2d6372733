"""How long a step takes: by hand, op by op, and brute force against the tests' own least makespan."""

from itertools import permutations

import networkx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pull_problems import KINDS, figure_1a, least_makespan_s, random_step, steps

from caramel.analyzers.servers.makespan import arrivals_s, makespan_s
from caramel.analyzers.servers.pulls import ComputeOp, Pull, PullProblem
from caramel.analyzers.servers.timeline import step_timeline
from caramel.errors import InputError


def test_channels_are_parallel_and_each_sends_in_the_order():
    # Channel 0 sends a and then c, channel 5 b. x waits for b and runs from 3 to 10, y waits for c (at 6) and x: to 12.
    ops = ComputeOp("x", 7.0, ("b",)), ComputeOp("y", 2.0, ("c",))
    problem = PullProblem(ops, (Pull("c", 2.0, 0), Pull("b", 3.0, 5), Pull("a", 4.0, 0)))
    assert list(arrivals_s(problem, ("a", "b", "c"))) == [6, 3, 4]
    assert makespan_s(problem, ("a", "b", "c")) == 12
    # c first: y runs from 2 to 4, then x.
    assert makespan_s(problem, ("c", "b", "a")) == 11


def test_a_step_lasts_until_the_last_pull():
    assert makespan_s(PullProblem((), (Pull("a", 2.0), Pull("b", 3.0))), ("a", "b")) == 5
    assert makespan_s(PullProblem((ComputeOp("x", 2.0),), ()), ()) == 2
    assert makespan_s(PullProblem((), ()), ()) == 0


@given(steps(channels=2), st.data())
def test_whichever_ready_op_is_first(problem, data):
    order = data.draw(st.permutations(sorted(problem.position_of)))
    keys = dict(zip((op.name for op in problem.ops), data.draw(st.permutations(range(len(problem.ops))))))
    followers = networkx.DiGraph((name, op.name) for op in problem.ops for name in op.inputs if name in keys)
    followers.add_nodes_from(keys)
    op_of = {op.name: op for op in problem.ops}
    in_turn = networkx.lexicographical_topological_sort(followers, key=keys.__getitem__)
    other = PullProblem(tuple(op_of[name] for name in in_turn), problem.pulls)
    assert makespan_s(problem, order) == step_timeline(other, order).makespan_s


@pytest.mark.parametrize("kind", KINDS)
def test_the_least_of_all_orders(kind):
    rng = np.random.default_rng(3)
    problems = [random_step(rng, kind) for _ in range(20)]
    for problem in [problem for problem in problems if len(problem.pulls) <= 5]:
        of_orders_s = [makespan_s(problem, order) for order in permutations(problem.position_of)]
        assert least_makespan_s(problem) == min(of_orders_s)


def test_what_is_no_order():
    with pytest.raises(InputError, match="not so recv2$"):
        makespan_s(figure_1a(), ("recv1",))
