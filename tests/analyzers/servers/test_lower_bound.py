"""The bound of steps with parameter servers, against all orders of small ones."""

from itertools import permutations

import numpy as np
import pytest
from pull_problems import KINDS, figure_1a, random_step

from caramel.analyzers.servers.lower_bound import step_bound_s
from caramel.analyzers.servers.pulls import ComputeOp, Pull, PullProblem
from caramel.analyzers.servers.worker_step import Push, WorkerStep


def a_step(problem, *pushes):
    return WorkerStep(problem, {pull.name: pull.name for pull in problem.pulls}, pushes)


def push_s(push):
    return push.size_bytes


def least_step_s(step):
    """The shortest step with any order of pulls, any order of ops that waits for no reason, and any order of pushes."""
    problem, least_s = step.problem, np.inf
    ops = {op.name: op for op in problem.ops}
    for pulls in permutations(problem.pulls):
        there_s, free_s = {}, {}
        for pull in pulls:
            free_s[pull.channel] = there_s[pull.name] = free_s.get(pull.channel, 0.0) + pull.time_s
        for order in permutations(ops):
            ends_s, now_s = dict(there_s), 0.0
            if any(name in ops and order.index(name) > n for n, op in enumerate(order) for name in ops[op].inputs):
                continue
            for name in order:
                start_s = max([now_s, *(ends_s[each] for each in ops[name].inputs)])
                ends_s[name] = now_s = start_s + ops[name].time_s
            for pushes in permutations(step.pushes):
                link_s = {}
                for push in pushes:
                    ready_s = max(ends_s[name] for name in push.after)
                    link_s[push.channel] = max(ready_s, link_s.get(push.channel, 0.0)) + push_s(push)
                least_s = min(least_s, max([now_s, *there_s.values(), *link_s.values()]))
    return least_s


def test_a_chain_cannot_be_faster_than_one_thing_after_the_other():
    ops = ComputeOp("first", 2.0, ("a",)), ComputeOp("second", 3.0, ("first", "b"))
    step = a_step(
        PullProblem(ops, (Pull("a", 1.0), Pull("b", 4.0))),
        Push("b", ("second",), 0, 2.0),
        Push("a", ("second",), 0, 5.0),
    )
    assert step_bound_s(step, push_s) == pytest.approx(5.0 + 3.0 + 7.0)


def test_a_gradient_of_the_first_op_hides_behind_the_second():
    step = a_step(figure_1a(), Push("recv1", ("op1",), 0, 1.0))
    assert step_bound_s(step, push_s) == pytest.approx(3.0) == least_step_s(step)


def test_nothing_takes_no_time():
    assert step_bound_s(a_step(PullProblem((), ())), push_s) == 0.0
    assert step_bound_s(a_step(PullProblem((), (Pull("a", 2.0, 3),))), push_s) == 2.0


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_no_order_is_shorter(kind, channels):
    rng = np.random.default_rng([KINDS.index(kind), channels])
    reached = compared = 0
    while compared < 12:
        problem = random_step(rng, kind, channels)
        if len(problem.pulls) > 4 or len(problem.ops) > 5:
            continue
        sources = rng.choice([op.name for op in problem.ops], size=3)
        pushes = [
            Push(f"g{n}", (str(op),), int(rng.integers(channels)), float(rng.integers(1, 9)))
            for n, op in enumerate(sources)
        ]
        step = a_step(problem, *pushes)
        bound_s, least_s = step_bound_s(step, push_s), least_step_s(step)
        assert bound_s <= least_s + 1e-9
        reached += bound_s >= least_s - 1e-9
        compared += 1
    assert reached >= 4  # it says something, too
