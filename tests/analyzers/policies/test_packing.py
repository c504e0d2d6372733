"""Policies of packing against their definitions, carried out another way."""

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from policy_common import UNKNOWN, anything, boundaries, buckets_of, chains, gradient, line

from caramel.analyzers.analyzer import analyse
from caramel.analyzers.cost.network import Network
from caramel.analyzers.policies.batching import fixed, single
from caramel.analyzers.policies.credit_packing import bytescheduler, p3
from caramel.analyzers.policies.packing import backward_only, paper_packing, priority
from caramel.errors import InputError, PlanError
from caramel.facts import BACKWARD, FORWARD, Boundaries, Buckets, Schedule
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.model import NetworkModel
from caramel.simulator import simulate, validate_schedule, wire_bytes

POLICIES = [backward_only(), paper_packing(), priority(), priority(3), bytescheduler(), bytescheduler(3, 7), p3(3)]
NAMES = [policy.name for policy in POLICIES]


def schedule_of(policy, found, network, batching=None):
    batching = single() if batching is None else batching
    return analyse([batching, policy], [found, network], [Schedule])[Schedule]


def pieces_of(schedule, window):
    """Gradients of the transfers of a window."""
    return [tuple(p.gradient for p in t.pieces) for t in schedule.transfers if t.window == window]


# -- what holds for all of them ------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES, ids=NAMES)
@given(found=anything(), threshold=st.integers(0, 12))
@settings(max_examples=60)
def test_schedules_are_whole(policy, found, threshold):
    network = line(2, 1)
    made = schedule_of(policy, found, network, fixed(threshold))
    validate_schedule(found, made)
    assert all(t.reason.startswith(f"{t.window} window: ") for t in made.transfers)
    assert schedule_of(policy, found, network, fixed(threshold)) == made
    work_s = found.compute_s + sum(wire_bytes(found, t) + 2 for t in made.transfers)
    assert found.compute_s <= simulate(found, made, network.time_s).iteration_s <= work_s + 1e-6


@pytest.mark.parametrize("policy", POLICIES, ids=NAMES)
def test_nothing_one_and_empty_ones(policy):
    assert schedule_of(policy, Boundaries((), 1.0), line(1, 1)).transfers == ()
    assert len(schedule_of(policy, boundaries(gradient("w", 2, 0, 0)), line(1, 1)).transfers) == 1
    found = boundaries(gradient("a", 0, 0, 0), gradient("b", 0, 0, 0))
    assert len(schedule_of(policy, found, line(1, 1)).transfers) == 2


@pytest.mark.parametrize("policy", POLICIES, ids=NAMES)
def test_one_worker_sends_in_no_time(policy):
    network = Network(CollectiveOptions(network=NetworkModel.from_link_rate(1e9)), 1)
    made = schedule_of(policy, boundaries(gradient("b", 3, 1), gradient("a", 5, 0)), network)
    assert {t.window for t in made.transfers} == {BACKWARD}


@pytest.mark.parametrize("policy", POLICIES, ids=NAMES)
@pytest.mark.parametrize(
    ("buckets", "message"),
    [
        (Buckets((("a", "x"),), ("",)), "bucket 0 has gradient 'x'; there are only a, b"),
        (Buckets((("a",), ()), ("", "")), "bucket 1 is empty"),
        (Buckets((("a",), ("b",)), ("",)), "2 buckets, but 1 reasons"),
        (Buckets((("a",),), ("",)), "'b' is in no transfer"),
        (Buckets((("a",), ("a", "b")), ("", "")), "'a'"),
    ],
)
def test_buckets_that_are_none(policy, buckets, message):
    found = boundaries(gradient("a", 1), gradient("b", 2), gradient("half", 3, dtype="float16"))
    with pytest.raises(PlanError, match=message):
        analyse([policy], [found, buckets, line(100, 1)], [Schedule])


