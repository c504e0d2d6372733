"""The simulator against a clock that ticks, against steps worked by hand, and against what must hold for all."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caramel.errors import InputError, PlanError
from caramel.facts import BACKWARD, FORWARD, NO_LIMIT, Boundaries, Boundary, InFlight, Piece, Schedule, Scheduled
from caramel.simulator import check_boundaries, simulate, validate_schedule, wire_bytes


def gradient(name, ready_s, read_s, elements=4, **others):
    """A float32 gradient with a byte on the wire for each element, so that bytes are as good as elements."""
    values = {"dtype": "float32", "size_bytes": float(elements or 0), **others}
    return Boundary(name=name, elements=elements, ready_s=float(ready_s), read_s=float(read_s), **values)


def transfer(window, *pieces):
    """Of pieces (gradient, start, elements)."""
    return Scheduled(tuple(Piece(*each) for each in pieces), window, "")


def schedule(*transfers):
    return Schedule(tuple(transfers), "")


def spans(timeline, *kinds):
    return [(s.kind, s.what, s.start_s, s.end_s) for s in timeline.spans if not kinds or s.kind in kinds]


# -- a second simulator: time goes on in steps of 1, and everything that can happen at a time happens ------------


def ticked(boundaries, plan, time_s, lag_s=lambda size: 0, in_flight=NO_LIMIT):
    """What kind of thing happens in each unit of time: (lane, transfers that start, end of the step)."""
    by_name = {g.name: g for g in boundaries.gradients}
    late = {p.gradient for t in plan.transfers if t.window == FORWARD for p in t.pieces}
    total = int(boundaries.compute_s)
    clock = computed = 0
    arrived = set()  # (gradient, start) in this step
    needed = {
        name: {
            (p.gradient, p.start)
            for t in plan.transfers
            for p in t.pieces
            if p.gradient == name and (t.window == FORWARD or name not in late)
        }
        for name in by_name
    }
    queue, left, updated, running = [], dict.fromkeys(by_name, 0), set(), None
    sending, sent, starts, lane = None, 0, [], []
    lagging = {}  # transfers that have left the channel, and how long they still take
    landed = {BACKWARD: [], FORWARD: []}  # transfers that have arrived

    def size_of(number):
        return sum(p.elements for p in plan.transfers[number].pieces)

    def may_start(number):
        each, window = plan.transfers[number], plan.transfers[number].window
        earlier = [n for n in range(number) if plan.transfers[n].window == window]
        most = in_flight.forward if window == FORWARD else in_flight.backward
        is_in_turn = most is None or len(earlier) < most or earlier[-most] in landed[window]
        if in_flight.credit_bytes is not None:
            left_bytes = in_flight.credit_bytes - size_of(number)
            for other in reversed(earlier):  # those that fit beside it may be under way, and none before them
                left_bytes -= size_of(other)
                is_in_turn = is_in_turn and (left_bytes >= 0 or size_of(other) == 0 or other in landed[window])
        is_made = all(min(by_name[p.gradient].ready_s, total) <= computed for p in each.pieces)
        return is_in_turn and (window == FORWARD or is_made)

    while True:
        moved = True
        while moved:
            moved = False
            if sending is None and sent < len(plan.transfers) and may_start(sent):
                sending, moved = int(time_s(size_of(sent))), True
                starts.append(clock)
            if sending == 0:
                lagging[sent] = int(lag_s(size_of(sent)))
                sending, moved = None, True
                sent += 1
            for number in sorted(n for n, remaining in lagging.items() if remaining == 0):
                each, moved = plan.transfers[number], True
                del lagging[number]
                landed[each.window].append(number)
                before = {n for n in by_name if needed[n] <= arrived}
                arrived |= {(p.gradient, p.start) for p in each.pieces if (p.gradient, p.start) in needed[p.gradient]}
                new = [g for n, g in by_name.items() if needed[n] <= arrived and n not in before]
                for g in sorted(new, key=lambda g: (g.read_s, g.name)):
                    queue.append(g.name)
                    left[g.name] = int(g.update_s)
            if running is not None and left[running] == 0:
                updated.add(running)
                running, moved = None, True
            if running is None and queue:
                running, moved = queue.pop(0), True
        reads = [(by_name[n].read_s, n) for n in late - updated if by_name[n].read_s <= computed]
        waits = reads if computed < total else []
        if running is not None:
            lane.append(("update", running))
            left[running] -= 1
        elif computed < total and not waits:
            lane.append(("compute", ""))
            computed += 1
        elif sent == len(plan.transfers) and not lagging:
            return lane, starts, clock
        else:
            lane.append(("stall", min(waits)[1]) if computed < total else "tail")
        clock += 1
        if sending is not None:
            sending -= 1
        lagging = {number: remaining - 1 for number, remaining in lagging.items()}
        assert clock < 10_000


@st.composite
def problems(draw, most=6, update_s=4):
    """Boundaries in whole numbers, and a schedule of them in any order, with gradients in pieces."""
    total = draw(st.integers(0, 20))
    gradients, pieces = [], []
    for number in range(draw(st.integers(1, most))):
        size = draw(st.integers(1, 6))
        is_kept = draw(st.integers(0, 3)) == 0
        gradients.append(
            gradient(
                f"g{number}",
                draw(st.integers(0, total + 2)),
                draw(st.integers(0, total + 2)),
                size,
                update_s=float(draw(st.integers(0, update_s))),
                kept_reason="it is kept" if is_kept else "",
            )
        )
        cuts = [0, *sorted(draw(st.sets(st.integers(1, size - 1), max_size=2)) if size > 1 else []), size]
        for start, end in zip(cuts, cuts[1:]):
            window = BACKWARD if is_kept else draw(st.sampled_from([BACKWARD, FORWARD]))
            pieces.append((window, (f"g{number}", start, end - start)))
    pieces = draw(st.permutations(pieces))
    transfers = []
    for window in (FORWARD, BACKWARD):
        own = [piece for where, piece in pieces if where == window]
        while own:
            count = draw(st.integers(1, len(own)))
            transfers.append(transfer(window, *own[:count]))
            own = own[count:]
    return Boundaries(tuple(gradients), float(total)), schedule(*transfers)


costs = st.tuples(st.integers(0, 5), st.integers(0, 3))


lags = st.one_of(st.just((0, 0)), st.tuples(st.integers(0, 5), st.integers(-1, 2)))
"""The larger a transfer, the later or the sooner it arrives: it may pass one that has left the channel before it."""


limits = st.sampled_from([None, None, 1, 2, 3])
credits = st.one_of(st.none(), st.integers(1, 15))


@settings(max_examples=300)
@given(problems(), costs, lags, st.builds(InFlight, limits, limits, credits))
def test_events_are_those_of_a_clock_that_ticks(problem, cost, lag, in_flight):
    boundaries, plan = problem

    def time_s(size):
        return cost[0] + cost[1] * size

    def lag_s(size):
        return max(lag[0] + lag[1] * size, 0)

    lane, starts, end = ticked(boundaries, plan, time_s, lag_s, in_flight)
    found = simulate(boundaries, plan, time_s, lag_s, in_flight)
    assert found.iteration_s == end
    by_number = {int(s.what): s.start_s for s in found.spans if s.kind == "transfer"}
    assert [by_number[n] for n in range(len(plan.transfers))] == starts
    units = ["tail"] * int(end)
    for span in found.spans:
        if span.kind != "transfer":
            units[int(span.start_s) : int(span.end_s)] = [(span.kind, span.what)] * int(span.end_s - span.start_s)
    assert units == lane
    assert found.exposed_s == sum(each == "tail" or each[0] == "stall" for each in lane)


@settings(max_examples=200)
@given(problems(), costs)
def test_what_holds_for_every_step(problem, cost):
    boundaries, plan = problem
    found = simulate(boundaries, plan, lambda size: cost[0] + cost[1] * size)
    work_s = boundaries.compute_s + sum(g.update_s for g in boundaries.gradients)
    sends_s = sum(cost[0] + cost[1] * sum(p.elements for p in t.pieces) for t in plan.transfers)
    assert (found.compute_s, found.communication_s) == (work_s, sends_s)
    # Whenever the step only waits, the channel is at work: the parts in a row are the worst that there is.
    assert max(work_s, sends_s) <= found.iteration_s <= work_s + sends_s
    lane = [s for s in found.spans if s.kind != "transfer"]
    channel = [s for s in found.spans if s.kind == "transfer"]
    for one_after_another in (lane, channel):
        assert all(before.end_s <= after.start_s for before, after in zip(one_after_another, one_after_another[1:]))
    assert not any(a.kind == b.kind == "compute" and a.end_s == b.start_s for a, b in zip(lane, lane[1:]))
    assert all(s.start_s < s.end_s for s in lane)
    assert sum(s.end_s - s.start_s for s in lane if s.kind == "compute") == boundaries.compute_s
    updates = {s.what: s.end_s - s.start_s for s in lane if s.kind == "update"}
    assert updates == {g.name: g.update_s for g in boundaries.gradients if g.update_s}


@given(problems(), costs, st.integers(0, 4))
def test_a_lag_is_time_that_the_next_transfer_need_not_wait_for(problem, cost, lag_s):
    """One transfer takes as long with a lag as with a longer time; of several, only the arrivals are later."""
    boundaries, plan = problem
    each_s = [cost[0] + cost[1] * sum(p.elements for p in t.pieces) for t in plan.transfers]
    found = simulate(boundaries, plan, lambda size: cost[0] + cost[1] * size, lambda size: lag_s)
    sent = {int(s.what): s for s in found.spans if s.kind == "transfer"}
    assert [sent[n].end_s - sent[n].start_s for n in range(len(sent))] == [each + lag_s for each in each_s]
    assert all(sent[n].start_s + each_s[n] <= sent[n + 1].start_s for n in range(len(sent) - 1))
    under_way = {t for s in sent.values() for t in range(int(s.start_s), int(s.end_s))}
    assert found.communication_s == len(under_way)
    if len(sent) == 1:
        longer = simulate(boundaries, plan, lambda size: cost[0] + lag_s + cost[1] * size)
        assert found == longer


@given(problems(), costs, lags)
def test_with_one_at_a_time_a_lag_is_as_good_as_a_longer_time(problem, cost, lag):
    """The windows do not wait for each other, so only in a step with one of them."""
    boundaries, plan = problem
    windows = {t.window for t in plan.transfers}
    if len(windows) > 1:
        return

    def time_s(size):
        return cost[0] + cost[1] * size

    def lag_s(size):
        return max(lag[0] + lag[1] * size, 0)

    found = simulate(boundaries, plan, time_s, lag_s, InFlight(1, 1))
    assert found == simulate(boundaries, plan, lambda size: time_s(size) + lag_s(size))


@given(problems(update_s=0), costs, st.integers(0, 3), st.integers(0, 2))
def test_a_slower_network_is_never_faster_where_updates_take_no_time(problem, cost, more_a, more_b):
    boundaries, plan = problem
    fast = simulate(boundaries, plan, lambda size: cost[0] + cost[1] * size)
    slow = simulate(boundaries, plan, lambda size: cost[0] + more_a + (cost[1] + more_b) * size)
    assert slow.iteration_s >= fast.iteration_s


def test_an_update_in_the_way_can_make_a_faster_network_slower():
    """The update of the first gradient comes before the second one is ready, or after it."""
    boundaries = Boundaries((gradient("a", 2, 9, update_s=3.0), gradient("b", 6, 0)), 6.0)
    plan = schedule(transfer(BACKWARD, ("a", 0, 4)), transfer(BACKWARD, ("b", 0, 4)))
    assert simulate(boundaries, plan, lambda size: 4.0).iteration_s == 10.0  # b from 6 to 10, and a's update meanwhile
    assert simulate(boundaries, plan, lambda size: 3.5).iteration_s == 12.5  # b is ready at 9


@given(problems(), costs, st.integers(0, 3))
def test_identities_of_overlap_and_utilisation(problem, cost, lag_s):
    boundaries, plan = problem
    found = simulate(boundaries, plan, lambda size: cost[0] + cost[1] * size, lambda size: lag_s)
    if not found.compute_s:
        return
    rho = found.communication_s / found.compute_s
    busy = found.compute_s / found.iteration_s
    assert found.rho == rho
    assert found.utilisation == busy
    assert 1 / (1 + rho - found.alpha * min(rho, 1)) == pytest.approx(busy)
    assert -1e-9 <= found.alpha <= 1 + 1e-9


# -- by hand -----------------------------------------------------------------------------------

# Layers 1 to 3, forward 1 + 1 + 1, backward 2 + 2 + 2: the last layer's gradient is ready first and read last.
THREE = Boundaries((gradient("w3", 5, 2), gradient("w2", 7, 1), gradient("w1", 9, 0)), 9.0)
WHOLE = {name: (name, 0, 4) for name in ("w1", "w2", "w3")}


def test_backward_window_alone():
    plan = schedule(*(transfer(BACKWARD, WHOLE[name]) for name in ("w3", "w2", "w1")))
    found = simulate(THREE, plan, lambda size: 3.0)
    assert spans(found) == [
        ("compute", "", 0, 9),
        ("transfer", "0", 5, 8),
        ("transfer", "1", 8, 11),
        ("transfer", "2", 11, 14),
    ]
    assert (found.iteration_s, found.exposed_s) == (14, 5)
    assert (found.rho, found.alpha, found.utilisation) == (1, 4 / 9, 9 / 14)


def test_what_moves_into_the_forward_window_is_hidden():
    """w3 is read at 2, so that a transfer of 2 ends in time."""
    plan = schedule(transfer(FORWARD, WHOLE["w3"]), transfer(BACKWARD, WHOLE["w2"]), transfer(BACKWARD, WHOLE["w1"]))
    found = simulate(THREE, plan, lambda size: 2.0)
    assert spans(found, "transfer") == [("transfer", "0", 0, 2), ("transfer", "1", 7, 9), ("transfer", "2", 9, 11)]
    assert found.iteration_s == 11
    assert not spans(found, "stall")


def test_a_read_waits_and_moves_everything_after_it():
    plan = schedule(transfer(FORWARD, WHOLE["w3"]), transfer(BACKWARD, WHOLE["w2"]), transfer(BACKWARD, WHOLE["w1"]))
    found = simulate(THREE, plan, lambda size: 3.0)
    assert spans(found) == [
        ("compute", "", 0, 2),
        ("transfer", "0", 0, 3),
        ("stall", "w3", 2, 3),
        ("compute", "", 3, 10),
        ("transfer", "1", 8, 11),
        ("transfer", "2", 11, 14),
    ]
    assert found.iteration_s == 14


def test_updates_take_the_time_of_computation():
    """That of w3 before its read, w2's in the middle of the backward pass, w1's at the end."""
    slow = Boundaries(tuple(replace(g, update_s=1.0) for g in THREE.gradients), 9.0)
    plan = schedule(transfer(FORWARD, WHOLE["w3"]), transfer(BACKWARD, WHOLE["w2"]), transfer(BACKWARD, WHOLE["w1"]))
    found = simulate(slow, plan, lambda size: 1.0)
    assert spans(found) == [
        ("compute", "", 0, 1),
        ("transfer", "0", 0, 1),
        ("update", "w3", 1, 2),
        ("compute", "", 2, 9),
        ("transfer", "1", 8, 9),
        ("update", "w2", 9, 10),
        ("compute", "", 10, 11),
        ("transfer", "2", 11, 12),
        ("update", "w1", 12, 13),
    ]
    assert (found.iteration_s, found.compute_s, found.exposed_s) == (13, 12, 1)


def test_a_gradient_in_both_windows_is_updated_in_the_forward_pass():
    plan = schedule(
        transfer(FORWARD, ("w3", 0, 1), WHOLE["w2"]),
        transfer(BACKWARD, ("w3", 1, 3)),
        transfer(BACKWARD, WHOLE["w1"]),
    )
    slow = Boundaries(tuple(replace(g, update_s=1.0) for g in THREE.gradients), 9.0)
    found = simulate(slow, plan, lambda size: 1.0)
    assert [(what, start) for _, what, start, _ in spans(found, "update")] == [("w2", 1), ("w3", 2), ("w1", 12)]
    assert wire_bytes(slow, plan.transfers[0]) == 5.0
    assert wire_bytes(slow, plan.transfers[1]) == 3.0


def test_forward_transfers_go_first_even_where_a_backward_one_is_ready():
    """The second is read late enough to wait, but the channel does not know when the next gradient comes."""
    boundaries = Boundaries((gradient("early", 1, 0), gradient("late", 5, 4), gradient("later", 6, 5)), 6.0)
    plan = schedule(
        transfer(FORWARD, ("late", 0, 4)), transfer(FORWARD, ("later", 0, 4)), transfer(BACKWARD, ("early", 0, 4))
    )
    assert [start for *_, start, _ in spans(simulate(boundaries, plan, lambda size: 2.0), "transfer")] == [0, 2, 4]


def test_the_order_is_kept_where_the_next_one_is_not_ready():
    boundaries = Boundaries((gradient("a", 1, 0), gradient("b", 5, 0)), 6.0)
    plan = schedule(transfer(BACKWARD, ("b", 0, 4)), transfer(BACKWARD, ("a", 0, 4)))
    assert [start for *_, start, _ in spans(simulate(boundaries, plan, lambda size: 2.0), "transfer")] == [5, 7]


def test_a_parameter_that_is_never_read_stalls_nothing():
    boundaries = Boundaries((gradient("a", 3, math.inf),), 3.0)
    found = simulate(boundaries, schedule(transfer(FORWARD, ("a", 0, 4))), lambda size: 7.0)
    assert (found.iteration_s, spans(found, "stall")) == (7, [])


def test_nothing_to_send():
    found = simulate(Boundaries((), 2.0), schedule(), lambda size: 1.0)
    assert (spans(found), found.iteration_s, found.communication_s) == ([("compute", "", 0, 2)], 2, 0)
    nothing = simulate(Boundaries((), 0.0), schedule(), lambda size: 1.0)
    assert (nothing.spans, nothing.iteration_s, nothing.alpha, nothing.utilisation) == ((), 0, 1, 1)


def test_bytes_are_those_of_the_wire():
    """Half as many for a gradient that is sent in 16 bits, all of a sparse one, and none of an empty one."""
    asked = []
    boundaries = Boundaries(
        (
            gradient("half", 1, 0, 8, size_bytes=16.0),
            gradient("sparse", 1, 0, None, size_bytes=100.0),
            gradient("empty", 1, 0, 0),
        ),
        1.0,
    )
    plan = schedule(
        transfer(BACKWARD, ("half", 0, 3)),
        transfer(BACKWARD, ("half", 3, 5), ("empty", 0, 0)),
        transfer(BACKWARD, ("sparse", 0, None)),
    )
    simulate(boundaries, plan, lambda size: asked.append(size) or 0.0)
    assert asked == [6.0, 10.0, 100.0]


# -- what is refused ---------------------------------------------------------------------------

MIXED = Boundaries(
    (
        gradient("a", 1, 0),
        gradient("b", 1, 0, dtype="float16"),
        gradient("c", 1, 0, level=1),
        gradient("kept", 1, 0, kept_reason="the loss scale needs it"),
        gradient("sparse", 1, 0, None, size_bytes=8.0),
        gradient("whole", 1, 0, divisible=False),
        gradient("empty", 1, 0, 0),
    ),
    2.0,
)
ALL = {g.name: (g.name, 0, g.elements) for g in MIXED.gradients}


def without(*names):
    return [transfer(BACKWARD, piece) for name, piece in ALL.items() if name not in names]


def test_whole_schedules_are_accepted():
    validate_schedule(MIXED, schedule(*without()))
    validate_schedule(
        MIXED,
        schedule(transfer(FORWARD, ("a", 3, 1), ALL["empty"]), transfer(BACKWARD, ("a", 0, 3)), *without("a", "empty")),
    )


@pytest.mark.parametrize(
    ("transfers", "message"),
    [
        (without("a"), "'a' is in no transfer"),
        ([*without(), transfer(BACKWARD, ALL["a"])], "'a'.*do not follow element 4"),
        ([*without("a"), transfer(BACKWARD, ("a", 0, 3))], "'a' has 4 elements, but the schedule sends 3"),
        ([*without("a"), transfer(BACKWARD, ("a", 0, 5))], "'a' has 4 elements, but the schedule sends 5"),
        ([*without("a"), transfer(BACKWARD, ("a", 1, 3))], "'a'.*do not follow element 0"),
        ([*without("a"), transfer(BACKWARD, ("a", 0, 2), ("a", 1, 3))], "'a'.*do not follow element 2"),
        ([*without("a"), transfer(BACKWARD, ("a", 0, 4), ("a", 4, 0))], "'a'.*none"),
        ([*without("a"), transfer(BACKWARD, ("a", 0, None))], "'a'.*all rows"),
        ([*without("empty"), transfer(BACKWARD, ALL["empty"], ALL["empty"])], "'empty'.*2 pieces"),
        ([*without(), transfer(BACKWARD)], "transfer 7.*empty"),
        ([*without(), transfer(BACKWARD, ("d", 0, 1))], "transfer 7.*'d'.*only a, b"),
        ([*without("a", "b"), transfer(BACKWARD, ALL["a"], ALL["b"])], "element type.*float16, float32"),
        ([*without("a", "c"), transfer(BACKWARD, ALL["a"], ALL["c"])], r"level \(0, 1\)"),
        ([*without("a", "sparse"), transfer(BACKWARD, ALL["a"], ALL["sparse"])], "sparse one travels alone"),
        ([*without("sparse"), transfer(BACKWARD, ("sparse", 0, 2))], "'sparse' cannot be cut"),
        ([*without("whole"), transfer(BACKWARD, ("whole", 0, 2), ("whole", 2, 2))], "'whole' cannot be cut"),
        ([transfer(FORWARD, ALL["kept"]), *without("kept")], "'kept' cannot be: the loss scale needs it"),
        ([*without("a"), transfer(FORWARD, ALL["a"])], "transfer 6 .*forward window.*before it"),
        ([*without("a"), transfer("sideways", ALL["a"])], "sideways"),
    ],
)
def test_what_is_no_schedule(transfers, message):
    with pytest.raises(PlanError, match=message):
        validate_schedule(MIXED, schedule(*transfers))
    with pytest.raises(PlanError, match=message):
        simulate(MIXED, schedule(*transfers), lambda size: 1.0)


@pytest.mark.parametrize(
    ("boundaries", "message"),
    [
        (Boundaries((), math.nan), "compute_s.*nan"),
        (Boundaries((), -1.0), "compute_s.*-1"),
        (Boundaries((gradient("a", -1, 0),), 1.0), "ready_s of gradient 'a'.*-1"),
        (Boundaries((gradient("a", math.inf, 0),), 1.0), "ready_s of gradient 'a'.*inf"),
        (Boundaries((gradient("a", 0, math.nan),), 1.0), "read_s of gradient 'a'.*nan"),
        (Boundaries((gradient("a", 0, 0, update_s=-0.5),), 1.0), "update_s of gradient 'a'"),
        (Boundaries((gradient("a", 0, 0, size_bytes=math.inf),), 1.0), "size_bytes of gradient 'a'"),
        (Boundaries((gradient("a", 0, 0, -1),), 1.0), "(size_bytes|elements) of gradient 'a'"),
        (Boundaries((gradient("a", 0, 0), gradient("a", 1, 0)), 1.0), "more than once: a"),
    ],
)
def test_what_are_no_boundaries(boundaries, message):
    with pytest.raises(InputError, match=message):
        check_boundaries(boundaries)
    with pytest.raises(InputError, match=message):
        simulate(boundaries, schedule(), lambda size: 1.0)


@pytest.mark.parametrize("time_s", [-1.0, math.nan, math.inf])
def test_times_of_transfers_are_checked(time_s):
    one = Boundaries((gradient("a", 0, 0),), 1.0), schedule(transfer(BACKWARD, ("a", 0, 4)))
    with pytest.raises(InputError, match="time of transfer 0.*finite"):
        simulate(*one, lambda _: time_s)
    with pytest.raises(InputError, match="lag of transfer 0.*finite"):
        simulate(*one, lambda _: 1.0, lambda _: time_s)
