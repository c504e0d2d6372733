"""The optimal packing: against brute force, its own promises on generated cases, and its preferences."""

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packing_oracles import (
    Unit,
    boundaries_of,
    by_brute_force,
    by_splits,
    instances,
    line_of,
    partitions,
    waits_of,
    waits_of_packing,
)

from caramel.analyzers.analyzer import analyse
from caramel.analyzers.cost.bounds import checked_boundaries, lower_bounds
from caramel.analyzers.cost.network import Network
from caramel.analyzers.optimal.forward_fill import fill_forward_window
from caramel.analyzers.optimal.problem import TIE_TOLERANCE
from caramel.analyzers.optimal.search import optimal_buckets, optimal_packing, pack
from caramel.analyzers.optimal.windows import Window, fewest_buckets, least_late_s
from caramel.errors import InputError
from caramel.facts import BACKWARD, FORWARD, Boundaries, Boundary, Buckets, Schedule
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.line import Line
from caramel.netmodel.model import NetworkModel
from caramel.simulator import simulate


@pytest.mark.parametrize("kept", [0.0, 0.4])
def test_least_of_all_partitions_windows_and_orders(kept):
    """Times are whole seconds, so within 0.2 % is equal."""
    later = 0
    for units, compute, start in instances(2, 100, kept=kept):
        boundaries = boundaries_of(units, compute)
        smooth, least = by_brute_force(units, compute, start)
        found = pack(boundaries, line_of(start))
        assert found.exposed_s == pytest.approx(smooth, abs=1e-9)
        assert found.is_optimal and found.bound_s <= smooth + 1e-9
        assert smooth <= least + start  # never to stall costs at most one start
        later += any(t.window == FORWARD for t in found.transfers)
    assert later > 10


def test_no_room_in_either_window_leaves_nothing_to_stalls():
    """Where the first gradient has no room, stalling the forward pass gains nothing."""
    for units, compute, start in instances(3, 60):
        units[0] = replace(units[0], ready=compute, read=0)
        smooth, least = by_brute_force(units, compute, start)
        assert smooth == least


@pytest.mark.parametrize("kept", [0.0, 0.4])
def test_least_of_all_splits_and_buckets(kept):
    for units, compute, start in instances(4, 40, kept=kept, most=5, bytes_=11):
        assert pack(boundaries_of(units, compute), line_of(start)).exposed_s == pytest.approx(
            by_splits(units, compute, start), abs=1e-9
        )


@pytest.mark.parametrize("kept", [0.0, 0.4])
def test_orders_that_disagree(kept):
    proved = 0
    for units, compute, start in instances(5, 80, agree=False, kept=kept):
        smooth, _ = by_brute_force(units, compute, start)
        found = pack(boundaries_of(units, compute), line_of(start))
        assert found.bound_s - 1e-9 <= smooth <= found.exposed_s + 1e-9
        if found.is_optimal:
            assert found.exposed_s == pytest.approx(smooth, abs=1e-9)
        else:
            assert "not proved" in found.note
        proved += found.is_optimal
    assert proved > 50


def test_windows_that_overlap():
    """A read after the first gradient is ready: the channel's time counts once."""
    rng, missed = random.Random(6), 0
    for _ in range(150):
        compute = rng.randint(5, 10)
        back, fore = (sorted(rng.choices(range(compute + 1), k=3)) for _ in range(2))
        units = [Unit(rng.randint(1, 4), compute - b, f) for b, f in zip(back, fore)]
        start = rng.randint(0, 2)
        smooth = by_splits(units, compute, start)
        found = pack(boundaries_of(units, compute), line_of(start))
        assert found.bound_s - 1e-9 <= smooth <= found.exposed_s + 1e-9
        missed += found.exposed_s > smooth + 1e-9
    assert missed <= 3  # 7 if no end of the forward window is tried


def test_whole_gradients():
    """Nothing is cut, and small cases come close to the best choice of whole gradients."""
    best = 0
    for units, compute, start in instances(7, 40, bytes_=9):
        boundaries = boundaries_of(units, compute)
        found = pack(boundaries, line_of(start), split=False)
        assert all(p.elements == boundaries.by_name[p.gradient].elements for t in found.transfers for p in t.pieces)
        least = by_splits(units, compute, start, may_split=False)
        assert found.exposed_s >= least - 1e-9
        best += found.exposed_s <= least + 1e-9
    assert best >= 36


