"""Policies of batching against their definitions, carried out another way."""

import math
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_common import UNKNOWN, anything, boundaries, buckets_of, chains, gradient, line

from caramel.analyzers.analyzer import Analyzer
from caramel.analyzers.cost.network import Network
from caramel.analyzers.policies.batching import fixed, mg_wfbp, paper_batching, single
from caramel.errors import InputError
from caramel.facts import BACKWARD, Boundaries, Buckets, Piece, Schedule, Scheduled
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.model import NetworkModel
from caramel.simulator import simulate

POLICIES = [single(), fixed(), fixed(6), fixed(0), fixed(math.inf), paper_batching(), paper_batching(5), mg_wfbp()]
NAMES = [f"{number}, {policy.name}" for number, policy in enumerate(POLICIES)]


def iteration_s(found, buckets, network):
    """Of the backward window alone."""
    pieces = [tuple(Piece(name, 0, found.by_name[name].elements) for name in bucket) for bucket in buckets]
    return simulate(found, Schedule(tuple(Scheduled(p, BACKWARD, "") for p in pieces), ""), network.time_s).iteration_s


# -- what holds for all of them ------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES, ids=NAMES)
@given(found=anything())
@settings(max_examples=30)
def test_every_gradient_is_in_one_bucket_of_its_kind(policy, found):
    made = buckets_of(policy, found, line(3, 1))
    assert sorted(name for bucket in made.buckets for name in bucket) == sorted(found.by_name)
    assert len(made.reasons) == len(made.buckets)
    assert all(made.reasons)
    position = {g.name: n for n, g in enumerate(found.gradients)}
    for bucket in made.buckets:
        gradients = [found.by_name[name] for name in bucket]
        assert len({(g.dtype, g.level) for g in gradients}) == 1
        assert len(bucket) == 1 or all(g.elements is not None for g in gradients)
        assert list(bucket) == sorted(bucket, key=position.get)
    last = [position[bucket[-1]] for bucket in made.buckets]
    assert last == sorted(last)


@pytest.mark.parametrize("policy", POLICIES, ids=NAMES)
def test_nothing_and_one_gradient(policy):
    assert buckets_of(policy, Boundaries((), 1.0), line(1, 1)) == Buckets((), ())
    assert buckets_of(policy, boundaries(gradient("w", 2, 0, 0)), line(1, 1)).buckets == (("w",),)


@pytest.mark.parametrize("policy", POLICIES, ids=NAMES)
def test_one_worker(policy):
    """Nothing travels, so nothing is in the way."""
    network = Network(CollectiveOptions(network=NetworkModel.from_link_rate(1e9)), 1)
    found = boundaries(gradient("a", 1), gradient("b", 1), gradient("c", 2))
    assert sorted(n for b in buckets_of(policy, found, network).buckets for n in b) == ["a", "b", "c"]


@pytest.mark.parametrize("policy", POLICIES, ids=NAMES)
@pytest.mark.parametrize("ready_s", [math.nan, -1, math.inf])
def test_times_that_cannot_be(policy, ready_s):
    with pytest.raises(InputError, match="ready_s of gradient 'w'"):
        buckets_of(policy, Boundaries((gradient("w", ready_s),), 1.0), line(1, 1))


@pytest.mark.parametrize("policy", [paper_batching(), paper_batching(10), mg_wfbp()])
def test_those_that_need_times_say_so(policy):
    with pytest.raises(InputError, match="(batching|merging) needs.*network="):
        buckets_of(policy, boundaries(gradient("w", 1)), UNKNOWN)


@pytest.mark.parametrize("factory", [fixed, paper_batching])
@pytest.mark.parametrize("threshold", [-1, math.nan, "4MiB", True])
def test_thresholds_that_cannot_be(factory, threshold):
    with pytest.raises(InputError, match=r"threshold_bytes must be .*at least 0"):
        factory(threshold)


def test_what_they_need():
    assert {p.provides for p in POLICIES} == {Buckets}
    assert single().requires == fixed().requires == (Boundaries,)
    assert paper_batching().requires == mg_wfbp().requires == (Boundaries, Network)
    assert isinstance(single(), Analyzer)


# -- one by one ----------------------------------------------------------------------------------


def test_each_alone_in_the_order_in_which_they_are_ready():
    found = boundaries(gradient("b", 1), gradient("a", 1), gradient("d", 3), gradient("c", 2), compute_s=3)
    made = buckets_of(single(), found)
    assert made.buckets == (("b",), ("a",), ("c",), ("d",))
    assert "4 B" in made.reasons[0]


@given(chains(), st.integers(0, 20))
def test_a_bucket_is_closed_by_what_fills_it(found, threshold):
    made = buckets_of(fixed(threshold), found).buckets
    sizes = [[found.by_name[name].size_bytes for name in bucket] for bucket in made]
    assert [name for bucket in made for name in bucket] == [g.name for g in found.gradients]
    assert all(sum(bucket) >= threshold for bucket in sizes[:-1])
    assert all(sum(bucket[:-1]) < threshold for bucket in sizes if len(bucket) > 1)


