"""ByteScheduler's queue against a clock that ticks, a link that is divided at will, and the paper's own claims."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caramel.analyzers.policies.credit_queue import (
    Link,
    Task,
    check_credit,
    send_by_credit,
)
from caramel.errors import InputError

BYTE_PER_S = Link(lambda size: size)


def partitioned(whole, most):
    """The tasks in parts of a size, and of each a last one of what is left (algorithm 1, lines 1 to 4)."""
    parts = []
    for task in whole:
        starts = [0.0]
        while starts[-1] + most < task.size_bytes:
            starts.append(starts[-1] + most)
        parts += [task._replace(size_bytes=min(most, task.size_bytes - start)) for start in starts]
    return parts


def names(sent):
    return [each.task.name for each in sent]


@st.composite
def tasks(draw, most=6, size=6):
    """Tasks in whole numbers, several of one priority, some of no bytes."""
    numbers = st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(0, size), st.booleans())
    drawn = draw(st.lists(numbers, max_size=most))
    return [Task(f"t{n}", (p,), float(ready), float(b), can_wait=w) for n, (p, ready, b, w) in enumerate(drawn)]


# -- a second queue: time goes on in steps of 1, and everything that can happen at a time happens ----------------


def ticked(given_tasks, credit, channel_s, lag_s, until=math.inf):
    """(task, when it enters the link, when it has arrived) in the order of entering."""
    waiting, unready = [], sorted(given_tasks, key=lambda t: t.ready_s)
    now, free, sent = 0, 0, []
    while waiting or unready:
        waiting += [t for t in unready if t.ready_s <= now]
        unready = [t for t in unready if t.ready_s > now]
        moved = True
        while moved and waiting:
            head = min(waiting, key=lambda t: (t.priority, given_tasks.index(t)))
            under_way = [t for t, _, arrived in sent if arrived > now]
            moved = sum(t.size_bytes for t in under_way) + head.size_bytes <= credit or not under_way
            if moved:
                waiting.remove(head)
                left = max(free, now) + channel_s(head.size_bytes)
                if not head.can_wait or left + lag_s(head.size_bytes) <= until:
                    free = left
                    sent.append((head, now, left + lag_s(head.size_bytes)))
        now += 1
    return sent


@settings(max_examples=400)
@given(tasks(), st.integers(1, 12), st.integers(0, 2), st.integers(0, 3), st.integers(0, 2), st.integers(0, 40))
def test_it_is_the_queue_of_a_clock_that_ticks(given_tasks, credit, start, lag, lag_per_byte, until):
    def channel_s(size):
        return start + size

    def lag_s(size):
        return lag + lag_per_byte * size

    found = send_by_credit(given_tasks, credit, Link(channel_s, lag_s), until)
    wanted = ticked(given_tasks, credit, channel_s, lag_s, until)
    assert [(s.task, s.queued_s, s.arrived_s) for s in found] == wanted
    assert [given_tasks[each.number] for each in found] == [each.task for each in found]
    assert all(s.left_s - s.start_s == channel_s(s.task.size_bytes) for s in found)


@settings(max_examples=200)
@given(tasks(), st.integers(1, 4), st.integers(0, 8))
def test_times_in_tenths_change_nothing(given_tasks, partition, more):
    """Sums of tenths are off by their last bits."""
    parts = partitioned(given_tasks, partition)
    tenths = [part._replace(ready_s=part.ready_s / 10) for part in parts]
    whole = send_by_credit(parts, partition + more, Link(lambda size: 1 + size, lambda size: 2.0))
    scaled = send_by_credit(tenths, partition + more, Link(lambda size: (1 + size) / 10, lambda size: 0.2))
    assert [each.number for each in scaled] == [each.number for each in whole]


# -- a link that can be taken from one layer for another at any time ----------------------------------------------


def fluid(layers):
    """When each task has arrived over a link of 1 byte/s that always serves the least priority that is ready."""
    left = {t.name: t.size_bytes for t in layers}
    arrived, now = {}, 0.0
    while len(arrived) < len(layers):
        here = [t for t in layers if t.ready_s <= now and t.name not in arrived]
        later = min((t.ready_s for t in layers if t.ready_s > now), default=math.inf)
        if not here:
            now = later
            continue
        first = min(here, key=lambda t: t.priority)
        until = min(now + left[first.name], later)
        left[first.name] -= until - now
        now = until
        if left[first.name] <= 1e-9:
            arrived[first.name] = now
    return arrived


def end_of_forward_pass(arrived, forward, backward_s):
    """Each layer's forward part waits for the layer before it and for its own tensor (section 2.2)."""
    now = backward_s
    for layer, forward_s in enumerate(forward):
        now = max(now, arrived[str(layer)]) + forward_s
    return now


def layered(sizes, backward):
    """The tasks of layers: ready in the backward pass, the last layer first, and most urgent in the first layer."""
    return [Task(str(layer), (layer,), float(sum(backward[layer:])), float(size)) for layer, size in enumerate(sizes)]


