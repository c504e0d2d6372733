"""The benchmark of the planner itself, on small steps: times are taken, and its search is counted."""

import statistics

import pytest

from benchmarks.planner_speed import chain, measure, network_for, rules, table


def test_the_step_and_its_network():
    step = chain(7)
    assert len(step.gradients) == 7
    assert step.compute_s == 1.0
    assert max(g.ready_s for g in step.gradients) <= 1 + 1e-9
    assert min(g.read_s for g in step.gradients) == 0
    total_bytes = sum(g.size_bytes for g in step.gradients)
    assert 0.5 < network_for(step).time_s(total_bytes) < 1.5


@pytest.mark.soak
def test_everything_is_timed():
    rows = measure(rounds=1, planned=4, predicted=6, ruled=5)
    assert [(row["what"], row["gradients"]) for row in rows] == [
        ("time of a new size", 4),
        ("prediction", 6),
        ("planning", 4),
        *((what, 5) for what in rules()),
    ]
    assert all(len(row["seconds"]) == 1 and min(row["seconds"]) > 0 for row in rows)
    assert rows[2]["evaluations"] > 0
    record = {"rounds": 1, "rows": [{**row, "goal_s": 0.0} for row in rows]}
    lines = table(record).splitlines()
    assert [line.endswith("| **no** |") for line in lines] == [False, False, *(True for _ in rows)]
    assert f"{statistics.median(rows[1]['seconds']):.3g} s" in lines[3]
