"""ByteScheduler and P3 as policies: what the simulated step does is what the queue says."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_common import UNKNOWN, anything, boundaries, chains, gradient, line

from caramel.analyzers.analyzer import analyse
from caramel.analyzers.cost.network import Network
from caramel.analyzers.cost.simulate import simulate_on
from caramel.analyzers.policies.batching import fixed, single
from caramel.analyzers.policies.credit_packing import P3_PARTITION_BYTES, bytescheduler, credit_limits, p3
from caramel.analyzers.policies.credit_queue import Link, Task, send_by_credit
from caramel.errors import InputError
from caramel.facts import BACKWARD, FORWARD, Boundaries, InFlight, Schedule
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.contention import Contention
from caramel.netmodel.line import Curve, Sample
from caramel.netmodel.model import NetworkModel
from caramel.simulator import simulate, wire_bytes


def schedule_of(policy, found, network, batching=None):
    return analyse([batching or single(), policy], [found, network], [Schedule])[Schedule]


def pieces_of(schedule, window):
    return [(p.gradient, p.start, p.elements) for t in schedule.transfers if t.window == window for p in t.pieces]


def lagging(part, time_s=4.0):
    """A network of two in which a transfer of whatever size arrives after 4 s, and has the channel for a part of it."""
    sizes = (8, 2**26)
    curves = (Curve.fitted(2, "ring", 1, [Sample(size, time_s) for size in sizes]),)
    contentions = tuple(Contention(2, "ring", 1, size, 0.0, 1.0, part) for size in sizes)
    return Network(CollectiveOptions("ring", 1, network=NetworkModel("", curves, contentions=contentions)), 2)


# -- the simulated step --------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(anything(), st.integers(1, 6), st.integers(0, 6), st.integers(1, 4), st.integers(0, 2))
def test_a_step_does_what_the_queue_says(found, partition, more, a, b):
    """Ready times are later by what the forward window stalls; the simulator, which knows of no queue, says by how
    much. Its transfers start and arrive as in the queue, which knows of no fixed order."""
    network = line(a, b)
    made = schedule_of(bytescheduler(partition, partition + more), found, network)
    assert made.in_flight == InFlight(credit_bytes=partition + more)
    step = simulate_on(network, found, made)
    spans = {int(s.what): s for s in step.spans if s.kind == "transfer"}
    computing = [s for s in step.spans if s.kind == "compute"]

    def reached_s(clock_s):
        """When the computation is at a time of its own clock."""
        for span in computing:
            if clock_s <= span.end_s - span.start_s:
                return span.start_s + clock_s
            clock_s -= span.end_s - span.start_s
        return computing[-1].end_s if computing else 0.0

    tasks, free_s = [], 0.0
    for number, transfer in enumerate(made.transfers):
        members = [found.by_name[p.gradient] for p in transfer.pieces]
        read_s = min(found.compute_s, *(g.read_s for g in members))
        if transfer.window == FORWARD:
            free_s = max(free_s, spans[number].end_s)
        else:
            ready_s = reached_s(max(g.ready_s for g in members))
            tasks.append(Task(str(number), (members[0].level, read_s), ready_s, wire_bytes(found, transfer)))
    reads = [task.priority for task in tasks]
    sent = send_by_credit(tasks, partition + more, Link(network.channel_s, network.lag_s, free_s))
    levels = [found.by_name[t.pieces[0].gradient].level for t in made.transfers]
    if len({*levels}) < 2:  # otherwise levels are sent one after the other
        assert [reads[each.number] for each in sent] == reads
        times = [(spans[int(each.task.name)].start_s, spans[int(each.task.name)].end_s) for each in sent]
        assert times == [(pytest.approx(each.start_s), pytest.approx(each.arrived_s)) for each in sent]
        ends_s = max((s.end_s for s in step.spans if s.kind in ("compute", "stall")), default=0.0)
        for each in sent:
            members = [found.by_name[p.gradient] for p in made.transfers[int(each.task.name)].pieces]
            assert each.arrived_s <= ends_s + 1e-6 or not all(g.is_postponable for g in members)


@given(anything(), st.integers(1, 6), st.integers(0, 6))
def test_nothing_is_larger_than_the_partition_that_can_be_cut(found, partition, more):
    made = schedule_of(bytescheduler(partition, partition + more), found, line(1, 1), fixed(math.inf))
    for transfer in made.transfers:
        gradients = [found.by_name[p.gradient] for p in transfer.pieces]
        assert wire_bytes(found, transfer) <= partition or not all(g.divisible and g.elements for g in gradients)


@given(chains(), st.integers(1, 4))
def test_no_step_is_shorter_than_theorem_1_allows(found, b):
    """Without a barrier and with preemption, no starts and no parts: the best that an order of transfers can do."""
    step_s = simulate(found, schedule_of(bytescheduler(1, 1), found, line(0, b)), lambda size: b * size).iteration_s
    ready = sorted(found.gradients, key=lambda g: g.ready_s)
    # In steady state: the next forward pass begins when the computation ends, and waits for each transfer.
    work = send_by_credit(
        [
            Task(g.name, (g.read_s, -n), g.ready_s, g.size_bytes / 64, part)
            for n, g in enumerate(ready)
            for part in range(64)
        ],
        1e-9,
        Link(lambda size: b * size),
    )
    stalls_s = [each.arrived_s - found.compute_s - found.by_name[each.task.name].read_s for each in work]
    parts_s = b * max((g.size_bytes for g in ready), default=0.0) / 64
    assert step_s >= found.compute_s + max([0.0, *stalls_s]) - parts_s - 1e-6


# Forward 3, 3, 3; backward 6, 6, 6: read at 0, 3 and 6, ready at 27, 21 and 15.
LAYERS = boundaries(gradient("w3", 15, 6, 6), gradient("w2", 21, 3, 6), gradient("w1", 27, 0, 2), compute_s=30)


def test_by_hand():
    """In pieces of 2 bytes and 3 s, one at a time: w3 from 15, w2 goes before the rest of it at 21, and w1 at 27.

    The last pieces of w2 and w3 would arrive at 33 and 36 of 30, so they are put off; they are read at 3 and 6, and
    arrive at 3 and 6.
    """
    made = schedule_of(bytescheduler(2, 2), LAYERS, line(1, 1))
    assert pieces_of(made, FORWARD) == [("w2", 4, 2), ("w3", 4, 2)]
    assert pieces_of(made, BACKWARD) == [("w3", 0, 2), ("w3", 2, 2), ("w2", 0, 2), ("w2", 2, 2), ("w1", 0, 2)]
    assert made.transfers[0].reason.startswith(
        "forward window: would not arrive in the step that makes it; read at 3 s"
    )
    last = made.transfers[-1].reason
    assert last.startswith("backward window: the first to be read, at 0 us, of what is ready at 27 s")
    assert simulate_on(line(1, 1), LAYERS, made).iteration_s == 30


def test_stalls_of_the_forward_window_come_before_the_backward_pass():
    """w1 and three pieces of w2 are put off. They arrive at 2 and 8, and w2 is read at 2, so all after is 6 s later.

    So w3 is sent from 12 to 16, and w2 is ready at 16; if it were ready at 10, it would go before the rest of w3.
    """
    found = boundaries(gradient("w3", 6, 3, 4), gradient("w2", 10, 2, 8), gradient("w1", 13, 0, 2))
    made = schedule_of(bytescheduler(2, 2), found, line(0, 1))
    assert [name for name, *_ in pieces_of(made, FORWARD)] == ["w1", "w2", "w2", "w2"]
    assert [name for name, *_ in pieces_of(made, BACKWARD)] == ["w3", "w3", "w2"]
    step = simulate_on(line(0, 1), found, made)
    assert (step.iteration_s, step.exposed_s) == (19, 6)


def test_a_larger_credit_is_less_timely():
    """With two pieces under way the last one of w3 is on its way when w2 is ready, and the second of w2 when w1 is."""
    made = schedule_of(bytescheduler(2, 4), replace(LAYERS, compute_s=33.0), line(1, 1))
    assert pieces_of(made, FORWARD) == [("w2", 4, 2)]
    assert [name for name, *_ in pieces_of(made, BACKWARD)] == ["w3", "w3", "w3", "w2", "w2", "w1"]
    small = schedule_of(bytescheduler(2, 2), replace(LAYERS, compute_s=33.0), line(1, 1))
    assert [name for name, *_ in pieces_of(small, BACKWARD)] == ["w3", "w3", "w2", "w2", "w1", "w2"]


def test_one_that_is_too_large_and_cannot_be_cut_travels_alone():
    found = boundaries(gradient("whole", 1, 3, 9, divisible=False), gradient("w", 1, 5, 4), compute_s=40)
    network = Network(CollectiveOptions("ring", 1, network=lagging(0.25).options.network), 2)
    step = simulate_on(network, found, schedule_of(bytescheduler(2, 4), found, network))
    starts = [s.start_s for s in step.spans if s.kind == "transfer"]
    assert starts == [1, 5, 6]  # it has the channel until 2, and arrives at 5


def test_without_lags_and_cuts_it_is_a_priority_queue():
    made = schedule_of(bytescheduler(math.inf, math.inf), LAYERS, line(1, 1))
    assert made.in_flight == InFlight()
    assert "pieces of any size, a credit of any size (partition and credit by hand)" in made.reason
    assert all(elements == {"w1": 2}.get(name, 6) for name, _, elements in pieces_of(made, BACKWARD))


# -- what is taken by itself -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "pieces"), [(0.0, 2**16), (2e3, 2**16), (1e4, 2**18), (1e5, 2**21), (1e9, 2**23)])
def test_the_partition_is_the_smallest_with_little_overhead(start, pieces):
    """A byte takes 1 s: a piece of n bytes has a part start / n of overhead, and all bytes together the least."""
    found = boundaries(gradient("w", 1, 0, 2**23))
    limits = credit_limits(line(start, 1), found)
    assert limits.partition_bytes == pieces
    overhead = (pieces + start) / pieces / ((2**23 + start) / 2**23)
    assert overhead <= 1.05 and (
        pieces == 2**16 or (pieces / 2 + start) / (pieces / 2) > 1.05 * (2**23 + start) / 2**23
    )
    assert limits.credit_bytes == 2 * pieces and "2 pieces, as lags were not measured" in limits.reason


@pytest.mark.parametrize(("part", "number"), [(0.9, 2), (0.5, 2), (0.4, 3), (0.25, 4), (0.2, 5)])
def test_the_credit_is_the_least_with_which_the_channel_is_never_idle(part, number):
    """All pieces take as long, so all bytes in one are best, whatever is sent then; by hand, several."""
    found = boundaries(gradient("w", 1, 0, 2**20), compute_s=1000)
    network = lagging(part)
    limits = credit_limits(network, found, 2.0**16)
    assert limits.credit_bytes == number * 2**16
    assert "the least with which the channel is never idle for a lag" in limits.reason
    times = []
    for count in (number - 1, number, number + 1):
        made = schedule_of(bytescheduler(2**16, count * 2**16), found, network)
        spans = [s for s in simulate_on(network, found, made).spans if s.kind == "transfer"]
        times.append(max(s.end_s for s in spans) - min(s.start_s for s in spans))
    assert times[0] > times[1] + 0.1 and times[1] == pytest.approx(times[2])
    assert times[1] == pytest.approx(15 * 4 * part + 4)


def test_limits_by_hand_and_nothing_to_send():
    found = boundaries(gradient("w", 1, 0, 2**23))
    assert credit_limits(line(1e5, 1), found, credit_bytes=2.0**20).partition_bytes == 2**20
    assert credit_limits(line(1e5, 1), found, credit_bytes=2.0**30).partition_bytes == 2**21
    assert credit_limits(Network(CollectiveOptions(), 1), found).partition_bytes == 2**23
    assert credit_limits(line(1, 1), Boundaries((), 1.0)).partition_bytes == 1
    assert bytescheduler(2**20).name == "ByteScheduler's queue of pieces of 1 MiB"
    assert bytescheduler(2**20, 2**21).name == "ByteScheduler's queue of pieces of 1 MiB with a credit of 2 MiB"


def test_p3_has_small_pieces_and_one_at_a_time():
    found = boundaries(gradient("w", 1, 0, 3 * P3_PARTITION_BYTES), compute_s=1e9)
    made = schedule_of(p3(), found, line(1, 1))
    assert len(made.transfers) == 3 and made.in_flight == InFlight(credit_bytes=P3_PARTITION_BYTES)
    assert schedule_of(p3(2**20), found, line(1, 1)).in_flight == InFlight(credit_bytes=2**20)
    assert p3(2**20).name == "P3's queue of pieces of 1 MiB"


# -- what is refused -------------------------------------------------------------------------------------------------


def test_a_credit_below_the_partition():
    with pytest.raises(
        InputError, match="credit_bytes=3 is less than partition_bytes=4: a piece .* never be sent. Raise"
    ):
        bytescheduler(4, 3)
    with pytest.raises(InputError, match="credit_bytes=3 is less than partition_bytes=inf"):
        bytescheduler(math.inf, 3)


@pytest.mark.parametrize("size", [0, -1, math.nan, "1MiB", False])
def test_sizes_that_cannot_be(size):
    with pytest.raises(InputError, match="partition_bytes must be .*more than 0"):
        bytescheduler(size)
    with pytest.raises(InputError, match="credit_bytes must be .*more than 0"):
        bytescheduler(None, size)
    with pytest.raises(InputError, match="partition_bytes must be .*more than 0"):
        p3(size)


def test_p3_of_whole_tensors():
    with pytest.raises(InputError, match="partition_bytes must be finite: P3 sends one piece"):
        p3(math.inf)


def test_a_network_that_is_not_known():
    with pytest.raises(InputError, match="scheduling by credit needs.*network="):
        schedule_of(p3(), LAYERS, UNKNOWN)