def arrivals(sent):
    """When the last part of each tensor has arrived."""
    found = {}
    for each in sent:
        found[each.task.name] = max(found.get(each.task.name, 0.0), each.arrived_s)
    return found


@st.composite
def chains(draw, most=5, size=8):
    count = draw(st.integers(1, most))
    numbers = st.lists(st.integers(0, 4), min_size=count, max_size=count)
    sizes = st.lists(st.integers(1, size), min_size=count, max_size=count)
    return draw(sizes), draw(numbers), draw(numbers)


@given(chains())
def test_small_parts_are_as_good_as_preemption(chain):
    """Where every event is at a whole number, parts of one byte lose nothing (theorem 1, conditions 3 to 5)."""
    sizes, _, backward = chain
    layers = layered(sizes, backward)
    assert arrivals(send_by_credit(partitioned(layers, 1), 1, BYTE_PER_S)) == fluid(layers)


def best_end(layers, forward, backward_s):
    """The earliest end of the forward pass over all ways to divide the link, second by second, idling included."""
    best = math.inf
    stack = [(0, tuple(t.size_bytes for t in layers), {})]
    seen = set()
    while stack:
        now, left, arrived = stack.pop()
        if (now, left, tuple(sorted(arrived.items()))) in seen:
            continue
        seen.add((now, left, tuple(sorted(arrived.items()))))
        if not any(left):
            best = min(best, end_of_forward_pass(arrived, forward, backward_s))
            continue
        here = [n for n, t in enumerate(layers) if left[n] and t.ready_s <= now]
        for n in here or [None]:
            after = tuple(each - (n == place) for place, each in enumerate(left))
            done = {**arrived, layers[n].name: now + 1} if n is not None and after[n] == 0 else arrived
            stack.append((now + 1, after, done))
    return best


@settings(max_examples=60, deadline=None)
@given(chains(most=3, size=3))
def test_theorem_1(chain):
    """No way to divide the link ends the next forward pass earlier than by priority of the layers."""
    sizes, forward, backward = chain
    layers = layered(sizes, backward)
    assert end_of_forward_pass(fluid(layers), forward, sum(backward)) == best_end(layers, forward, sum(backward))


def test_a_queue_in_the_order_of_the_backward_pass_is_worse():
    """Figure 2: three layers, and a step 44.4 % faster than first in, first out.

    The text has none of the figure's numbers; these have its ratio, 13 to 9.
    """
    sizes, forward, backward = (1, 2, 4), (2, 2, 1), (1, 1, 1)
    layers = layered(sizes, backward)
    fifo = send_by_credit(layers, math.inf, BYTE_PER_S)
    assert names(fifo) == ["2", "1", "0"]
    assert end_of_forward_pass(arrivals(fifo), forward, 3) == 13
    whole = send_by_credit(layers, 4, BYTE_PER_S)  # by priority alone: what has begun goes on
    assert end_of_forward_pass(arrivals(whole), forward, 3) == 11
    parts = send_by_credit(partitioned(layers, 1), 1, BYTE_PER_S)
    assert end_of_forward_pass(arrivals(parts), forward, 3) == 9
    assert pytest.approx(0.444, abs=1e-3) == 13 / 9 - 1


# -- section 4.1: the bound of the delay --------------------------------------------------------------------------


def delay_and_overhead(chain, partition, credit, overhead):
    """By how much the forward pass ends later than with preemption, and what all parts cost together."""
    sizes, forward, backward = chain
    layers = layered(sizes, backward)
    sent = send_by_credit(partitioned(layers, partition), credit, Link(lambda size: size + overhead))
    ideal_s = end_of_forward_pass(fluid(layers), forward, sum(backward))
    return end_of_forward_pass(arrivals(sent), forward, sum(backward)) - ideal_s, len(sent) * overhead


@settings(max_examples=400)
@given(chains(most=6), st.integers(1, 9), st.integers(0, 3))
def test_the_delay_is_bounded_by_the_overheads_and_one_part(chain, partition, overhead):
    delay_s, overheads_s = delay_and_overhead(chain, partition, partition, overhead)
    assert overheads_s == sum(math.ceil(size / partition) for size in chain[0]) * overhead
    assert delay_s <= overheads_s + partition


@settings(max_examples=400)
@given(chains(most=6), st.integers(1, 9), st.integers(0, 8), st.integers(0, 3))
def test_a_larger_credit_takes_the_place_of_the_part(chain, partition, more, overhead):
    """What is in front of a more urgent layer is a credit. The paper's bound is that of stop-and-wait."""
    delay_s, overheads_s = delay_and_overhead(chain, partition, partition + more, overhead)
    assert delay_s <= overheads_s + partition + more


