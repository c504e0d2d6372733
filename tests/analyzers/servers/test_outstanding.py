"""What is known of pulls while others are taken; `test_algorithm_1.py` compares it with Algorithm 1."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pull_problems import figure_1a, figure_4b, steps

from caramel.analyzers.servers.outstanding import NEVER, OutstandingPulls
from caramel.analyzers.servers.pulls import ComputeOp, Pull, PullProblem
from caramel.util.intervals import TIME_RESOLUTION_S


def test_what_has_been_taken_impends_no_more():
    # D, C, B, A take 1, 2, 4, 8. Without B the first op needs A alone, the next one A and C, the last one these and D.
    state = OutstandingPulls(figure_4b())
    state.take(2)
    ticks = [round(time_s / TIME_RESOLUTION_S) for time_s in (11, 10, 10)]
    assert list(state.impending()) == [ticks[0], ticks[1], NEVER, ticks[2]]


def test_ops_that_need_fewer_pulls_are_asked_for_too():
    # op1 needs recv1, op2 both.
    state = OutstandingPulls(figure_1a(recv1_s=7, recv2_s=11))
    assert list(state.impending(fewest=1) * TIME_RESOLUTION_S) == pytest.approx([7, 18])


@given(steps(most_pulls=8, channels=2), st.data(), st.booleans())
def test_the_least_of_some_is_that_of_all_of_them(problem, data, by_channel):
    state = OutstandingPulls(problem, by_channel)
    for position in data.draw(st.permutations(range(len(problem.pulls)))):
        drawn = np.array([data.draw(st.booleans()) for _ in problem.pulls], dtype=bool)
        candidates = state.is_outstanding & drawn
        impending = state.impending()
        least = impending[candidates].min(initial=NEVER)
        assert list(state.with_least_impending(candidates)) == list(candidates & (impending == least))
        state.take(position)


def test_more_pulls_than_a_word_has_bits():
    # Each op needs two neighbours; pull 100 takes least, and those beside it next.
    pulls = tuple(Pull(f"p{n:03}", float(abs(n - 100) + 1)) for n in range(130))
    ops = tuple(ComputeOp(f"o{n}", 1.0, (pulls[n].name, pulls[n + 1].name)) for n in range(129))
    least = OutstandingPulls(PullProblem(ops, pulls)).with_least_impending(np.ones(130, dtype=bool))
    assert list(np.flatnonzero(least)) == [99, 100, 101]


def test_sums_of_times_tie_however_they_were_added():
    # 0.1 + 0.2 is not 0.3 in binary; M of both sets is 0.3, in ticks.
    ops = ComputeOp("x", 1.0, ("a", "b")), ComputeOp("y", 1.0, ("c", "d"))
    problem = PullProblem(ops, (Pull("a", 0.1), Pull("b", 0.2), Pull("c", 0.3), Pull("d", 0.0)))
    assert len(set(OutstandingPulls(problem).communication())) == 1
