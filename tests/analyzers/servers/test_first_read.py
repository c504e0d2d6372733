"""The order of first reads, by hand and against the definition."""

from hypothesis import given
from pull_problems import figure_1a, figure_4b, steps

from caramel.analyzers.servers.first_read import first_read
from caramel.analyzers.servers.pulls import ComputeOp, Pull, PullProblem


def test_the_papers_figures():
    assert first_read(figure_1a()) == ("recv1", "recv2")
    assert first_read(figure_4b()) == ("A", "B", "C", "D")


def test_what_no_op_reads_is_last():
    problem = PullProblem((ComputeOp("op", 1.0, ("z",)),), (Pull("a", 1.0), Pull("z", 1.0)))
    assert first_read(problem) == ("z", "a")


@given(steps(channels=2))
def test_no_op_waits_for_a_pull_that_only_later_ops_read(problem):
    order = first_read(problem)
    reads = [next((n for n, op in enumerate(problem.ops) if name in op.inputs), len(problem.ops)) for name in order]
    assert reads == sorted(reads)
