"""List scheduling, compared with schedules by hand and with the bounds that every such schedule keeps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caramel.errors import InputError
from caramel.measure.makespan import makespan

DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}
TIMES = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}


@pytest.mark.parametrize(("threads", "expected"), [(1, 10.0), (2, 8.0), (5, 8.0)])
def test_a_diamond(threads, expected):
    assert makespan(DIAMOND, TIMES, threads) == expected


def test_what_was_ready_first_runs_first():
    # "x" (0..1) and "y" (0..3) begin. At 1 "z" follows (1..3), which has been ready since 0, and not "long", which
    # is ready only now. At 3 both threads are free for "w" and "long", which ends at 8.
    inputs = {"x": [], "long": ["x"], "y": [], "z": [], "w": []}
    assert makespan(inputs, {"x": 1.0, "y": 3.0, "z": 2.0, "w": 2.0, "long": 5.0}, 2) == 8.0


def test_nothing_and_ops_that_were_not_timed():
    assert makespan({}, {}, 2) == 0.0
    assert makespan({"a": [], "b": ["a"]}, {"b": 2.0}, 1) == 2.0
    assert makespan({"a": [], "b": ["a", "a"]}, {"a": 1.0, "b": 2.0}, 1) == 3.0
    assert makespan({"b": ["elsewhere"]}, {"b": 2.0}, 1) == 2.0


def test_bad_input():
    with pytest.raises(InputError, match="at least one thread"):
        makespan(DIAMOND, TIMES, 0)
    with pytest.raises(InputError, match="comes after it"):
        makespan({"b": ["a"], "a": []}, TIMES, 1)


@st.composite
def dags(draw):
    size = draw(st.integers(1, 12))
    inputs = {str(n): draw(st.lists(st.sampled_from([str(m) for m in range(n)]))) if n else [] for n in range(size)}
    return inputs, {name: float(draw(st.integers(0, 9))) for name in inputs}


@given(dags(), st.integers(1, 4))
def test_bounds(dag, threads):
    inputs, times = dag
    path = {}
    for name, producers in inputs.items():
        path[name] = times[name] + max((path[p] for p in producers), default=0.0)
    longest, total = max(path.values()), sum(times.values())
    found = makespan(inputs, times, threads)
    assert max(longest, total / threads) <= found + 1e-9
    assert found <= total / threads + (1 - 1 / threads) * longest + 1e-9  # Graham's bound
    assert makespan(inputs, times, 1) == total
    assert makespan(inputs, times, len(inputs)) == longest
