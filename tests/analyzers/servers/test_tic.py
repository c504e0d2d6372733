"""TIC: the papers' figures, and M+ with each pull counted as 1."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from pull_problems import dependencies, figure_1a, figure_4b, steps
from pull_properties import op_properties

from caramel.analyzers.servers.pulls import ComputeOp, Pull, PullProblem
from caramel.analyzers.servers.tic import tic, with_general_times


def test_figure_1a_which_m_plus_leaves_open():
    # M+ is 2 for both, as op2 needs both. But op1 needs recv1 alone.
    found = op_properties(with_general_times(figure_1a()))
    assert found.impending_s["recv1"] == found.impending_s["recv2"]
    assert tic(figure_1a()) == ("recv1", "recv2")


def test_figure_4b():
    # M+ is 2, 2, 3, 4.
    assert tic(figure_4b()) == ("A", "B", "C", "D")


def test_what_no_op_needs_together_with_others_is_last():
    ops = ComputeOp("x", 1.0, ("A",)), ComputeOp("y", 1.0, ("B", "C"))
    assert tic(PullProblem(ops, (Pull("unused", 1.0), Pull("A", 1.0), Pull("B", 1.0), Pull("C", 1.0)))) == (
        "B",
        "C",
        "A",
        "unused",
    )


@given(steps())
def test_by_the_fewest_pulls_of_an_op(problem):
    needs = dependencies(problem)
    of_ops = [needs[op.name] for op in problem.ops]

    def key(name):
        counts = [len(of) for of in of_ops if name in of]
        return min((n for n in counts if n > 1), default=99), min(counts, default=99), name

    assert tic(problem) == tuple(sorted(problem.position_of, key=key))


@given(steps(), st.randoms(use_true_random=False))
def test_times_do_not_matter(problem, random):
    ops = tuple(replace(op, time_s=random.random()) for op in problem.ops)
    pulls = tuple(replace(pull, time_s=random.random()) for pull in problem.pulls)
    assert tic(PullProblem(ops, pulls)) == tic(problem)
