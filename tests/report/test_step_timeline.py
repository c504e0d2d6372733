"""Lanes: nothing is lost where bars are joined, tracks never overlap, and gaps are what bars leave."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caramel.report.step_timeline import Bar, Lanes, StepTimeline, gaps, in_order, tracks

TIMES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12), st.sampled_from(["compute", "update"])), max_size=30)


def bars_of(times):
    return in_order(
        Bar(kind, f"op {n}", float(start), float(start + length)) for n, (start, length, kind) in enumerate(times)
    )


@given(TIMES)
def test_tracks_hold_all_bars_and_none_overlap(times):
    bars = bars_of(times)
    found = tracks(bars)
    assert sorted(bar.name for track in found for bar in track) == sorted(bar.name for bar in bars)
    for track in found:
        assert all(before.end_s <= after.start_s for before, after in zip(track, track[1:]))
    most = max(
        (sum(b.start_s <= t < max(b.end_s, b.start_s + 0.5) for b in bars) for t in np.arange(0, 75, 0.5)), default=0
    )
    assert len(found) <= most


@given(TIMES)
def test_gaps_are_what_bars_leave(times):
    bars = bars_of(times)
    found = list(gaps(bars, 0.0, 50.0))
    for moment in np.arange(0.25, 50, 0.5):  # bars begin and end at whole seconds
        is_busy = any(bar.start_s < moment < bar.end_s for bar in bars)
        assert is_busy != any(start_s < moment < end_s for start_s, end_s in found)
    assert all(0 <= start_s < end_s <= 50 for start_s, end_s in found)


@given(TIMES, st.integers(0, 100))
def test_joined_bars_stand_for_all_ops(times, least_s):
    bars = bars_of(times)
    step = StepTimeline("measured", 75.0, (Lanes(0, bars, ()),)).merged(float(least_s))
    joined = step.workers[0].computation
    assert sum(bar.count for bar in joined) == len(bars)
    assert {bar.name for bar in bars if bar.time_s >= least_s} <= {bar.name for bar in joined}
    for track in tracks(joined):
        assert all(before.end_s <= after.start_s for before, after in zip(track, track[1:]))


def test_neighbours_are_joined_and_others_are_not():
    short = [Bar("compute", str(n), n * 1.0, n + 0.5) for n in range(4)]
    other, far = Bar("update", "u", 4.0, 4.5), Bar("compute", "far", 20.0, 20.5)
    lanes = Lanes(0, (*short, other, far), (), ((1.0, 5), (1.5, 7), (9.0, 1)))
    found = StepTimeline("measured", 21.0, (lanes,)).merged(2.0).workers[0]
    assert [(bar.kind, bar.count, bar.start_s, bar.end_s) for bar in found.computation] == [
        ("compute", 4, 0.0, 3.5),
        ("update", 1, 4.0, 4.5),
        ("compute", 1, 20.0, 20.5),
    ]
    assert found.received == ((1.5, 12), (9.0, 1))


def test_of_several_kinds_the_longest_counts():
    bars = (Bar("compute", "a", 0.0, 0.3), Bar("update", "b", 0.3, 1.0), Bar("compute", "c", 1.0, 1.2))
    (found,) = StepTimeline("measured", 2.0, (Lanes(0, bars, ()),)).merged(1.1).workers[0].computation
    assert (found.kind, found.count, found.end_s) == ("update", 3, 1.2)


@pytest.mark.parametrize("least_s", [0.0, 0.1])
def test_nothing_is_joined_that_is_long_enough(least_s):
    bars = tuple(Bar("compute", str(n), float(n), n + 1.0) for n in range(5))
    step = StepTimeline("predicted", 5.0, (Lanes(0, bars, bars),))
    assert step.merged(least_s) == step