def test_backward_only_is_the_best_of_all_buckets():
    for units, compute, start in instances(8, 60, agree=False, bytes_=9):
        kept = [replace(u, free=False) for u in sorted(units, key=lambda u: -u.ready)]
        found = pack(boundaries_of(units, compute), line_of(start), forward=False)
        assert found.exposed_s == pytest.approx(by_splits(kept, compute, start), abs=TIE_TOLERANCE * found.iteration_s)
        assert found.is_optimal and all(t.window == BACKWARD for t in found.transfers)


@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0, 3)), min_size=1, max_size=12),
    st.sampled_from((0.0, 0.1, 1.0, 4.0)),
)
def test_fewest_buckets_and_least_time_agree(pieces, start):
    rooms = tuple(sorted(room for room, _ in pieces))
    window = Window(rooms, tuple(time for _, time in pieces), ("float32",) * len(pieces), start, 1e-12)
    late = least_late_s(window)
    assert fewest_buckets(window, late + 1e-9) is not None
    if late > 1e-6:
        assert fewest_buckets(window, late - 1e-6) is None


def test_fewest_cuts_and_then_fewest_bytes():
    rng, cut = random.Random(11), 0
    for _ in range(200):
        times = [rng.randint(1, 4) for _ in range(3)]
        back, fore = (np.cumsum([rng.randint(0, 3) for _ in times]) for _ in range(2))
        free, cuttable = ([rng.random() < 0.8 for _ in times] for _ in range(2))
        choices = [
            (sum(0 < x < t for x, t in zip(later, times)), sum(later))
            for later in itertools.product(*(range(t + 1) for t in times))
            if all(x in (0, t) or c for x, t, c in zip(later, times, cuttable))
            and not any(x and not f for x, f in zip(later, free))
            and all(np.cumsum(later) <= fore)
            and all(np.cumsum(times) - np.cumsum(later) <= back)
        ]
        found = fill_forward_window(times, free, cuttable, back, fore, 1e-9)
        assert (found is None) == (not choices)
        if found is not None:
            assert (found.splits, round(sum(found.postponed_s), 6)) == min(choices)
            cut += found.splits > 0
    assert cut > 10


dtypes = st.sampled_from(("float32", "float32", "float16"))
shares = st.integers(0, 20).map(lambda n: n / 20)


@st.composite
def steps(draw):
    """A step of any kind: ties, zero sizes, sparse ones, levels, orders that disagree, huge and tiny times."""
    scale = draw(st.sampled_from((1e-9, 1e-3, 1.0, 1e6)))
    gradients = []
    for n in range(draw(st.integers(1, 12))):
        elements = draw(st.sampled_from((0, 1, 3, 64, 4096, 4097, 10**6)))
        gradients.append(
            Boundary(
                f"g{n}",
                draw(dtypes),
                elements if draw(st.integers(0, 9)) else None,
                4.0 * elements,
                (0.4 + 0.65 * draw(shares)) * scale,
                draw(shares) * (0.4 if draw(st.integers(0, 9)) else 1.0) * scale,
                update_s=0.01 * scale * draw(st.integers(0, 1)),
                level=int(draw(st.integers(0, 9)) == 0),
                kept_reason="" if draw(st.integers(0, 3)) else "it is clipped by the global norm",
                divisible=draw(st.integers(0, 9)) > 0,
            )
        )
    rho, start = draw(st.sampled_from((0.1, 0.7, 1.0, 3.0))), draw(st.sampled_from((0.0, 0.01, 0.3)))
    total = max(1.0, sum(g.size_bytes for g in gradients))
    line = Line(start * rho * scale, (1 - start) * rho * scale / total)
    return Boundaries(tuple(sorted(gradients, key=lambda g: (g.ready_s, g.name))), scale), line


