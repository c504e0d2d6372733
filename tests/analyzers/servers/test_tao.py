"""TAO: TAC on one channel, and what channels change."""

from hypothesis import given
from pull_problems import figure_4b, no_minimum, steps

from caramel.analyzers.servers.pulls import ComputeOp, Pull, PullProblem
from caramel.analyzers.servers.tac import tac
from caramel.analyzers.servers.tao import tao


@given(steps())
def test_on_one_channel_it_is_tac(problem):
    assert tao(problem) == tac(problem)
    assert tao(figure_4b()) == tac(figure_4b())
    assert tao(no_minimum()) == tac(no_minimum())


def test_what_comes_by_several_channels_comes_sooner():
    # No op needs one pull only. x needs A and B, 4 each: 8 in all, 4 by two channels. y needs C and D, 3 each: 6.
    ops = ComputeOp("x", 1.0, ("A", "B")), ComputeOp("y", 1.0, ("C", "D"))
    pulls = Pull("A", 4.0, 0), Pull("B", 4.0, 1), Pull("C", 3.0, 0), Pull("D", 3.0, 0)
    # Then with C taken, D has P = 1; with A taken, B has.
    assert tac(PullProblem(ops, pulls)) == ("C", "D", "A", "B")
    assert tao(PullProblem(ops, pulls)) == ("A", "B", "C", "D")