@pytest.mark.parametrize("policy", POLICIES[:3], ids=NAMES[:3])
def test_buckets_of_two_kinds(policy):
    found = boundaries(gradient("a", 1), gradient("half", 3, dtype="float16"))
    with pytest.raises(PlanError, match="more than one element type"):
        analyse([policy], [found, Buckets((("a", "half"),), ("",)), line(100, 1)], [Schedule])


@pytest.mark.parametrize("policy", [paper_packing(), priority(), bytescheduler(), p3()])
def test_those_that_need_times_say_so(policy):
    with pytest.raises(InputError, match="needs.*network="):
        schedule_of(policy, boundaries(gradient("w", 1)), UNKNOWN)


def test_reasons_keep_those_of_the_buckets():
    found = boundaries(gradient("a", 1), gradient("b", 2))
    made = schedule_of(backward_only(), found, UNKNOWN, fixed(8))
    (reason,) = buckets_of(fixed(8), found).reasons
    assert made.transfers[0].reason == f"backward window: complete at 2 s; {reason}"


# -- backward alone --------------------------------------------------------------------------------


@given(chains(), st.integers(0, 12), st.integers(1, 5), st.integers(0, 2))
def test_backward_alone_is_the_recurrence_of_mg_wfbp(found, threshold, a, b):
    network = line(a, b)
    buckets = buckets_of(fixed(threshold), found).buckets
    made = schedule_of(backward_only(), found, network, fixed(threshold))
    assert pieces_of(made, BACKWARD) == list(buckets)
    end_s = 0.0
    for bucket in buckets:
        members = [found.by_name[name] for name in bucket]
        end_s = max(end_s, members[-1].ready_s) + a + b * sum(g.size_bytes for g in members)
    assert simulate(found, made, network.time_s).iteration_s == pytest.approx(max(end_s, found.compute_s))


def test_buckets_in_any_order_are_sent_as_they_are_complete():
    found = boundaries(gradient("a", 1), gradient("b", 2), gradient("c", 3))
    made = analyse([backward_only()], [found, Buckets((("c", "a"), ("b",)), ("", ""))], [Schedule])[Schedule]
    assert pieces_of(made, BACKWARD) == [("b",), ("c", "a")]


# -- Caramel, section 4.3 --------------------------------------------------------------------------


def packed_on_a_grid(found, cost):
    """The paper's two stages on units of time that are free or taken: (forward, backward, what is beyond)."""
    order = [g.name for g in found.gradients]
    total, far = int(found.compute_s), 400
    taken, placed, rest = set(), {FORWARD: [], BACKWARD: []}, []

    def free(start, count):
        return not any(unit in taken for unit in range(start, start + count))

    def first(each, count, end):
        starts = range(int(each.ready_s), end - count + 1)
        return next((start for start in starts if free(start, count)), None)

    def last(each, count, begin):
        starts = range(min(int(each.read_s), total) - count, begin - 1, -1)
        return next((start for start in starts if free(start, count)), None)

    def put(each, window, start, count):
        taken.update(range(start, start + count))
        placed[window].append((start, order.index(each.name), (each.name,)))

    step = [0, total]
    for each in sorted(found.gradients, key=lambda g: (-g.size_bytes, order.index(g.name))):
        count = cost(each.size_bytes)
        after, before = first(each, count, total), last(each, count, 0)
        if after is not None:
            put(each, BACKWARD, after, count)
        elif before is not None and not each.kept_reason:
            put(each, FORWARD, before, count)
        else:
            rest.append((each, count))
    for each, count in rest:
        after, before = first(each, count, far), last(each, count, -far)
        adds_after, adds_before = max(after + count - step[1], 0), max(step[0] - before, 0)
        if each.kept_reason or adds_after <= adds_before:
            put(each, BACKWARD, after, count)
            step[1] += adds_after
        else:
            put(each, FORWARD, before, count)
            step[0] -= adds_before
    forward, backward = ([names for *_, names in sorted(placed[window])] for window in (FORWARD, BACKWARD))
    backward.sort(key=lambda names: found.by_name[names[0]].level)  # it may wait for what is of a lower one
    return forward, backward, step[1] - step[0] - total


