"""What all-reduces take from computation, found from all measurements together."""

import random
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caramel.netmodel.contention import Contention
from caramel.netmodel.line import Curve, Sample
from caramel.netmodel.model import NetworkModel
from caramel.netmodel.processor_time import ProcessorCost, fit_processor_cost, messages_of, pooled

SIZES = (2**12, 2**15, 2**20)
KINDS = (("shuffle", 1), ("ring", 1), ("ring", 4), ("halving_doubling", 1), ("halving_doubling", 4), ("star", 1))
MESSAGES = {"shuffle": 6, "ring": 6, "halving_doubling": 4, "star": 1.5, "chain": 1.5}
"""Mean number that each of four workers sends."""


def alone_s(algorithm, depth, size_bytes):
    return 0.02 * depth + 2e-7 * size_bytes


def taken_s(cost, algorithm, depth, size_bytes, workers=4):
    """By hand: what each of four workers sends."""
    first = MESSAGES[algorithm]
    sent_bytes = 2 * (workers - 1) / workers * size_bytes
    return cost.message_s * first + cost.further_message_s * (depth - 1) * first + cost.byte_s * sent_bytes


def contentions(cost, error=lambda algorithm, depth, size: 1.0, kinds=KINDS, noise_s=lambda time_s: 0.0):
    found = []
    for algorithm, depth in kinds:
        for size in SIZES:
            beside_s = 1.25 * alone_s(algorithm, depth, size)
            taken = taken_s(cost, algorithm, depth, size) * error(algorithm, depth, size) + noise_s(beside_s)
            found.append(Contention(4, algorithm, depth, size, min(max(taken / beside_s, 0), 0.95), 1.25, 1.0))
    return found


COST = ProcessorCost(6e-4, 3e-4, 1.5e-8)


@pytest.mark.parametrize("algorithm", MESSAGES)
def test_messages_are_those_of_the_schedules(algorithm):
    assert messages_of(algorithm, 4) == MESSAGES[algorithm]


@pytest.mark.parametrize("cost", [COST, ProcessorCost(1e-3, 0, 0), ProcessorCost(0, 0, 1e-8)])
def test_the_cost_is_found(cost):
    found = fit_processor_cost(contentions(cost), alone_s)
    assert vars(found) == pytest.approx(vars(cost), rel=1e-6, abs=1e-12)


def test_too_few_measurements_say_nothing():
    few = contentions(COST)[:5]
    assert fit_processor_cost(few, alone_s) is None
    native = [replace(each, algorithm="native") for each in contentions(COST)]  # its messages are not known
    assert fit_processor_cost(native, alone_s) is None


def test_where_all_agree_nothing_changes():
    exact = contentions(COST)
    for before, after in zip(exact, pooled(exact, alone_s, fit_processor_cost(exact, alone_s))):
        assert after == replace(before, processor_share=pytest.approx(before.processor_share))


def test_together_they_are_nearer_to_the_truth_than_each_by_itself():
    """A computation's length varies by 5 %; the measured time taken is the difference of two."""
    truth = contentions(COST)

    def error(found):
        return statistics.fmean((a.processor_share / b.processor_share - 1) ** 2 for a, b in zip(found, truth))

    raw, joined = [], []
    for seed in range(20):
        chance = random.Random(seed)
        noisy = contentions(COST, noise_s=lambda time_s, chance=chance: chance.gauss(0, 0.05) * time_s)
        raw.append(error(noisy))
        joined.append(error(pooled(noisy, alone_s, fit_processor_cost(noisy, alone_s))))
    assert statistics.fmean(joined) < statistics.fmean(raw) / 4


def test_a_disturbed_measurement_counts_little():
    """One says that an all-reduce takes nothing from computation, another that it takes all."""
    right = contentions(COST)
    wrong = [replace(right[0], processor_share=0.0), *right[1:5], replace(right[5], processor_share=0.95), *right[6:]]
    cost = fit_processor_cost(wrong, alone_s)
    assert cost.message_s == pytest.approx(COST.message_s, rel=0.15)
    for got, want in zip(pooled(wrong, alone_s, cost), right):
        assert got.processor_share == pytest.approx(want.processor_share, rel=0.25)


def test_a_kind_that_costs_more_keeps_a_part_of_it():
    """Small all-reduces, whose time taken is much of their own, are measured well."""

    def quick_s(algorithm, depth, size_bytes):
        return 4 * taken_s(COST, algorithm, depth, size_bytes)

    cheap = [
        replace(e, slowdown=1.0, processor_share=0.5 if (e.algorithm, e.size_bytes) == ("star", 2**12) else 0.25)
        for e in contentions(COST)
    ]
    joined = pooled(cheap, quick_s, fit_processor_cost(cheap, quick_s))
    shares = {(e.algorithm, e.depth, e.size_bytes): e.processor_share for e in joined}
    assert shares["star", 1, 2**12] == pytest.approx(0.31, abs=0.04)
    assert shares["ring", 1, 2**20] == pytest.approx(0.25, abs=0.01)


# -- in a network model ------------------------------------------------------------------------------


def network(measured_beside, kinds=(*KINDS, ("shuffle", 4), ("chain", 1))):
    curves = tuple(
        Curve.fitted(4, algorithm, depth, [Sample(size, alone_s(algorithm, depth, size)) for size in (64, *SIZES)])
        for algorithm, depth in kinds
    )
    return NetworkModel("a test", curves, contentions=tuple(measured_beside))


@pytest.mark.parametrize("size", [*SIZES, 2**10, 2**14, 2**18])
@pytest.mark.parametrize(("algorithm", "depth"), [("shuffle", 4), ("chain", 1), ("ring", 2)])
def test_what_was_not_measured_costs_its_messages_and_bytes(algorithm, depth, size):
    model = network(contentions(COST))
    beside_s = model.predict(algorithm, depth, 4, size, is_beside=True).time_s
    share = model.processor_share(4, algorithm, depth, size)
    assert share * beside_s == pytest.approx(taken_s(COST, algorithm, depth, size))


@settings(max_examples=60, deadline=None)
@given(st.floats(64, 2**22), st.integers(0, 10**6), st.integers(3, len(KINDS)))
def test_all_at_once_are_as_one_by_one(size_bytes, seed, kinds):
    """The planner's table, and each all-reduce by itself; with enough measurements for a cost, and with too few."""
    chance = random.Random(seed)
    some = contentions(COST, lambda *_: chance.uniform(0.3, 2), KINDS[:kinds], lambda time_s: 0.05 * time_s)
    chance.shuffle(some)
    model = network(some[: chance.randint(1, len(some))])
    best = model.choose(size_bytes, 4, is_beside=True)
    alone = model.candidate(best.algorithm, best.depth, 4, size_bytes, is_beside=True)
    assert best.prediction.time_s == pytest.approx(alone.prediction.time_s)
    assert best.processor_share == pytest.approx(alone.processor_share)
    assert best.occupied_s == pytest.approx(alone.occupied_s)
    table = model._table(4, None, None, True)
    for each in table.near_best(size_bytes):
        one = model.candidate(each.algorithm, each.depth, 4, size_bytes, is_beside=True)
        assert each.prediction.time_s == pytest.approx(one.prediction.time_s)
        assert each.processor_share == pytest.approx(one.processor_share)
