"""TIO: TIC on one channel, priorities that pulls share, and what channels change."""

from hypothesis import given
from pull_problems import figure_1a, figure_4b, steps
from pull_properties import op_properties

from caramel.analyzers.servers.pulls import ComputeOp, Pull, PullProblem
from caramel.analyzers.servers.tic import tic, with_general_times
from caramel.analyzers.servers.tio import tio


def priorities(problem):
    """Those of Algorithm 3, by M+, from 0 as section 5.1 numbers them: pulls with the same may come in any order."""
    impending_s = op_properties(with_general_times(problem), by_channel=True).impending_s
    numbers = {value: number for number, value in enumerate(sorted(set(impending_s.values())))}
    return {name: numbers[value] for name, value in impending_s.items()}


@given(steps())
def test_on_one_channel_it_is_tic(problem):
    assert tio(problem) == tic(problem)


@given(steps(channels=3))
def test_the_order_is_one_that_the_priorities_allow(problem):
    of = priorities(problem)
    numbers = [of[name] for name in tio(problem)]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(len(set(numbers))))


def test_priorities_of_the_figures():
    assert priorities(figure_1a()) == {"recv1": 0, "recv2": 0}
    assert priorities(figure_4b()) == {"A": 0, "B": 0, "C": 1, "D": 2}


def test_what_comes_by_several_channels_comes_sooner():
    # x needs one pull of each of three channels: 3 in all, 1 by channel. y needs two of channel 0: 2.
    ops = ComputeOp("x", 1.0, ("A", "B", "C")), ComputeOp("y", 1.0, ("D", "E"))
    pulls = Pull("A", 1.0, 0), Pull("B", 1.0, 1), Pull("C", 1.0, 2), Pull("D", 1.0, 0), Pull("E", 1.0, 0)
    problem = PullProblem(ops, pulls)
    assert tic(problem) == ("D", "E", "A", "B", "C")
    assert tio(problem) == ("A", "B", "C", "D", "E")
    assert priorities(problem) == {"A": 0, "B": 0, "C": 0, "D": 1, "E": 1}
