"""Dependencies, M, P and M+: by hand, and by Algorithm 1 as it is printed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pull_problems import dependencies, figure_1a, figure_4b, steps
from pull_properties import op_properties

from caramel.analyzers.servers.pulls import ComputeOp, Pull, PullProblem
from caramel.analyzers.servers.tic import with_general_times


def algorithm_1(problem, outstanding, by_channel):
    """Line by line: M, P, M+."""
    dep, pull_of = dependencies(problem), {pull.name: pull for pull in problem.pulls}
    m, p, m_plus = {}, dict.fromkeys(outstanding, 0.0), dict.fromkeys(outstanding, math.inf)
    for name, of in dep.items():
        times_s = {}
        for pull in (pull_of[r] for r in of & outstanding):
            channel = pull.channel if by_channel else 0
            times_s[channel] = times_s.get(channel, 0.0) + pull.time_s
        m[name] = max(times_s.values(), default=0.0)
    for op in problem.ops:
        d = dep[op.name] & outstanding
        for r in d:
            if len(d) == 1:
                p[r] += op.time_s
            else:
                m_plus[r] = min(m_plus[r], m[op.name])
    return m, p, m_plus


@given(steps(channels=3), st.data(), st.booleans())
def test_as_algorithm_1(problem, data, by_channel):
    outstanding = {name for name in problem.position_of if data.draw(st.booleans())}
    found = op_properties(problem, outstanding, by_channel)
    m, p, m_plus = algorithm_1(problem, outstanding, by_channel)
    assert found.communication_s == pytest.approx(m)
    assert found.compute_load_s == pytest.approx(p)
    assert found.impending_s == pytest.approx(m_plus)


def test_figure_1a():
    # The text: op1.M = recv1, op2.M = recv1 + recv2; recv1.P = op1, recv2.P = 0; both M+ are recv1 + recv2.
    found = op_properties(figure_1a(op1_s=3, op2_s=5, recv1_s=7, recv2_s=11))
    assert found.communication_s == pytest.approx({"op1": 7, "op2": 18, "recv1": 7, "recv2": 11})
    assert found.compute_load_s == pytest.approx({"recv1": 3, "recv2": 0})
    assert found.impending_s == pytest.approx({"recv1": 18, "recv2": 18})


def test_figure_1a_when_the_first_has_been_received():
    # op1 waits for nothing, op2 for recv2 alone; no op waits for two.
    found = op_properties(figure_1a(op1_s=3, op2_s=5, recv1_s=7, recv2_s=11), ["recv2"])
    assert found.communication_s == pytest.approx({"op1": 0, "op2": 11, "recv1": 0, "recv2": 11})
    assert found.compute_load_s == pytest.approx({"recv2": 5})
    assert found.impending_s == {"recv2": math.inf}


def test_figure_4b():
    # A = 8, B = 4, C = 2, D = 1: op1 needs 12, op2 14, op3 15. No op needs one pull only.
    found = op_properties(figure_4b())
    assert set(found.compute_load_s.values()) == {0}
    assert found.impending_s == pytest.approx({"A": 12, "B": 12, "C": 14, "D": 15})


def test_channels_are_parallel_in_the_earlier_version():
    # The op needs 3 + 4 of channel 0 and 5 of channel 2.
    op = ComputeOp("op", 1.0, ("a", "b", "c"))
    problem = PullProblem((op,), (Pull("a", 3.0, 0), Pull("b", 4.0, 0), Pull("c", 5.0, 2)))
    assert op_properties(problem).communication_s["op"] == pytest.approx(12)
    assert op_properties(problem, by_channel=True).communication_s["op"] == pytest.approx(7)
    assert op_properties(problem, ["b", "c"], by_channel=True).communication_s["op"] == pytest.approx(5)


def test_general_times_count_pulls():
    assert op_properties(with_general_times(figure_4b())).impending_s == pytest.approx({"A": 2, "B": 2, "C": 3, "D": 4})
    found = op_properties(with_general_times(figure_1a(op1_s=3, op2_s=5, recv1_s=7, recv2_s=11)))
    assert found.communication_s == pytest.approx({"op1": 1, "op2": 2, "recv1": 1, "recv2": 1})
    assert found.compute_load_s == {"recv1": 0, "recv2": 0}
