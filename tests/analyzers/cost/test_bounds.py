"""Lower bounds: no plan of brute force is faster, by hand on small cases, and what is refused."""

import math
from dataclasses import replace

import pytest
from packing_oracles import Unit, boundaries_of, by_brute_force, instances, line_of

from caramel.analyzers.cost import bounds as bounds_module
from caramel.analyzers.cost.bounds import lower_bounds
from caramel.errors import InputError
from caramel.facts import Boundaries, Boundary
from caramel.netmodel.line import Line


@pytest.mark.parametrize(("agree", "kept"), [(True, 0.0), (True, 0.4), (False, 0.0), (False, 0.4)])
def test_no_plan_is_faster(agree, kept):
    reached = 0
    for units, compute, start in instances(1, 80, agree=agree, kept=kept):
        found = lower_bounds(boundaries_of(units, compute), line_of(start))
        _, least = by_brute_force(units, compute, start)
        assert compute <= found.lb1_s <= found.lb2_s <= compute + least
        reached += found.lb2_s == compute + least > compute
    assert reached > 10  # a bound of 0 would be valid, too


def test_overlapping_windows_are_counted_once():
    """One gradient that is ready at once and read at the end has all of the step, not twice."""
    boundaries = boundaries_of([Unit(9, 0, 5)], 5)
    assert lower_bounds(boundaries, line_of(1)).lb2_s == 1 + 9
    _, least = by_brute_force([Unit(5, 0, 3)], 3, 1)
    assert lower_bounds(boundaries_of([Unit(5, 0, 3)], 3), line_of(1)).lb2_s <= 3 + least


def test_a_set_by_hand():
    """Rooms 2 and 1, 5 bytes, a = 1: LB1 has 1 + 5 - 3, LB2 the least of 6 - 2, 6 - 1 and 7 - 3."""
    found = lower_bounds(boundaries_of([Unit(5, 8, 1)], 10), line_of(1))
    assert (found.lb1_s, found.lb2_s) == (13, 14)
    assert (found.gradients, found.set_bytes, found.backward_room_s, found.forward_room_s) == (("g0",), 5, 2, 1)


def test_what_cannot_wait_has_one_window():
    later = [Unit(4, 6, 3), Unit(4, 8, 2)]
    free = lower_bounds(boundaries_of(later, 10), line_of(1))
    kept = lower_bounds(boundaries_of([replace(u, free=False) for u in later], 10), line_of(1))
    assert kept.lb1_s == kept.lb2_s == 10 + 9 - 4 > free.lb2_s


def test_updates_are_computation():
    boundaries = boundaries_of([Unit(2, 8, 1)], 10, update_s=3.0)
    assert lower_bounds(boundaries, line_of(0)).lb2_s == 13
    assert lower_bounds(boundaries, line_of(9)).lb2_s == 10 + 11 - 2


@pytest.mark.parametrize("boundaries", [Boundaries((), 3.0), boundaries_of([Unit(5, 3, 0)], 3)])
def test_one_worker_or_no_gradients(boundaries):
    assert lower_bounds(boundaries, Line(0.0, 0.0)) == bounds_module.Bounds(3.0, 3.0)


def test_many_gradients_leave_thresholds_out(monkeypatch):
    units = [Unit(1, 40 - n, n // 3) for n in range(30)]
    every = lower_bounds(boundaries_of(units, 40), line_of(2)).lb2_s
    monkeypatch.setattr(bounds_module, "_MOST_THRESHOLDS", 4)
    some = lower_bounds(boundaries_of(units, 40), line_of(2)).lb2_s
    assert 40 < some <= every


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"size_bytes": -1.0}, "size_bytes of gradient 'w'"),
        ({"ready_s": math.nan}, "ready_s of gradient 'w'"),
        ({"read_s": math.nan}, "read_s of gradient 'w'"),
        ({"update_s": math.inf}, "update_s of gradient 'w'"),
        ({"elements": -4}, "elements of gradient 'w'"),
    ],
)
def test_wrong_numbers_are_refused(change, says):
    gradient = replace(Boundary("w", "float32", 4, 16.0, 1.0, 0.0), **change)
    with pytest.raises(InputError, match=says):
        lower_bounds(Boundaries((gradient,), 1.0), Line(0.1, 0.1))


def test_ready_after_the_computation_is_at_its_end():
    late, end = (Boundaries((Boundary("w", "float32", 4, 16.0, t, 0.0),), 1.0) for t in (2.0, 1.0))
    assert lower_bounds(late, Line(0.5, 0.1)) == lower_bounds(end, Line(0.5, 0.1))


def test_wrong_lines_and_names_are_refused():
    gradient = Boundary("w", "float32", 4, 16.0, 1.0, math.inf)
    assert lower_bounds(Boundaries((gradient,), 1.0), Line(0.0, 1.0)).lb2_s == 16
    with pytest.raises(InputError, match="a_s"):
        lower_bounds(Boundaries((gradient,), 1.0), Line(-1.0, 0.1))
    with pytest.raises(InputError, match="one name"):
        lower_bounds(Boundaries((gradient, gradient), 1.0), Line(0.0, 0.1))