def test_the_bound_as_printed_counts_too_few_parts():
    """It rounds down, so that tensors smaller than a part have no overhead."""
    chain, partition, overhead = ((1, 1, 1), (0, 0, 0), (0, 0, 0)), 2, 3
    delay_s, overheads_s = delay_and_overhead(chain, partition, partition, overhead)
    printed_s = sum(size // partition for size in chain[0]) * overhead + partition
    assert printed_s == 2 < delay_s == 9 <= overheads_s + partition


# -- section 4.2: the credit --------------------------------------------------------------------------------------

ONE_TO_FOUR = [Task(str(n), (-n,), float(n), 1.0) for n in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("credit", "order"), [(1, ["1", "4", "3", "2"]), (2, ["1", "2", "4", "3"]), (math.inf, ["1", "2", "3", "4"])]
)
def test_the_example_of_the_paper(credit, order):
    """Tensors 2, 3 and 4 arrive while 1 is sent, each more urgent than those before."""
    assert names(send_by_credit(ONE_TO_FOUR, credit, Link(lambda size: 4.0))) == order


def test_a_part_of_just_the_credit_is_sent():
    """Line 16 as printed compares with >, and would wait for ever."""
    sent = send_by_credit(partitioned([Task("w", (0,), 0.0, 10.0)], 4), 4, BYTE_PER_S)
    assert [(s.number, s.start_s, s.arrived_s) for s in sent] == [(0, 0, 4), (1, 4, 8), (2, 8, 10)]


def test_what_does_not_fit_stays_in_the_queue():
    """As printed it is taken out before it is looked at, and lost. Here it waits, and what is more urgent passes it."""
    large, urgent = Task("large", (1,), 1.0, 3.0), Task("urgent", (0,), 2.0, 1.0)
    sent = send_by_credit([Task("first", (2,), 0.0, 2.0), large, urgent], 3, Link(lambda size: 10.0))
    assert [(s.task.name, s.queued_s) for s in sent] == [("first", 0), ("urgent", 2), ("large", 20)]


def test_what_is_less_urgent_does_not_pass():
    large, small = Task("large", (1,), 1.0, 3.0), Task("small", (2,), 1.0, 1.0)
    sent = send_by_credit([Task("first", (3,), 0.0, 2.0), large, small], 3, Link(lambda size: 10.0))
    assert names(sent) == ["first", "large", "small"]


def test_a_window_fills_a_link_that_lags():
    """Parts have the link for 1 s and arrive 3 s later: with a credit of four the link is never idle."""
    parts = partitioned([Task("w", (0,), 0.0, 8.0)], 1)
    ends_s = [
        max(arrivals(send_by_credit(parts, n, Link(lambda size: 1.0, lambda size: 3.0))).values()) for n in (1, 3, 4, 5)
    ]
    assert ends_s == [32, 13, 11, 11]


def test_pushes_and_pulls_have_a_queue_each():
    """With parameter servers: a part can be pulled when it has been pushed; cut, both take hardly longer than one."""
    for partition, end_s in ((8, 16), (1, 9)):
        pushes = send_by_credit(partitioned([Task("w", (0,), 0.0, 8.0)], partition), partition, BYTE_PER_S)
        pulls = [sent.task._replace(ready_s=sent.arrived_s) for sent in pushes]
        assert max(arrivals(send_by_credit(pulls, partition, BYTE_PER_S)).values()) == end_s


def test_what_would_be_late_lets_others_go():
    """The more urgent one would arrive at 6; the other still can, at 4."""
    urgent, small = Task("urgent", (0,), 3.0, 3.0, can_wait=True), Task("small", (1,), 3.0, 1.0, can_wait=True)
    assert names(send_by_credit([urgent, small], 3, BYTE_PER_S, 5.0)) == ["small"]
    assert names(send_by_credit([urgent, small], 3, BYTE_PER_S, 6.0)) == ["urgent"]
    assert names(send_by_credit([urgent._replace(can_wait=False), small], 3, BYTE_PER_S, 5.0)) == ["urgent"]


def test_a_link_that_is_free_later():
    sent = send_by_credit(
        [Task("a", (1,), 0.0, 1.0), Task("b", (0,), 1.0, 1.0)], 1, Link(lambda size: size, free_s=5.0)
    )
    assert [(s.task.name, s.queued_s, s.start_s) for s in sent] == [("a", 0, 5), ("b", 6, 6)]


# -- what is refused ----------------------------------------------------------------------------------------------


def test_a_credit_below_a_part():
    check_credit(4, 4)
    with pytest.raises(InputError, match="credit_bytes=3 is less than partition_bytes=4.*could never be sent. Raise"):
        check_credit(4, 3)


@pytest.mark.parametrize("size", [0, -1, math.nan, "1MiB", False])
def test_sizes_that_cannot_be(size):
    with pytest.raises(InputError, match="credit_bytes must be .*more than 0"):
        send_by_credit([], size, BYTE_PER_S)