@st.composite
def crowded(draw):
    """Gradients that are ready near the end of the computation, with more to send than there is time."""
    total = draw(st.integers(8, 20))
    found = []
    for number in range(draw(st.integers(2, 8))):
        ready_s, read_s = draw(st.integers(total - 4, total)), draw(st.integers(0, total))
        found.append(gradient(f"g{number}", ready_s, read_s, draw(st.integers(0, 6))))
    return boundaries(*sorted(found, key=lambda g: g.ready_s), compute_s=total)


@settings(max_examples=300)
@given(st.one_of(anything(), crowded()), st.integers(1, 4), st.integers(0, 2))
def test_papers_packing_is_what_a_grid_makes_of_it(found, a, b):
    made = schedule_of(paper_packing(), found, line(a, b))
    forward, backward, _ = packed_on_a_grid(found, lambda size: int(a + b * size))
    assert pieces_of(made, FORWARD) == forward
    assert pieces_of(made, BACKWARD) == backward


@pytest.mark.parametrize("policy", POLICIES[1:3], ids=NAMES[1:3])
@given(crowded(), st.integers(1, 4), st.integers(0, 2))
def test_sums_that_are_off_by_their_last_bits_decide_nothing(policy, found, a, b):
    """In tenths of seconds, which have no end as binary fractions."""
    tenths = [replace(g, ready_s=g.ready_s / 10, read_s=g.read_s / 10) for g in found.gradients]
    made = schedule_of(policy, found, line(a, b))
    scaled = schedule_of(policy, Boundaries(tuple(tenths), found.compute_s / 10), line(a / 10, b / 10))
    assert [(t.window, t.pieces) for t in scaled.transfers] == [(t.window, t.pieces) for t in made.transfers]


@settings(max_examples=200)
@given(chains(), st.integers(1, 4), st.integers(0, 2))
def test_the_step_is_never_longer_than_packed(found, a, b):
    """Where all reads come before all gradients are ready: the simulator begins with the computation at once."""
    assume(max(g.read_s for g in found.gradients) <= min(g.ready_s for g in found.gradients))
    network = line(a, b)
    made = schedule_of(paper_packing(), found, network)
    *_, beyond_s = packed_on_a_grid(found, lambda size: int(a + b * size))
    assert simulate(found, made, network.time_s).iteration_s <= found.compute_s + beyond_s + 1e-9


# Forward 3, 3, 3; backward 6, 6, 6: read at 0, 3 and 6, ready at 27, 21 and 15.
LAYERS = boundaries(gradient("w3", 15, 6, 4), gradient("w2", 21, 3, 4), gradient("w1", 27, 0, 4))


def test_what_fits_in_the_backward_pass_goes_there():
    made = schedule_of(paper_packing(), LAYERS, line(1, 1))
    assert (pieces_of(made, FORWARD), pieces_of(made, BACKWARD)) == ([], [("w3",), ("w2",), ("w1",)])
    assert made.transfers[0].reason.startswith("backward window: 4 B in 5 s fit at 15 s, complete at 15 s")
    assert simulate(LAYERS, made, line(1, 1).time_s).iteration_s == 32


def test_what_fits_only_before_its_read_goes_forward():
    """w2 would end at 28; in the forward pass it has from 0 to 3, and w3 took the backward pass as it is larger."""
    found = boundaries(gradient("w3", 15, 6, 10), gradient("w2", 21, 3, 2), gradient("w1", 27, 0, 0))
    made = schedule_of(paper_packing(), found, line(1, 1))
    assert (pieces_of(made, FORWARD), pieces_of(made, BACKWARD)) == ([("w2",)], [("w3",), ("w1",)])
    assert "2 B in 3 s fit at 0 us, before the read at 3 s" in made.transfers[0].reason
    assert simulate(found, made, line(1, 1).time_s).iteration_s == 28