@settings(max_examples=60)
@given(steps(), st.booleans(), st.booleans())
def test_promises(step, forward, split):
    boundaries, line = step
    found = pack(boundaries, line, forward=forward, split=split)
    rounding = 1e-9 * (boundaries.compute_s + sum(line.time_s(g.size_bytes) for g in boundaries.gradients))
    waits, stalled = waits_of_packing(found, checked_boundaries(boundaries, line), line)
    assert waits == pytest.approx(found.exposed_s, abs=rounding) and stalled <= rounding
    assert found.iteration_s == pytest.approx(boundaries.compute_s + boundaries.updates_s + waits, abs=rounding)
    assert found.iteration_s >= lower_bounds(boundaries, line).lb2_s - rounding
    assert found.exposed_s >= found.bound_s - rounding
    check_pieces(boundaries, found)
    idle = replace(boundaries, gradients=tuple(replace(g, update_s=0.0) for g in boundaries.gradients))
    step = simulate(idle, Schedule(found.transfers, ""), line.time_s)
    assert step.exposed_s == pytest.approx(found.exposed_s, abs=rounding)
    windows = [t.window for t in found.transfers]
    assert windows == sorted(windows, reverse=True)
    for window, edge in ((FORWARD, lambda g: g.read_s), (BACKWARD, lambda g: min(g.ready_s, boundaries.compute_s))):
        pick = min if window == FORWARD else max
        of = [[boundaries.by_name[p.gradient] for p in t.pieces] for t in found.transfers if t.window == window]
        edges = [pick(map(edge, gradients)) for gradients in of]
        assert edges == sorted(edges)


def check_pieces(boundaries, packing):
    """Every element travels once, and nothing is where it must not be."""
    ranges = {g.name: [] for g in boundaries.gradients}
    for t in packing.transfers:
        of = [boundaries.by_name[p.gradient] for p in t.pieces]
        assert len({(g.dtype, g.level) for g in of}) == 1
        assert len(of) == 1 or all(g.elements is not None and g.level == 0 for g in of)
        assert t.window == BACKWARD or all(g.is_postponable and g.elements is not None for g in of)
        assert t.reason
        for p in t.pieces:
            ranges[p.gradient].append((p.start, p.elements, t.window))
    for g in boundaries.gradients:
        if len(ranges[g.name]) == 1:
            assert ranges[g.name][0][:2] == (0, g.elements)
            continue
        (start, first, window), (cut, rest, other) = sorted(ranges[g.name])
        assert (start, cut, first + rest) == (0, first, g.elements) and g.divisible
        assert (window, other) == (BACKWARD, FORWARD) and first > 0 and rest > 0
        assert g.elements <= 4096 or cut % 64 == 0


def model(count, compute_s=1.0):
    """Layers of equal times and growing sizes."""
    gradients = [
        Boundary(
            f"layer{n:02d}",
            "float32",
            10_000 * (n + 1),
            40_000.0 * (n + 1),
            compute_s * (1 - 0.65 * n / count),
            compute_s * 0.35 * n / count,
        )
        for n in range(count)
    ]
    return Boundaries(tuple(sorted(gradients, key=lambda g: g.ready_s)), compute_s)


def line_for(boundaries, rho, start=0.01):
    total = sum(g.size_bytes for g in boundaries.gradients)
    return Line(rho * start * boundaries.compute_s, rho * (1 - start) * boundaries.compute_s / total)


def test_more_bandwidth_is_no_slower():
    boundaries = model(30)
    steps = [pack(boundaries, line_for(boundaries, rho)) for rho in (0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 4.0)]
    assert all(s.is_optimal for s in steps)
    for fast, slow in itertools.pairwise(steps):
        assert fast.bound_s <= slow.bound_s + 1e-6 and fast.iteration_s <= slow.iteration_s * (1 + TIE_TOLERANCE)


def test_nothing_is_postponed_where_that_gains_nothing():
    boundaries = model(30)
    little, much = (pack(boundaries, line_for(boundaries, rho)) for rho in (0.2, 1.0))
    assert all(t.window == BACKWARD for t in little.transfers)
    assert any(t.window == FORWARD for t in much.transfers)


def test_both_windows_are_worth_a_third_of_the_step_where_both_are_needed():
    boundaries = model(30)
    line = line_for(boundaries, 1.0)
    assert pack(boundaries, line, forward=False).iteration_s > 1.2 * pack(boundaries, line).iteration_s


def test_one_start_costs_more_than_all_else():
    """With dear starts and cheap bytes, one transfer; with free starts, none is late for want of one."""
    boundaries = model(10)
    assert len(pack(boundaries, Line(5.0, 1e-12)).transfers) == 1
    free = pack(boundaries, line_for(boundaries, 0.9, start=0.0))
    assert free.iteration_s <= lower_bounds(boundaries, line_for(boundaries, 0.9, start=0.0)).lb2_s * (
        1 + TIE_TOLERANCE
    )


