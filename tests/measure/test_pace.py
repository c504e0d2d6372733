"""How far all workers are with what the gradients need, by steps made up by hand."""

from types import SimpleNamespace

import pytest
from tensorflow.core.framework.node_def_pb2 import NodeDef

from caramel.graph.graph import Graph
from caramel.measure.pace import pace_of
from caramel.measure.step_stats import Row, TracedStep

GRAPH = Graph([NodeDef(name=name, op="AddN") for name in "abcdu"])
NEEDS = SimpleNamespace(ops=tuple("abcdu"), updates={"w": ("u",)})
ORDER = SimpleNamespace(stages=(("a", "b"), ("c",)))
OP_S = {"a": 1.0, "b": 1.0, "c": 2.0, "d": 1.0, "u": 7.0}
"""a, b and c are done after 20, 40 and 80 % of the step; d, which nobody needs, comes last; u is an update."""

CLOCK_S = (0, 1000)
"""Each worker has a clock of its own."""


def rows(rank, *timed):
    found = []
    for node, start_s, end_s in timed:
        start_ns, end_ns = (int((CLOCK_S[rank] + time_s) * 1e9) for time_s in (start_s, end_s))
        found.append(Row(f"worker_{rank}/{node}", "", start_ns, end_ns, end_ns, None))
    return found


FIRST = rows(0, ("a", 0, 1), ("d", 1, 2), ("b", 2, 3), ("u", 3, 5), ("c", 5, 8))  # c after 6 s without the update
SECOND = rows(1, ("a", 0, 4), ("b", 4, 6), ("c", 6, 7), ("d", 7, 10))


def at(pace, percent):
    return pace[percent // 2]


def pace(*steps, op_s=OP_S):
    return pace_of(GRAPH, NEEDS, ORDER, op_s, [TracedStep(tuple(step)) for step in steps])


def test_the_last_worker_counts():
    """Of the ten seconds of the slower worker, a has ended after 4, b after 6, c after 7."""
    found = pace(FIRST + SECOND)
    assert [at(found, percent) for percent in (0, 20, 40, 80, 100)] == pytest.approx([0, 0.4, 0.6, 0.7, 1])
    assert [at(found, percent) for percent in (10, 30, 60, 90)] == pytest.approx([0.2, 0.5, 0.65, 0.85])


def test_updates_have_a_time_of_their_own():
    found = pace(FIRST)
    assert [at(found, percent) for percent in (20, 40, 80, 100)] == pytest.approx([1 / 6, 0.5, 1, 1])


def test_the_mean_of_steps():
    found = pace(FIRST, SECOND)
    assert [at(found, percent) for percent in (20, 40, 80)] == pytest.approx([(1 / 6 + 0.4) / 2, 0.55, 0.85])


def test_in_another_order_parts_of_a_step_are_taken_together():
    """c before b: they are three seconds of ops that end after 2 and 4 of 5 s; by their times that is after 2.67 s."""
    found = pace(rows(0, ("a", 0, 1), ("c", 1, 2), ("b", 2, 4), ("d", 4, 5)))
    assert [at(found, percent) for percent in (20, 40, 80)] == pytest.approx([0.2, 8 / 15, 8 / 15])


def test_of_ops_without_times_nothing_is_known():
    assert pace(FIRST, op_s={"d": 1.0}) == ()
    assert pace() == ()
    assert pace(rows(0, ("d", 0, 1))) == ()