def test_the_default_is_25_mib():
    made = buckets_of(fixed(), boundaries(*(gradient(f"w{n}", n, 0, 2**20) for n in range(30))))
    assert [len(bucket) for bucket in made.buckets] == [25, 5]
    assert "25 MiB" in made.reasons[0]
    assert "left" in made.reasons[1]


def test_kinds_have_open_buckets_of_their_own():
    kinds = [("float32", 0), ("float16", 0), ("float32", 1), ("float32", 0), ("float16", 0), ("float32", 1)]
    found = boundaries(*(gradient(f"w{n}", n, dtype=d, level=level) for n, (d, level) in enumerate(kinds)))
    assert buckets_of(fixed(8), found).buckets == (("w0", "w3"), ("w1", "w4"), ("w2", "w5"))


# -- Caramel, section 4.2 --------------------------------------------------------------------------


def batched_by_a_clock(found, threshold, cost):
    """The paper's rules, with a clock that ticks and a channel that works off what is queued. Of one kind alone."""
    order = sorted(found.gradients, key=lambda g: g.ready_s)
    queued_s, clock, batch, sent = 0, 0, [], []

    def send(names):
        nonlocal queued_s
        sent.append(tuple(g.name for g in names))
        queued_s += cost(sum(g.size_bytes for g in names))

    for number, each in enumerate(order):
        while clock < each.ready_s:
            clock, queued_s = clock + 1, max(queued_s - 1, 0)
        if each.size_bytes > threshold:
            send([each])
        else:
            batch.append(each)
            if sum(g.size_bytes for g in batch) > threshold:
                send(batch)
                batch = []
        is_last = number == len(order) - 1
        if batch and (is_last or clock + queued_s < order[number + 1].ready_s):
            send(batch)
            batch = []
    return sent


@settings(max_examples=300)
@given(chains(most=10), st.integers(0, 20), st.integers(1, 6), st.integers(0, 2))
def test_papers_batching_is_what_a_clock_makes_of_its_rules(found, threshold, a, b):
    made = buckets_of(paper_batching(threshold), found, line(a, b)).buckets
    assert sorted(made) == sorted(batched_by_a_clock(found, threshold, lambda size: a + b * size))


def test_small_ones_join_while_the_network_is_busy():
    """Sending 100 bytes takes from 10 to 20, and everything that is ready by then has joined; d comes too late."""
    found = boundaries(
        gradient("big", 10, 0, 100),
        gradient("a", 12, 0, 1),
        gradient("b", 15, 0, 1),
        gradient("c", 17, 0, 1),
        gradient("d", 30, 0, 1),
    )
    made = buckets_of(paper_batching(50), found, line(0, 0.1))
    assert made.buckets == (("big",), ("a", "b", "c"), ("d",))
    assert made.reasons[0] == "100 B exceed the threshold of 50 B (set by hand), so it travels alone"
    assert (
        made.reasons[1]
        == "3 gradients, 3 B: the channel would be idle from 20 s until the next gradient is ready at 30 s"
    )
    assert made.reasons[2] == "1 B: no gradient follows"


def test_a_large_one_leaves_the_open_bucket_open():
    found = boundaries(
        gradient("first", 1, 0, 60), gradient("a", 2, 0, 1), gradient("large", 3, 0, 60), gradient("b", 4, 0, 1)
    )
    assert buckets_of(paper_batching(50), found, line(0, 1)).buckets == (("first",), ("large",), ("a", "b"))


def test_it_is_sent_when_it_exceeds_the_threshold_and_not_before():
    found = boundaries(*(gradient(f"w{n}", 1, 0, 5) for n in range(5)))
    made = buckets_of(paper_batching(10), found, line(1, 1))
    assert made.buckets == (("w0", "w1", "w2"), ("w3", "w4"))
    assert "the threshold of 10 B (set by hand) is exceeded" in made.reasons[0]


def test_of_open_buckets_the_oldest_goes_first_and_keeps_the_channel_busy():
    """The channel would be idle from 96 to 100. So b goes, until 101; else it would have waited for c and d."""
    found = boundaries(
        gradient("big", 0, 0, 92),
        gradient("b", 1, 0, 1, dtype="float16"),
        gradient("a", 1, 0, 1),
        gradient("c", 100, 0, 1, dtype="float16"),
        gradient("d", 101, 0, 1, dtype="float16"),
        gradient("e", 130, 0, 1),
    )
    made = buckets_of(paper_batching(50), found, line(4, 1))
    assert made.buckets == (("big",), ("b",), ("a",), ("c", "d"), ("e",))


