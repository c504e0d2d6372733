"""Problems that are none are refused, and the sets of pulls that ops wait for are those of the graph."""

import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from pull_problems import figure_1a, steps

from caramel.analyzers.servers.pulls import ComputeOp, Pull, PullProblem
from caramel.errors import InputError

P, Q = Pull("p", 1.0), Pull("q", 1.0)
REFUSED = {
    "two ops of one name": ([ComputeOp("a", 1), ComputeOp("a", 2)], [], "name of its own; not so a$"),
    "an op and a pull of one name": ([ComputeOp("p", 1)], [P], "name of its own; not so p$"),
    "two pulls of one name": ([], [P, P], "name of its own; not so p$"),
    "an input that is not there": ([ComputeOp("a", 1, ("x",))], [P], "'a' needs 'x', which is neither"),
    "an op that comes later": ([ComputeOp("a", 1, ("b",)), ComputeOp("b", 1)], [], "'a' needs 'b'.*before it"),
    "a circle": ([ComputeOp("a", 1, ("b",)), ComputeOp("b", 1, ("a",))], [], "without cycles"),
    "an op that needs itself": ([ComputeOp("a", 1, ("a",))], [], "'a' needs 'a'.*without cycles"),
    "a negative time": ([ComputeOp("a", -1.0)], [], "time_s of 'a'.*got -1.0"),
    "no time": ([], [Pull("p", math.nan)], "time_s of 'p'.*got nan"),
    "no end": ([], [Pull("p", math.inf)], "time_s of 'p'.*got inf"),
    "no channel": ([], [Pull("p", 1.0, -1)], "channel of 'p'.*got -1"),
}


@pytest.mark.parametrize(("ops", "pulls", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_problem(ops, pulls, message):
    with pytest.raises(InputError, match=message):
        PullProblem(tuple(ops), tuple(pulls))


@pytest.mark.parametrize(
    ("order", "wrong"),
    [
        (["recv1"], "recv2"),
        (["recv1", "recv2", "x"], "x"),
        (["recv1", "recv1"], "recv1, recv2"),
        (["recv1", "recv2", "recv1"], "recv1"),
    ],
)
def test_what_is_no_order(order, wrong):
    with pytest.raises(InputError, match=f"each pull once, and no others; not so {wrong}$"):
        figure_1a().positions(order)


@given(steps())
def test_sets_are_the_pulls_among_the_ancestors(problem):
    graph = nx.DiGraph([(name, op.name) for op in problem.ops for name in op.inputs])
    graph.add_nodes_from([op.name for op in problem.ops])
    sets = problem.sets
    for op, row in zip(problem.ops, sets.set_of):
        waits_for = {problem.pulls[column].name for column in np.flatnonzero(sets.members[row])}
        assert waits_for == nx.ancestors(graph, op.name) & set(problem.position_of)
    assert len(np.unique(sets.members, axis=0)) == len(sets.members)
    for row, time_s in enumerate(problem.compute_s):
        assert time_s == sum(op.time_s for op, of in zip(problem.ops, sets.set_of) if of == row)
