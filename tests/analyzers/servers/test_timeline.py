"""Steps op by op: what a schedule has to keep."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pull_problems import figure_1a, steps

from caramel.analyzers.servers.timeline import Span, step_timeline
from caramel.errors import InputError


def test_figure_1a():
    made = step_timeline(figure_1a(op1_s=3, op2_s=5, recv1_s=7, recv2_s=11), ("recv1", "recv2"))
    assert made.pulls == (Span("recv1", 0, 7), Span("recv2", 7, 18))
    assert made.ops == (Span("op1", 7, 10), Span("op2", 18, 23))
    assert made.makespan_s == 23


@given(steps(channels=2), st.data())
def test_nothing_is_early_and_the_worker_is_idle_only_while_it_must_wait(problem, data):
    order = data.draw(st.permutations(sorted(problem.position_of)))
    made = step_timeline(problem, order)
    assert [span.name for span in made.pulls] == order
    assert sorted(span.name for span in made.ops) == sorted(op.name for op in problem.ops)
    ends_s = {span.name: span.end_s for span in (*made.pulls, *made.ops)}
    inputs_of = {op.name: op.inputs for op in problem.ops}
    position_of = {op.name: n for n, op in enumerate(problem.ops)}
    free_s = 0.0
    for n, span in enumerate(made.ops):
        ready_s = max((ends_s[name] for name in inputs_of[span.name]), default=0.0)
        assert span.start_s == max(free_s, ready_s)
        assert span.end_s - span.start_s == problem.ops[position_of[span.name]].time_s
        # Of those that come later, the ones that were ready stand behind it in the problem.
        for later in made.ops[n + 1 :]:
            was_ready = all(ends_s[name] <= span.start_s for name in inputs_of[later.name])
            needs_a_later_one = any(o.name in inputs_of[later.name] for o in made.ops[n:])
            assert not was_ready or needs_a_later_one or position_of[later.name] > position_of[span.name]
        free_s = span.end_s


def test_what_is_no_order():
    with pytest.raises(InputError, match="not so recv2$"):
        step_timeline(figure_1a(), ("recv1",))
