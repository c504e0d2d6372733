"""Which transfers are waited for, so that no more is under way at once than may be."""

from hypothesis import given, settings
from hypothesis import strategies as st

from caramel.facts import BACKWARD, FORWARD, InFlight
from caramel.in_flight import awaited, awaited_in_windows

sizes = st.lists(st.integers(0, 9), max_size=12)
credits = st.integers(1, 25)


@settings(max_examples=300)
@given(sizes, credits, st.data())
def test_there_is_never_more_than_the_credit_under_way(sizes_bytes, credit_bytes, data):
    """Whenever gradients are ready and however long transfers take; they need not start in their order."""
    times = st.lists(st.integers(0, 9), min_size=len(sizes_bytes), max_size=len(sizes_bytes))
    ready, durations = data.draw(times), data.draw(times)
    waits = awaited(sizes_bytes, None, credit_bytes)
    starts, ends = [], []
    for number, places in enumerate(waits):
        assert list(places) == sorted(set(places)) and all(place < number for place in places)
        starts.append(max([ready[number], *(ends[place] for place in places)]))
        ends.append(starts[-1] + durations[number])
    for now in starts:
        under_way = [n for n in range(len(sizes_bytes)) if starts[n] <= now < ends[n] and sizes_bytes[n]]
        assert sum(sizes_bytes[n] for n in under_way) <= credit_bytes or len(under_way) == 1


@given(sizes, credits)
def test_nothing_waits_that_would_fit(sizes_bytes, credit_bytes):
    """Of transfers that start and arrive in their order, each starts as soon as it fits beside what is under way."""
    arrived = 0
    for number, places in enumerate(awaited(sizes_bytes, None, credit_bytes)):
        arrived = max([arrived, *(place + 1 for place in places)])
        least = min(n for n in range(number + 1) if sum(sizes_bytes[n : number + 1]) <= credit_bytes or n == number)
        assert sum(sizes_bytes[least:arrived]) == 0 and arrived <= number
        assert sum(sizes_bytes[arrived : number + 1]) <= credit_bytes or sum(sizes_bytes[arrived:number]) == 0


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 12))
def test_a_credit_of_equal_transfers_is_a_number_of_them(size_bytes, most, count):
    by_bytes = awaited([size_bytes] * count, None, most * size_bytes)
    assert by_bytes == awaited([size_bytes] * count, most, None)
    assert by_bytes == [(n - most,) if n >= most else () for n in range(count)]


def test_both_limits_and_none():
    assert awaited([4, 4, 1, 1], 2, 8) == [(), (), (0,), (0, 1)]
    assert awaited([4, 4], None, None) == [(), ()]


def test_windows_do_not_wait_for_each_other():
    windows = [FORWARD, FORWARD, BACKWARD, BACKWARD, BACKWARD]
    assert awaited_in_windows(windows, [4] * 5, InFlight(1, 2)) == [(), (0,), (), (), (2,)]
    assert awaited_in_windows(windows, [4] * 5, InFlight(credit_bytes=4)) == [(), (0,), (), (2,), (3,)]
    assert awaited_in_windows(windows[2:], [4] * 3, InFlight(1)) == [(), (), ()]