def test_alone_takes_channel_time():
    boundaries = model(6)
    lone = replace(boundaries.gradients[2], elements=None)
    mixed = replace(boundaries, gradients=(*boundaries.gradients[:2], lone, *boundaries.gradients[3:]))
    found = pack(mixed, line_for(boundaries, 0.5))
    (transfer,) = [t for t in found.transfers if t.pieces[0].gradient == lone.name]
    assert len(transfer.pieces) == 1 and transfer.window == BACKWARD and "Sparse" in transfer.reason.title()
    assert found.exposed_s == pytest.approx(waits_of_packing(found, mixed, line_for(boundaries, 0.5))[0])


def test_beside_what_travels_alone_it_is_still_the_best():
    """Sparse gradients are whole and alone: of all buckets of neighbours around them the best."""
    rng = random.Random(9)
    for units, compute, start in instances(10, 40, bytes_=8):
        boundaries = boundaries_of([replace(u, free=False) for u in units], compute)
        lone = rng.randrange(len(units))
        name = f"g{lone}"
        sparse = tuple(replace(g, elements=None) if g.name == name else g for g in boundaries.gradients)
        found = pack(replace(boundaries, gradients=sparse), line_of(start))
        least = min(around(units, lone, compute, start))
        assert found.exposed_s == pytest.approx(least, abs=TIE_TOLERANCE * found.iteration_s)
        assert found.is_optimal


def around(units, lone, compute, start):
    """Waits with one gradient alone, and the others in all ways in the backward window."""
    others = [n for n in range(len(units)) if n != lone]
    for blocks in partitions(others):
        chosen = [[lone], *blocks]
        transfers = [
            (BACKWARD, start + sum(units[n].size for n in b), max(units[n].ready for n in b), 0) for b in chosen
        ]
        yield waits_of(sorted(transfers, key=lambda t: t[2]), compute)[0]


def test_no_gradients_and_one_worker():
    nothing = pack(Boundaries((), 2.0), Line(1.0, 1.0))
    assert (nothing.transfers, nothing.exposed_s, nothing.iteration_s) == ((), 0.0, 2.0) and nothing.is_optimal
    alone = pack(model(5), Line(0.0, 0.0))
    assert alone.exposed_s == 0 and len(alone.transfers) == 1


def test_reasons_have_thresholds_and_times():
    found = pack(model(30), line_for(model(30), 1.0))
    fore, back = found.transfers[0].reason, found.transfers[-1].reason
    assert fore.startswith("Must end by ") and "ms, when layer" in fore and "is read first" in fore
    assert back.startswith("Can start at ") and "is ready" in back and "after the computation" in back


def test_what_nothing_reads_may_travel_until_the_computation_ends():
    kept = Boundary("kept", "float32", 8, 8.0, 5.0, 0.0, kept_reason="it is clipped by the global norm")
    boundaries = Boundaries((kept, Boundary("unread", "float32", 4, 4.0, 10.0, math.inf)), 10.0)
    found = pack(boundaries, Line(1.0, 1.0))
    assert found.exposed_s == by_splits([Unit(8, 5, 0, False), Unit(4, 10, 10)], 10, 1) < 9
    assert "nothing reads unread before" in found.transfers[0].reason
    assert "clipped by the global norm" in found.transfers[1].reason


def test_analyzers():
    network = Network(CollectiveOptions(network=NetworkModel.from_link_rate(1.25e8)), 4)
    boundaries = model(8, compute_s=0.02)
    for forward in (True, False):
        schedule = analyse([optimal_packing(forward=forward)], [boundaries, network], [Schedule])[Schedule]
        line = network.line(sum(g.size_bytes for g in boundaries.gradients))
        assert schedule.transfers == pack(boundaries, line, forward=forward).transfers
        assert "exposed" in schedule.reason
    buckets = analyse([optimal_buckets()], [boundaries, network], [Buckets])[Buckets]
    assert sorted(sum(buckets.buckets, ())) == sorted(boundaries.by_name)
    assert [list(b) for b in buckets.buckets] == [[p.gradient for p in t.pieces] for t in schedule.transfers]


def test_an_unknown_network_is_refused():
    with pytest.raises(InputError, match="network="):
        analyse([optimal_packing()], [model(3), Network(CollectiveOptions(), 4)], [Schedule])
