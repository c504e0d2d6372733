"""What follows from computation and all-reduces that were timed by themselves and at once."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caramel.analyzers.cost.network import Network
from caramel.errors import FitError, InputError
from caramel.facts import BACKWARD, Boundaries, Boundary, InFlight, Piece, Schedule, Scheduled
from caramel.netmodel.choice import CollectiveOptions, choose_collective
from caramel.netmodel.contention import Contention, Durations, contention_of
from caramel.netmodel.file import from_json, to_json
from caramel.netmodel.line import Curve, Sample
from caramel.netmodel.model import NetworkModel
from caramel.netmodel.report import as_text
from caramel.simulator import simulate

SECONDS = st.floats(1e-3, 1e3)
TINY_S = 1e-4


def both_at_once(compute_s, reduce_s, compute_speed, reduce_speed):
    """Ends of both, step by step: each is slower as long as the other one goes on."""
    now_s = 0.0
    left = {"compute": compute_s, "reduce": reduce_s}
    ends = {}
    while left:
        speeds = {"compute": compute_speed, "reduce": reduce_speed} if len(left) == 2 else dict.fromkeys(left, 1.0)
        first = min(left, key=lambda name: left[name] / speeds[name])
        passed_s = left[first] / speeds[first]
        now_s += passed_s
        for name in list(left):
            left[name] -= passed_s * speeds[name]
            if name == first or left[name] <= 0:
                ends[name] = now_s
                del left[name]
    return Durations(ends["compute"], ends["reduce"])


@given(SECONDS, SECONDS, st.floats(0.1, 1), st.floats(0.1, 1))
def test_the_speeds_are_found_whichever_ends_first(compute_s, reduce_s, compute_speed, reduce_speed):
    together = both_at_once(compute_s, reduce_s, compute_speed, reduce_speed)
    share, slowdown = contention_of(Durations(compute_s, reduce_s), together)
    # Little is known of how slow the long one was beside a short one.
    tolerance = 1e-9 * max(compute_s, reduce_s) / min(together.compute_s, together.reduce_s)
    assert share == pytest.approx(1 - compute_speed, abs=tolerance + 1e-9)
    assert slowdown == pytest.approx(1 / reduce_speed, rel=20 * (tolerance + 1e-9))


def test_noise_makes_nothing_faster_and_nothing_stop():
    assert contention_of(Durations(1, 1), Durations(0.9, 0.9)) == (0, 1)
    assert contention_of(Durations(0.1, 1), Durations(100, 100)) == (0.95, pytest.approx(20))


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf])
def test_times_that_cannot_be(bad):
    with pytest.raises(FitError, match="positive and finite"):
        contention_of(Durations(1, 1), Durations(bad, 1))


# -- in a network model --------------------------------------------------------------------------


def measured(workers, *contentions, slower="ring"):
    samples = [Sample(64, 1e-3), Sample(2**20, 0.1)]
    faster = [Sample(s.size_bytes, 0.9 * s.time_s) for s in samples]
    curves = (Curve.fitted(workers, slower, 1, samples), Curve.fitted(workers, "halving_doubling", 1, faster))
    return NetworkModel("a test", curves, contentions=contentions)


SMALL, LARGE = Contention(4, "ring", 1, 2**12, 0.4, 2.0), Contention(4, "ring", 1, 2**20, 0.2, 1.2)
OTHER = Contention(4, "halving_doubling", 1, 2**20, 0.3, 1.5)
NETWORK = measured(4, LARGE, SMALL)


def ring_s(size):
    return NETWORK.predict("ring", 1, 4, size).time_s


def between(size, at_small, at_large):
    """On a line over the bytes."""
    return at_small + (at_large - at_small) * (size - 2**12) / (2**20 - 2**12)


@pytest.mark.parametrize("size", [2**12, 5000, 2**14, 2**16, 2**18, 2**20])
def test_seconds_lie_on_a_line_between_sizes(size):
    """What is lost by waiting for processors, and the processor time that is taken; the parts follow from these."""
    waited_s = between(size, 1.0 * ring_s(2**12), 0.2 * ring_s(2**20))
    beside_s = ring_s(size) + waited_s
    assert NETWORK.predict("ring", 1, 4, size, is_beside=True).time_s == pytest.approx(beside_s)
    assert NETWORK.slowdown(4, "ring", 1, size) == pytest.approx(beside_s / ring_s(size))
    taken_s = between(size, 0.4 * 2 * ring_s(2**12), 0.2 * 1.2 * ring_s(2**20))
    assert NETWORK.processor_share(4, "ring", 1, size) == pytest.approx(taken_s / beside_s)


@pytest.mark.parametrize(
    ("sizes", "slowdown", "share"), [((0, 64, 2**12), 2.0, 0.4), ((2**20, 2**21, 2**30), 1.2, 0.2)]
)
def test_beyond_the_measured_sizes_the_parts_stay_as_they_are(sizes, slowdown, share):
    for size in sizes:
        assert NETWORK.slowdown(4, "ring", 1, size) == pytest.approx(slowdown)
        assert NETWORK.processor_share(4, "ring", 1, size) == pytest.approx(share)


def test_no_more_than_nearly_all_of_the_processors_is_taken():
    """The curve is far below the line between the sizes."""
    samples = [Sample(2**12, 0.01), Sample(2**16, 0.0101), Sample(2**20, 0.1)]
    found = [Contention(4, "ring", 1, size, 0.9, 1.0) for size in (2**12, 2**20)]
    network = NetworkModel("a test", (Curve.fitted(4, "ring", 1, samples),), contentions=tuple(found))
    assert network.processor_share(4, "ring", 1, 2**16) == 0.95


@given(st.integers(0, 2**22))
def test_it_is_never_faster_beside_computation(size):
    assert NETWORK.slowdown(4, "ring", 1, size) >= 1
    assert 0 <= NETWORK.processor_share(4, "ring", 1, size) <= 0.95


# -- several at once -----------------------------------------------------------------------------

AT_ONCE = measured(4, replace(SMALL, occupancy=0.5), replace(LARGE, occupancy=1.05))


@pytest.mark.parametrize("size", [2**12, 5000, 2**14, 2**16, 2**18, 2**20])
def test_seconds_that_others_need_not_wait_for_lie_on_a_line(size):
    lag_s = between(size, 1.5 * ring_s(2**12), 0.15 * ring_s(2**20))
    beside_s = AT_ONCE.predict("ring", 1, 4, size, is_beside=True).time_s
    assert AT_ONCE.channel_part(4, "ring", 1, size) == pytest.approx((beside_s - lag_s) / beside_s)
    assert AT_ONCE.slowdown(4, "ring", 1, size) == NETWORK.slowdown(4, "ring", 1, size)


@pytest.mark.parametrize(("sizes", "occupancy"), [((0, 64, 2**12), 0.5), ((2**20, 2**21, 2**30), 1.05)])
def test_beyond_the_measured_sizes_occupancies_stay_as_they_are(sizes, occupancy):
    for size in sizes:
        kind = (4, "ring", 1, size)
        assert AT_ONCE.channel_part(*kind) * AT_ONCE.slowdown(*kind) == pytest.approx(occupancy)


@given(st.integers(0, 2**22), st.lists(st.none() | st.floats(0, 100), min_size=3, max_size=3))
def test_nobody_waits_longer_than_until_the_one_in_front_has_arrived(size, occupancies):
    found = [replace(each, occupancy=given) for each, given in zip((SMALL, LARGE, OTHER), occupancies)]
    network = measured(4, *found)
    parts = {name: network.channel_part(4, name, 1, size) for name in ("ring", "halving_doubling", "star")}
    assert all(0 <= part <= 1 for part in parts.values())
    if size >= 2**20:  # beyond the measured sizes they stay
        for name, given in (("ring", found[1]), ("halving_doubling", found[2])):
            wanted = 1.0 if given.occupancy is None else min(given.occupancy / given.slowdown, 1.0)
            assert parts[name] == pytest.approx(wanted)
        assert parts["star"] == max(parts.values())


def test_where_several_at_once_were_not_measured_they_come_one_after_the_other():
    """Exactly: what is not known to overlap by next to nothing is not known to overlap."""
    for network, workers in ((NETWORK, 4), (measured(4), 4), (NetworkModel.from_link_rate(1e9), 4)):
        assert network.channel_part(workers, "ring", 1, 2**16) == 1
        assert not network.has_overlaps(workers)
    assert AT_ONCE.has_overlaps(4)
    for slowdown in (1.1, 1.3, 1.7):
        network = measured(4, replace(SMALL, slowdown=slowdown), replace(LARGE, slowdown=slowdown, occupancy=slowdown))
        assert {network.channel_part(4, "ring", 1, size) for size in range(2**12, 2**20, 2**16)} == {1}
        assert not network.has_overlaps(4)


def test_one_worker_waits_for_nobody():
    network = measured(1, replace(SMALL, workers=1, occupancy=0.5))
    assert network.channel_part(1, "ring", 1, 2**16) == 1
    assert Network(CollectiveOptions(network=network), 1).lag_s(2**16) == 0


def test_what_was_not_measured_is_not_taken_to_overlap_more_than_what_was():
    network = measured(4, replace(LARGE, occupancy=1.1), replace(OTHER, occupancy=0.7))
    parts = [network.channel_part(4, kind, 1, 2**20) for kind in ("ring", "halving_doubling", "star")]
    assert parts == [pytest.approx(1.1 / 1.2), pytest.approx(0.7 / 1.5), pytest.approx(1.1 / 1.2)]


def test_where_depths_were_not_measured_nothing_is_cut():
    network = measured(4, LARGE, OTHER)
    for name in ("ring", "halving_doubling"):
        depths = [network.choose(2**20, 4, allowed=(name,), is_beside=is_beside).depth for is_beside in (False, True)]
        assert depths == [1, 1]
        assert network.choose(2**20, 4, allowed=(name,), depth=5, is_beside=True).depth == 5  # who wants it gets it


def test_an_all_reduce_has_the_channel_as_long_as_was_measured():
    size = 2**20
    ring, other = replace(LARGE, slowdown=1.1, occupancy=1.1), replace(OTHER, slowdown=3.0, occupancy=0.9)
    network = measured(4, ring, other)
    alone_s = network.predict("halving_doubling", 1, 4, size).time_s
    found = Network(CollectiveOptions("halving_doubling", network=network), 4)
    assert choose_collective(found.options, 4, "float32", size // 4).depth == 1
    assert (found.time_s(size), found.channel_s(size)) == (pytest.approx(3 * alone_s), pytest.approx(0.9 * alone_s))
    cut_s = alone_s + network.predict("halving_doubling", 1, 4, 0).time_s  # one more start
    at_two = Network(CollectiveOptions("halving_doubling", 2, network=network), 4)
    assert at_two.time_s(size) == pytest.approx(cut_s + 2 * alone_s)  # it waits as long as without chunks


def test_what_delays_the_next_one_less_is_chosen_for_a_step():
    """A ring takes 0.12 s beside computation, and halving-doubling 0.135 s, of which the next waits for 0.09."""
    ring, slow = replace(LARGE, processor_share=0.3), replace(OTHER, processor_share=0.3)
    choices = [measured(4, ring, replace(slow, occupancy=part)).choose(2**20, 4, is_beside=True) for part in (1.4, 1.0)]
    assert [choice.algorithm for choice in choices] == ["ring", "halving_doubling"]
    assert [choice.prediction.time_s for choice in choices] == [pytest.approx(0.12), pytest.approx(0.135)]
    assert [choice.occupied_s for choice in choices] == [pytest.approx(0.12), pytest.approx(0.09)]
    assert "by 101.2 ms: it takes 135 ms (measured), and the next transfer waits for 90 ms" in choices[1].reason
    assert "next best is ring at depth 1 with 120 ms, which delays it by 120 ms" in choices[1].reason


def test_files_have_occupancies_and_older_ones_need_not():
    text = to_json(AT_ONCE)
    assert from_json(text) == AT_ONCE
    older = json.loads(text)
    for contention in older["contentions"]:
        del contention["occupancy"]
    assert from_json(json.dumps(older)) == measured(4, SMALL, LARGE)
    for bad in ("-0.5", "0", "true", "NaN", '"much"'):
        with pytest.raises(InputError, match="damaged"):
            from_json(text.replace('"occupancy": 0.5', f'"occupancy": {bad}'))
    with pytest.raises(InputError, match="damaged.*between 2 and"):
        from_json(to_json(measured(4, replace(SMALL, workers=1))))


def test_people_can_read_occupancies():
    assert "0.5" in as_text(AT_ONCE).partition("occupancy")[2]


def test_each_kind_of_all_reduce_has_its_own():
    """An algorithm that was not measured is not taken to be better than those that were."""
    network = measured(4, LARGE, OTHER)
    kinds = (("ring", 1), ("halving_doubling", 1), ("star", 1))
    assert [network.slowdown(4, *kind, 2**20) for kind in kinds] == [1.2, 1.5, 1.5]
    assert [network.processor_share(4, *kind, 2**20) for kind in kinds] == [0.2, 0.3, 0.3]


def test_a_depth_that_was_not_measured_waits_as_long_as_the_most_similar_one():
    deep = Contention(4, "ring", 8, 2**20, 0.5, 3.0)
    samples = [Sample(64, 2e-3), Sample(2**20, 0.2)]
    network = measured(4, LARGE, OTHER, deep)
    network = replace(network, curves=(*network.curves, Curve.fitted(4, "ring", 8, samples)))
    for depth, measured_s, like in ((2, ring_s(2**20), LARGE), (4, 0.2, deep)):
        alone_s = network.predict("ring", depth, 4, 2**20).time_s
        waited_s = (like.slowdown - 1) * measured_s
        assert network.slowdown(4, "ring", depth, 2**20) == pytest.approx(1 + waited_s / alone_s)
        taken_s = like.processor_share * like.slowdown * measured_s
        assert network.processor_share(4, "ring", depth, 2**20) == pytest.approx(taken_s / (alone_s + waited_s))


def test_what_was_measured_at_small_sizes_only_says_nothing_of_larger_ones():
    """A star of 4 KiB that waits for processors most of the time is not what a shuffle of 1 MiB is like."""
    network = measured(4, SMALL, LARGE, Contention(4, "halving_doubling", 1, 2**12, 0.6, 20.0))
    for kind in ("shuffle", "halving_doubling"):
        assert [network.slowdown(4, kind, 1, size) for size in (64, 2**12)] == pytest.approx([20.0, 20.0])
        assert [network.processor_share(4, kind, 1, size) for size in (64, 2**12)] == pytest.approx([0.6, 0.6])
        for size in (2**12 + 1, 2**16, 2**20, 2**22):
            assert network.slowdown(4, kind, 1, size) == network.slowdown(4, "ring", 1, size)
            assert network.processor_share(4, kind, 1, size) == network.processor_share(4, "ring", 1, size)


def test_what_is_faster_beside_computation_is_chosen_for_a_step_only():
    network = measured(4, LARGE, OTHER)
    assert network.choose(2**20, 4).algorithm == "halving_doubling"
    beside = network.choose(2**20, 4, is_beside=True)
    assert (beside.algorithm, beside.prediction.time_s) == ("ring", pytest.approx(0.12))
    chosen = choose_collective(CollectiveOptions(network=network), 4, "float32", 2**18)
    assert (chosen.algorithm, chosen.predicted_s) == ("ring", pytest.approx(0.12))


@pytest.mark.parametrize(("slowdown", "chosen"), [(1.3, "star"), (1.36, "star"), (1.40, "halving_doubling")])
def test_of_almost_equally_fast_ones_the_one_that_leaves_most_to_computation_is_chosen(slowdown, chosen):
    """The star's time is slowdown / 1.333 of halving-doubling's, and it takes a tenth less of the processors."""
    star = Contention(4, "star", 1, 2**20, 0.2, slowdown * 0.9)
    network = measured(4, star, replace(OTHER, slowdown=1.333), slower="star")
    choice = network.choose(2**20, 4, depth=1, is_beside=True)
    assert choice.algorithm == chosen
    assert ("takes 20% of the processors' time from computation, instead of 30%" in choice.reason) == (slowdown == 1.36)


@pytest.mark.parametrize(("less", "slower", "chosen"), [(0.049, 1.0, 1), (0.051, 1.0, 4), (0.049, 0.98, 1)])
def test_of_almost_equal_shares_that_with_fewer_chunks_is_chosen(less, slower, chosen):
    """Twenty-four messages cost more than six, whatever one measurement of half a second says."""
    found = [Contention(4, "ring", depth, 2**20, share, 1.2) for depth, share in ((1, 0.2), (4, 0.2 - less))]
    times = {1: 0.1, 4: slower * 0.1}
    curves = [Curve.fitted(4, "ring", d, [Sample(2**10, 1e-3), Sample(2**20, time_s)]) for d, time_s in times.items()]
    choice = NetworkModel("test", tuple(curves), contentions=tuple(found)).choose(2**20, 4, is_beside=True)
    assert (choice.algorithm, choice.depth) == ("ring", chosen)
    assert ("takes 15% of the processors' time from computation, instead of 20%" in choice.reason) == (chosen == 4)
    assert ("takes fewer chunks, and 20% of the processors' time" in choice.reason) == (slower < 1)


PREFERRED = {
    "ring": "in which a worker receives from one other only",
    "shuffle": "with few rounds, each of which waits for processors",
}


@pytest.mark.parametrize(
    ("name", "workers", "share", "slowdown", "is_preferred"),
    [
        ("ring", 4, 0.2, 1.66, True),
        ("ring", 4, 0.249, 1.66, True),
        ("ring", 4, 0.26, 1.66, False),
        ("ring", 4, 0.2, 1.68, False),
        ("ring", 2, 0.2, 1.66, False),
        ("shuffle", 4, 0.4, 1.66, True),
        ("shuffle", 4, 0.26, 1.66, True),
        ("shuffle", 4, 0.249, 1.66, False),
        ("shuffle", 4, 0.4, 1.68, False),
        ("shuffle", 2, 0.4, 1.66, False),
    ],
)
def test_beside_computation_others_than_the_fastest_are_preferred(name, workers, share, slowdown, is_preferred):
    """Where links are what is waited for, rings; where processors are, few rounds. With two workers nothing meets.

    The time is slowdown / 1.333 of halving-doubling's.
    """
    preferred = Contention(workers, name, 1, 2**20, share, slowdown * 0.9)
    other = replace(OTHER, workers=workers, processor_share=0.1, slowdown=1.333)
    network = measured(workers, preferred, other, slower=name)
    choice = network.choose(2**20, workers, is_beside=True)
    assert choice.algorithm == (name if is_preferred else "halving_doubling")
    assert (PREFERRED[name] in choice.reason) == is_preferred
    assert network.choose(2**20, workers).algorithm == "halving_doubling"
    assert network.choose(2**20, workers, allowed=["halving_doubling"], is_beside=True).algorithm == "halving_doubling"


def test_what_was_not_measured_changes_nothing():
    for network, workers in ((measured(4), 4), (NetworkModel.from_link_rate(1e9), 4)):
        kind = (workers, "ring", 1, 2**16)
        assert (network.processor_share(*kind), network.slowdown(*kind)) == (0, 1)


def test_files_have_it_and_older_ones_need_not():
    text = to_json(NETWORK)
    assert from_json(text) == NETWORK
    older = json.loads(text)
    del older["contentions"]
    assert from_json(json.dumps(older)) == measured(4)


@pytest.mark.parametrize(
    ("value", "by"),
    [
        ('"processor_share": 0.4', '"processor_share": 1.0'),
        ('"processor_share": 0.4', '"processor_share": -0.1'),
        ('"slowdown": 2.0', '"slowdown": 0.5'),
        ('"slowdown": 2.0', '"slowdown": NaN'),
        ('"slowdown": 2.0', '"speed": 2.0'),
        ('"size_bytes": 4096', '"size_bytes": 1048576'),
        ('"size_bytes": 4096', '"size_bytes": -1'),
        ('"size_bytes": 4096', '"size_bytes": 0'),
    ],
)
def test_damage_is_noticed(value, by):
    text = to_json(NETWORK)
    assert text.count(value) == 1
    with pytest.raises(InputError, match="damaged"):
        from_json(text.replace(value, by))


@pytest.mark.parametrize("other", [{"workers": 2}, {"algorithm": "star"}, {"depth": 2}])
def test_what_all_reduces_cost_beside_computation_needs_what_they_take_alone(other):
    model = measured(4, LARGE, replace(SMALL, **other))
    with pytest.raises(InputError, match=r"damaged: .* at depth \d on \d workers was measured beside computation only"):
        from_json(to_json(model))
    by_hand = replace(NetworkModel.from_link_rate(1e9), contentions=(replace(SMALL, **other),))
    assert from_json(to_json(by_hand)) == by_hand


def test_models_of_two_measurements_have_both():
    both = NETWORK.merged(measured(2, Contention(2, "ring", 1, 64, 0.1, 1.5)))
    assert [(c.workers, c.size_bytes) for c in both.contentions] == [(4, 2**20), (4, 2**12), (2, 64)]


def test_people_can_read_it():
    assert "20%" in as_text(NETWORK)
    assert "while all workers compute" not in as_text(measured(4))


# -- in plans ------------------------------------------------------------------------------------


def network_of(*contentions):
    return Network(CollectiveOptions("ring", 1, network=measured(4, *contentions)), 4)


def test_transfers_take_longer_beside_computation():
    plain, beside = network_of(), network_of(SMALL, LARGE)
    assert beside.time_s(2**20) == pytest.approx(1.2 * plain.time_s(2**20))
    any_algorithm = Network(CollectiveOptions(network=measured(4, LARGE, OTHER)), 4)
    assert any_algorithm.time_s(2**20) == pytest.approx(1.2 * plain.time_s(2**20))


def test_the_channel_is_free_before_results_have_arrived():
    """What a transfer takes is the same; where nothing is left to choose and where something is."""
    small, large = replace(SMALL, occupancy=0.5), replace(LARGE, occupancy=1.05)
    alone_s = network_of().time_s(2**20)
    for options in (CollectiveOptions("ring", 1, network=AT_ONCE), CollectiveOptions("ring", network=AT_ONCE)):
        network = Network(options, 4)
        assert network.has_overlaps
        assert network.time_s(2**20) == pytest.approx(1.2 * alone_s)
        assert network.channel_s(2**20) == pytest.approx(1.05 * alone_s)
        assert network.lag_s(2**20) == pytest.approx(0.15 * alone_s)
        whole = network.without_overlaps
        assert (whole.time_s(2**20), whole.lag_s(2**20)) == (network.time_s(2**20), 0)
        assert not whole.has_overlaps
    taken = [network_of(*found).processor_s(2**14) for found in ((SMALL, LARGE), (small, large))]
    assert taken[0] == pytest.approx(taken[1])
    assert network_of(SMALL, LARGE).lag_s(2**14) == 0


def test_no_transfer_is_below_the_line_for_bounds_where_they_overlap():
    network = Network(CollectiveOptions(network=AT_ONCE), 4)
    line = network.line_below(2**20)
    for size in (1, 2**12, 2**15, 2**18, 2**20):
        assert line.time_s(size) <= network.channel_s(size) * (1 + 1e-9)


def beside(network, compute_s, sizes, most=None):
    """How many times as long computation takes beside transfers that follow each other."""
    return network.compute_factor(compute_s, network.under_way_s(sizes, most), sum(map(network.processor_s, sizes)))


def test_transfers_at_once_take_no_more_than_nearly_all_of_the_processors():
    """What each takes was measured one after the other: 0.9 of 2 units of time, of which the next waits for half."""
    network = network_of(replace(SMALL, processor_share=0.9, occupancy=0.5))
    many = [2**12] * 5
    taken_s = sum(map(network.processor_s, many))
    assert taken_s > network.under_way_s(many, None)
    assert beside(network, 1e-6, many) == pytest.approx(20)
    assert beside(network, 1.0, many) == pytest.approx(1 + taken_s)


@pytest.mark.parametrize("occupancy", [None, 0.5, 1.5])
def test_one_transfer_takes_its_share_as_long_as_it_is_under_way(occupancy):
    network = network_of(replace(SMALL, processor_share=0.3, occupancy=occupancy))
    assert beside(network, 1e-6, [2**12]) == pytest.approx(1 / 0.7)
    assert network.least_compute_factor(1e-6, 2**12) == pytest.approx(1 / 0.7)


@pytest.mark.parametrize("most", [None, 1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_transfers_are_under_way_as_long_as_in_a_step(count, most):
    """With equal transfers that are all ready, as the simulator has them one after the other."""
    network = network_of(replace(SMALL, occupancy=0.5), replace(LARGE, occupancy=0.4))
    gradients = tuple(Boundary(f"g{n}", "float32", 2**14, 2.0**16, 0.0, 0.0) for n in range(count))
    plan = Schedule(tuple(Scheduled((Piece(g.name, 0, g.elements),), BACKWARD, "") for g in gradients), "")
    step = simulate(Boundaries(gradients, 0.0), plan, network.channel_s, network.lag_s, InFlight(None, most))
    found_s = network.under_way_s([2.0**16] * count, most)
    if most in (None, 1) or count <= most:
        assert found_s == pytest.approx(step.communication_s)
    else:  # rounded down to whole turns
        assert 0.8 * step.communication_s < found_s <= step.communication_s * (1 + 1e-9)


@pytest.mark.parametrize("compute_s", [0.01, 0.05, 0.1, 0.5, 2.0])
def test_computation_takes_longer_beside_transfers(compute_s):
    """It has a fifth less of the processors as long as the transfers go on."""
    network = network_of(LARGE)
    transfers_s = network.time_s(2**20)
    left_s, now_s = compute_s, 0.0
    while left_s > 0:
        left_s -= TINY_S * (0.8 if now_s < transfers_s else 1)
        now_s += TINY_S
    assert compute_s * beside(network, compute_s, [2**20]) == pytest.approx(now_s, abs=2 * TINY_S)


def test_nothing_is_longer_that_is_not_known_to_be():
    assert beside(network_of(), 1.0, [2**20]) == 1
    assert beside(network_of(LARGE), 0.0, [2**20]) == 1
    assert beside(network_of(LARGE), 1.0, []) == 1
    assert Network(CollectiveOptions(), 4).compute_factor(1.0, 1.0, 1.0) == 1
    assert beside(Network(CollectiveOptions("ring", 1, network=NETWORK), 1), 1.0, [2**20]) == 1
