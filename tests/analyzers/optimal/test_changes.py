"""Changes of schedules: whatever is changed, every gradient still travels, once, and where it may."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_instances import anything_on_a_curve
from policy_common import anything, boundaries, gradient

from caramel.analyzers.fact_checks import fact_error
from caramel.analyzers.optimal.buckets import BACK, FORE, BucketPlans, count_pieces
from caramel.analyzers.optimal.changes import Changes
from caramel.facts import BACKWARD, FORWARD, Boundaries, Piece, Schedule, Scheduled


def each_alone(found):
    """A schedule of one transfer for each gradient, what other gradients wait for first."""
    order = sorted(found.gradients, key=lambda g: (g.level, g.ready_s))
    return Schedule(tuple(Scheduled((Piece(g.name, 0, g.elements),), BACKWARD, "alone") for g in order), "by hand")


def check(found, schedule):
    """That the facts' own check finds nothing, and what may not wait, or be cut, does not."""
    assert fact_error(schedule, {Boundaries: found, Schedule: schedule}) == ""
    sent = {}
    for transfer in schedule.transfers:
        assert len({g.kind for g in found.gradients for p in transfer.pieces if p.gradient == g.name}) == 1
        for piece in transfer.pieces:
            of = next(g for g in found.gradients if g.name == piece.gradient)
            assert transfer.window == BACKWARD or of.is_postponable
            assert of.divisible or piece.elements == of.elements
            sent.setdefault(of.name, []).append((piece.start, piece.elements))
    for of in found.gradients:
        if of.elements is None:
            assert sent[of.name] == [(0, None)]
            continue
        end = 0
        for start, elements in sorted(sent[of.name]):
            assert start == end and (elements > 0 or of.elements == 0)
            end += elements
        assert end == of.elements
    levels = [
        next(g.level for g in found.gradients if g.name == t.pieces[0].gradient)
        for t in schedule.transfers
        if t.window == BACKWARD
    ]
    assert levels == sorted(levels)


@settings(max_examples=60)
@given(found=anything(), seed=st.integers(0, 2**20))
def test_random_changes_keep_a_schedule_whole(found, seed):
    if not found.gradients:
        return
    plans, rng = BucketPlans(found), random.Random(seed)
    changes, given_schedule = Changes(plans), each_alone(found)
    windows = plans.windows(given_schedule)
    for _ in range(40):
        windows = changes.random_change(windows, rng) or windows
    check(found, plans.schedule(windows, given_schedule))


@pytest.mark.parametrize("seed", range(6))
def test_neighbours_of_every_kind_keep_a_schedule_whole(seed):
    found, _ = anything_on_a_curve(seed)
    plans, rng = BucketPlans(found), random.Random(seed)
    changes, given_schedule = Changes(plans), each_alone(found)
    windows = plans.windows(given_schedule)
    for _ in range(15):
        windows = changes.random_change(windows, rng) or windows
    for kind in changes.kinds:
        for number, neighbour in enumerate(kind(windows)):
            if number < 60:
                check(found, plans.schedule(neighbour, given_schedule))


def test_random_changes_are_of_every_kind():
    """From two gradients in one bucket: apart, in the other window, cut, in another order and together again."""
    found = boundaries(gradient("second", 4, 2, 4096), gradient("first", 8, 0, 4096))
    plans, rng = BucketPlans(found), random.Random(3)
    changes = Changes(plans)
    together = Schedule((Scheduled((Piece("second", 0, 4096), Piece("first", 0, 4096)), BACKWARD, ""),), "by hand")
    windows, seen = plans.windows(together), set()
    for _ in range(300):
        windows = changes.random_change(windows, rng) or windows
        made = plans.schedule(windows, together)
        counts = [sum(t.window == window for t in made.transfers) for window in (FORWARD, BACKWARD)]
        seen |= {("forward", counts[0] > 0), ("cut", count_pieces(windows) > 2), ("joined", len(made.transfers) == 1)}
        order = [t.pieces[0].gradient for t in made.transfers if t.window == BACKWARD]
        seen.add(("second after first", order == ["first", "second"]))
        assert len(windows[FORE]) + len(windows[BACK]) == len(made.transfers)
    assert seen == {
        (what, is_so) for what in ("forward", "cut", "joined", "second after first") for is_so in (True, False)
    }