def test_what_fits_nowhere_goes_where_it_adds_less():
    """w3 takes 8 of the 6 seconds before its read, and after it is ready at 15 it would take until 23 of 20."""
    found = boundaries(gradient("w3", 15, 6, 7), compute_s=20)
    made = schedule_of(paper_packing(), found, line(1, 1))
    assert made.transfers[0].window == FORWARD
    assert "7 B in 8 s fit nowhere and add 2 s to the step, in the backward window 3 s" in made.transfers[0].reason
    assert simulate(found, made, line(1, 1).time_s).iteration_s == 22


def test_what_adds_as_much_in_both_windows_goes_backward():
    found = boundaries(gradient("w3", 15, 6, 7), compute_s=21)
    assert schedule_of(paper_packing(), found, line(1, 1)).transfers[0].window == BACKWARD


def test_what_cannot_be_postponed_stays():
    found = boundaries(gradient("w3", 15, 6, 7, kept_reason="the loss scale needs it"), compute_s=16)
    made = schedule_of(paper_packing(), found, line(1, 1))
    assert made.transfers[0].window == BACKWARD
    assert "add 7 s to the step, and 'w3' cannot be postponed: the loss scale needs it" in made.transfers[0].reason


def test_one_that_must_stay_keeps_its_bucket():
    found = boundaries(gradient("a", 9, 9, 4), gradient("b", 9, 9, 4, kept_reason="no"), compute_s=10)
    assert schedule_of(paper_packing(), found, line(1, 1), fixed(8)).transfers[0].window == BACKWARD


def test_packing_by_size_can_be_worse_than_no_packing():
    """The larger one takes the time in which the smaller one, ready before it, would have been sent."""
    found = boundaries(gradient("b", 10, 0, 4), gradient("a", 13, 0, 6), compute_s=20)
    plain, packed = (schedule_of(p, found, line(1, 1)) for p in (backward_only(), paper_packing()))
    assert pieces_of(packed, BACKWARD) == [("a",), ("b",)]
    assert simulate(found, plain, line(1, 1).time_s).iteration_s == 22
    assert simulate(found, packed, line(1, 1).time_s).iteration_s == 25


# -- priority --------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(anything(), st.integers(0, 12), st.integers(1, 4), st.integers(0, 2))
def test_priority_is_kept_in_the_simulated_step(found, threshold, a, b):
    """The simulator says when the channel is free, what is ready then, and when computation ends."""
    network = line(a, b)
    made = schedule_of(priority(), found, network, fixed(threshold))
    members = [[found.by_name[p.gradient] for p in t.pieces] for t in made.transfers]
    reads = [min(found.compute_s, *(g.read_s for g in each)) for each in members]
    levels = [each[0].level for each in members]
    forward = [n for n, t in enumerate(made.transfers) if t.window == FORWARD]
    backward = [n for n, t in enumerate(made.transfers) if t.window == BACKWARD]
    assert [reads[n] for n in forward] == sorted(reads[n] for n in forward)
    step = simulate(found, made, network.time_s)
    computing = [s for s in step.spans if s.kind == "compute"]
    spans = {int(s.what): s for s in step.spans if s.kind == "transfer"}
    ends_s = max((s.end_s for s in step.spans if s.kind in ("compute", "stall")), default=0.0)

    def is_ready(number, now_s):
        computed_s = sum(max(min(s.end_s, now_s) - s.start_s, 0.0) for s in computing)
        return max(g.ready_s for g in members[number]) <= computed_s + 1e-9

    for position, number in enumerate(backward):
        start_s = spans[number].start_s
        for other in backward[position + 1 :]:
            if is_ready(other, start_s):
                assert (levels[number], reads[number]) <= (levels[other], reads[other])
        if all(g.is_postponable for g in members[number]):
            assert spans[number].end_s <= ends_s + 1e-9