def test_the_threshold_is_that_of_the_network():
    """1.5 a / b for a line: two of 700 bytes join, one of 800 does not."""
    network = line(1, 2e-3)
    assert network.threshold_bytes == pytest.approx(750, rel=1e-5)
    found = boundaries(gradient("a", 1, 0, 800), gradient("b", 1, 0, 700), gradient("c", 1, 0, 700))
    made = buckets_of(paper_batching(), found, network)
    assert made.buckets == (("a",), ("b", "c"))
    assert "750 B (f(2x) / (2 f(x)) = 0.8)" in made.reasons[0]


# -- MG-WFBP ---------------------------------------------------------------------------------------


def algorithm_1(found, a, cost):
    """As it is printed: layer 1 is the last to be ready; times are calculated anew after every merge."""
    layers = dict(enumerate(reversed(found.gradients), 1))
    last = len(layers)
    starts = {last: 0.0}  # of the backward pass of each layer; that of layer 0 would begin where layer 1 ends
    ends = {number: g.ready_s for number, g in layers.items()}
    starts.update({number - 1: ends[number] for number in layers})
    p = {number: g.size_bytes for number, g in layers.items()}
    t_c = {number: cost(p[number]) for number in layers}

    def communication_starts():
        begin = {last: ends[last]}
        for number in range(last - 1, 0, -1):
            begin[number] = max(begin[number + 1] + t_c[number + 1], ends[number])
        return begin

    merged, begin = set(), communication_starts()
    for number in range(last, 1, -1):
        if starts[number - 2] - begin[number] < a:
            t_c[number] = 0
            p[number - 1] += p[number]
            t_c[number - 1] = cost(p[number - 1])
            merged.add(number)
            begin = communication_starts()
    buckets = [[]]
    for number in range(last, 0, -1):
        buckets[-1].append(layers[number].name)
        if number not in merged and number > 1:
            buckets.append([])
    return tuple(map(tuple, buckets))


@settings(max_examples=300)
@given(chains(most=10), st.integers(0, 8), st.integers(0, 2))
def test_merging_is_algorithm_1(found, a, b):
    a += 0.3137  # no sum of these is a whole number, so that nothing hangs on the last bit of the fitted line
    made = buckets_of(mg_wfbp(), found, line(a, b))
    assert made.buckets == algorithm_1(found, a, lambda size: a + b * size)


def contiguous(names):
    """All ways to cut a list into buckets."""
    for count in range(len(names)):
        for cuts in combinations(range(1, len(names)), count):
            yield [names[start:end] for start, end in pairwise([0, *cuts, len(names)])]


@given(chains(most=5), st.integers(0, 8), st.integers(1, 2))
def test_merging_is_between_the_best_buckets_and_none(found, a, b):
    network = line(a + 0.5, b)
    alone = [(g.name,) for g in found.gradients]
    best = min(iteration_s(found, each, network) for each in contiguous([g.name for g in found.gradients]))
    made = iteration_s(found, buckets_of(mg_wfbp(), found, network).buckets, network)
    assert best - 1e-9 <= made <= iteration_s(found, alone, network) + 1e-9
    if len(found.gradients) <= 2:
        assert made == pytest.approx(best)


def test_the_next_one_is_of_the_same_kind():
    """A sparse gradient in between is sent, and joins nobody."""
    found = boundaries(
        gradient("a", 0),
        gradient("sparse", 1, elements=None),
        gradient("half", 2, dtype="float16"),
        gradient("b", 9),
        gradient("c", 13),
    )
    made = buckets_of(mg_wfbp(), found, line(8.5, 1))
    # a could start at 0, and b is 9 away. The sparse one is sent after a, at 12.5, and half after it, at 25; then b at 37.5.
    assert made.buckets == (("a",), ("sparse",), ("half",), ("b", "c"))
    assert "'b', is 9 s away" in made.reasons[0]


def test_merging_is_not_always_the_best():
    """Theorem 1 says so; but it decides about x and y by when y arrives, and not by what z could do with y."""
    found = boundaries(gradient("x", 0, 0, 10), gradient("y", 3, 0, 1), gradient("z", 14, 0, 1))
    network = line(4, 1)
    made = buckets_of(mg_wfbp(), found, network)
    assert made.buckets == (("x", "y"), ("z",))
    assert iteration_s(found, made.buckets, network) == 23
    assert iteration_s(found, [("x",), ("y", "z")], network) == 20
    assert made.reasons[0] == "2 gradients, 11 B: the next gradient, 'z', is 11 s away, and merging saves only 4 s"


@pytest.mark.parametrize("policy", [fixed(), paper_batching(1000), mg_wfbp()], ids=lambda policy: policy.name)
def test_what_is_there_under_a_condition_travels_by_itself(policy):
    found = boundaries(
        *(
            gradient(f"g{n}", n, condition="p = 1" if n % 2 else "", kept_reason="branch" if n % 2 else "")
            for n in range(6)
        )
    )
    for bucket in buckets_of(policy, found, line(1.0, 1.0)).buckets:
        assert len({found.by_name[name].condition for name in bucket}) == 1