@settings(max_examples=200)
@given(chains(), st.integers(1, 4), st.integers(0, 2))
def test_putting_off_begins_with_what_would_be_late(found, a, b):
    """Nothing is put off where everything arrives in time, one after the other in the order of the reads."""
    network = line(a, b)
    made = schedule_of(priority(), found, network)
    order = sorted(found.gradients, key=lambda g: g.ready_s)
    now_s, left, late = 0.0, list(order), []
    while left:
        now_s = max(now_s, min(g.ready_s for g in left))
        each = min((g for g in left if g.ready_s <= now_s), key=lambda g: (g.read_s, order.index(g)))
        left.remove(each)
        if now_s + a + b * each.size_bytes > found.compute_s + 1e-9:
            late.append(each.name)
        else:
            now_s += a + b * each.size_bytes
    put_off = [name for (name,) in pieces_of(made, FORWARD)]
    assert set(late) <= set(put_off)
    assert bool(late) == bool(put_off)


def test_priority_by_hand():
    """w3 goes as soon as it is ready, from 15 to 21; then w1, which is read first; w2 would end at 34 and is put off.

    It is read at 3 and arrives at 6, so in the steady state all this is 3 s later: w1 arrives at 31 of 33.
    """
    found = boundaries(gradient("w3", 15, 6, 4), gradient("w2", 18, 3, 4), gradient("w1", 19, 0, 5), compute_s=30)
    made = schedule_of(priority(), found, line(2, 1))
    assert (pieces_of(made, FORWARD), pieces_of(made, BACKWARD)) == ([("w2",)], [("w3",), ("w1",)])
    assert made.transfers[2].reason.startswith(
        "backward window: the first to be read, at 0 us, of what is ready at 24 s"
    )
    assert simulate(found, made, line(2, 1).time_s).iteration_s == 33


def test_what_is_put_off_puts_off_more():
    """b would arrive at 12, just in time; but a, put off, has the channel until 9, and then b would end at 13."""
    found = boundaries(gradient("a", 6, 11, 8), gradient("b", 8, 0, 3), compute_s=12)
    made = schedule_of(priority(), found, line(1, 1))
    assert (pieces_of(made, FORWARD), pieces_of(made, BACKWARD)) == ([("b",), ("a",)], [])


def test_large_ones_are_cut_in_equal_parts():
    found = boundaries(gradient("a", 1, 0, 10), gradient("whole", 1, 1, 10, divisible=False), gradient("b", 1, 2, 3))
    made = schedule_of(priority(4), found, line(1, 1), fixed(math.inf))
    pieces = [(p.gradient, p.start, p.elements) for t in made.transfers for p in t.pieces]
    assert sorted(pieces) == [("a", 0, 3), ("a", 3, 3), ("a", 6, 4), ("b", 0, 3), ("whole", 0, 10)]
    assert all(len(t.pieces) == 1 for t in made.transfers)
    assert "4 B" in priority(4).name


@given(st.integers(1, 500), st.integers(1, 600))
def test_parts_are_as_few_and_as_equal_as_can_be(elements, most):
    made = schedule_of(priority(most), boundaries(gradient("w", 1, 0, elements)), line(1, 1))
    sizes = [t.pieces[0].elements for t in made.transfers]
    assert max(sizes) <= most
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == math.ceil(elements / most)


def test_too_many_parts():
    with pytest.raises(InputError, match=r"partition_bytes=1 cuts gradient 'w' into 20000 pieces.*raise it"):
        schedule_of(priority(1), boundaries(gradient("w", 1, 0, 20_000)), line(1, 1))


@pytest.mark.parametrize("partition", [0, -1, math.nan, "1MiB", False])
def test_partitions_that_cannot_be(partition):
    with pytest.raises(InputError, match="partition_bytes must be .*more than 0"):
        priority(partition)
