"""Costs across numbers of workers: the factors agree with the schedules, and constants are recovered."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduled import SCHEDULED
from scipy.optimize import nnls

from caramel.collectives.algorithms import NATIVE, schedule_maker
from caramel.collectives.schedule import check, in_chunks
from caramel.errors import FitError, InputError
from caramel.netmodel.costs import Cost, factors, fit_cost, link_load
from caramel.netmodel.line import Curve, Sample
from caramel.netmodel.model import NetworkModel

NAMES = [*SCHEDULED, NATIVE]
WORKERS = [*range(2, 18), 24, 32]
SIZES = (64, 1024, 2**14, 2**18, 2**22)


def smooth_core(workers):
    """The largest 2^a 3^b that is at most ``workers``: (m, a, b)."""
    return max((2**a * 3**b, a, b) for a in range(8) for b in range(6) if 2**a * 3**b <= workers)


def expected_factors(name, workers, depth):
    n = workers
    if n == 1:
        return 0, 0, 0
    if name == "star":
        roots = min(depth, n)
        return 2 * (n - 1), 2 * (n - 1) / roots, (n - 1) / roots
    if name == "halving_doubling":
        m, a, b = smooth_core(n)
        e = n - m
        return 2 * (a + 2 * b + e), 2 * (m - 1 + e) / m, (m - 1 + e) / m
    if name == "chain":
        slots = 2 * (n - 1) + (depth - 1) * min(n - 1, 2)
        return slots, slots / depth, (n - 1 + depth - 1) / depth
    if name.startswith("hierarchy_"):
        on_host = min(int(name.removeprefix("hierarchy_")), n)
        hosts = -(-n // on_host)
        volume = (on_host - 1) / on_host + (hosts - 1) / (hosts * on_host)
        return 2 * (on_host + hosts - 2), 2 * volume, volume
    return 2 * (n - 1), 2 * (n - 1) / n, (n - 1) / n


def found_factors(*arguments):
    found = factors(*arguments)
    return found.messages, found.volume, found.added


def made(name, workers):
    """(schedule, its proof, elements) of a size that every algorithm can share out evenly."""
    size = workers * smooth_core(workers)[0]
    schedule = schedule_maker(name)(workers, size)
    return schedule, check(schedule), size


def added_by_rank(schedule):
    added = [0] * schedule.workers
    for instruction in schedule.instructions:
        if instruction.operation == "add":
            added[instruction.rank] += (len(instruction.operands) - 1) * instruction.size
    return added


@pytest.mark.parametrize("depth", [1, 2, 3, 8])
@pytest.mark.parametrize("name", NAMES)
def test_factors_against_the_table(name, depth):
    for workers in (1, *WORKERS):
        assert found_factors(name, workers, depth) == pytest.approx(expected_factors(name, workers, depth))
    assert found_factors(name, 5) == found_factors(name, 5, 1)


@pytest.mark.parametrize(("workers", "core"), [(2, 2), (5, 4), (7, 6), (11, 9), (13, 12), (17, 16), (31, 27)])
def test_smooth_cores(workers, core):
    assert smooth_core(workers)[0] == core
    assert factors("halving_doubling", workers).added == pytest.approx((workers - 1) / core)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", ["shuffle", "ring", "hierarchy_2", "hierarchy_3"])
def test_even_schedules_send_what_is_charged(name, workers):
    schedule, proof, size = made(name, workers)
    if name.startswith("hierarchy_") and workers > (on_host := int(name[-1])) and workers % on_host:
        expected = factors(name, -(-workers // on_host) * on_host)  # the last host has fewer workers, who own more
        assert max(proof.sent_elements) <= 2 * expected.volume * size
        assert max(proof.sends) <= 2 * (on_host - 1 + on_host * (-(-workers // on_host) - 1))
        return
    expected = factors(name, workers)
    assert max(proof.sent_elements) == pytest.approx(expected.volume * size)
    assert max(proof.received_elements) == pytest.approx(expected.volume * size)
    assert max(proof.sends) == expected.messages
    assert max(added_by_rank(schedule)) == pytest.approx(expected.added * size)


@pytest.mark.parametrize("workers", WORKERS)
def test_star_sends_what_is_charged(workers):
    """The root first receives everything, then sends everything."""
    schedule, proof, size = made("star", workers)
    expected = factors("star", workers)
    assert max(np.add(proof.sent_elements, proof.received_elements)) == pytest.approx(expected.volume * size)
    assert 2 * max(proof.sends) == expected.messages
    assert max(added_by_rank(schedule)) == pytest.approx(expected.added * size)


@pytest.mark.parametrize("depth", [2, 3, 8])
@pytest.mark.parametrize("workers", WORKERS)
def test_star_with_several_roots_sends_at_most_what_is_charged(workers, depth):
    roots = min(depth, workers)
    size = workers * depth
    proof = check(in_chunks(schedule_maker("star"), workers, size, roots))
    charged = factors("star", workers, depth).volume * size
    assert max(proof.sent_elements + proof.received_elements) <= charged + 1e-9
    if roots == workers:
        assert max(proof.sent_elements) == pytest.approx(charged)


@pytest.mark.parametrize("workers", WORKERS)
def test_halving_doubling_sends_at_most_what_is_charged(workers):
    """What extra ranks give comes before, what they get comes after: one is received, the other sent."""
    schedule, proof, size = made("halving_doubling", workers)
    core = smooth_core(workers)[0]
    expected = factors("halving_doubling", workers)
    assert max(proof.sent_elements + proof.received_elements) <= expected.volume * size + 1e-9
    if core == workers:
        assert max(proof.sent_elements) == pytest.approx(expected.volume * size)
        assert max(proof.sends) == expected.messages
    extra = (workers - core) / core * size
    assert max(proof.sent_elements[:core]) + extra == pytest.approx(expected.volume * size)
    assert max(added_by_rank(schedule)) == pytest.approx(expected.added * size)


@pytest.mark.parametrize("depth", [1, 2, 3, 8])
@pytest.mark.parametrize("workers", WORKERS)
def test_chain_is_a_pipeline(workers, depth):
    """The first chunk takes every hop; each further one follows when the busiest rank has sent the one before."""
    schedule, proof, size = made("chain", workers)
    expected = factors("chain", workers, depth)
    assert expected.messages == proof.rounds + (depth - 1) * max(proof.sends)
    assert expected.volume == pytest.approx(expected.messages / depth)
    assert sum(added_by_rank(schedule)) == (workers - 1) * size
    if depth == 1:
        assert expected.added * size == pytest.approx((workers - 1) * size)


@pytest.mark.parametrize("name", NAMES)
def test_one_worker_costs_nothing(name):
    assert found_factors(name, 1, 3) == (0, 0, 0)
    assert Cost(1.0, 1.0, 1.0).time_s(name, 1, 1, 10**9) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("tree", 4), "tree"), (("ring", 0), "0"), (("ring", -2), "-2"), (("ring", 4, 0), "0"), (("ring", 4, -1), "-1")],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        factors(*arguments)


@given(st.integers(2, 64), st.integers(0, 2**30), st.floats(0, 1), st.floats(0, 1e-6), st.floats(0, 1e-6))
def test_ring_of_mg_wfbp(workers, size, alpha, beta, gamma):
    n, m = workers, size
    published = 2 * (n - 1) * alpha + 2 * (n - 1) * m * beta / n + (n - 1) * m * gamma / n
    assert Cost(alpha, beta, gamma).time_s("ring", workers, 1, size) == pytest.approx(published)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_time_is_the_sum_of_its_parts(name, depth):
    for workers in (1, 2, 7, 8):
        messages, volume, added = expected_factors(name, workers, depth)
        time = Cost(1e-4, 2e-9, 3e-10).time_s(name, workers, depth, 5000)
        assert time == pytest.approx(1e-4 * messages + 5000 * (2e-9 * volume + 3e-10 * added))


# -- fitting -------------------------------------------------------------------------------------


def curve_of(name, workers, depth, cost, noise=None):
    messages, volume, added = expected_factors(name, workers, depth)
    alpha, beta, gamma = cost
    times = [alpha * messages + size * (beta * volume + gamma * added) for size in SIZES]
    if noise is not None:
        times = [time * noise.uniform(0.6, 1.6) for time in times]
    return Curve.fitted(workers, name, depth, [Sample(size, time) for size, time in zip(SIZES, times)])


@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cost", [(1e-4, 1e-9, 0.0), (5e-5, 8e-9, 5e-10), (1e-6, 1e-10, 1e-9), (1e-3, 0.0, 1e-9)])
def test_constants_are_recovered(name, depth, cost):
    alpha, beta, gamma = cost
    found = fit_cost([curve_of(name, workers, depth, cost) for workers in (2, 4, 8)], gamma)
    assert found.alpha_s == pytest.approx(alpha, rel=1e-6)
    assert found.beta_s_per_byte == pytest.approx(beta, rel=1e-6, abs=1e-16)
    assert found.gamma_s_per_byte == gamma
    messages, volume, added = expected_factors(name, 16, depth)
    for size in (100, 10**6, 10**8):
        expected = alpha * messages + size * (beta * volume + gamma * added)
        assert found.time_s(name, 16, depth, size) == pytest.approx(expected, rel=1e-6)


@given(st.sampled_from(NAMES), st.sampled_from([1, 2, 8]), st.integers(0, 999), st.sampled_from([0.0, 1e-9, 2e-8]))
def test_noisy_fit_against_nonnegative_least_squares(name, depth, seed, gamma):
    """2e-8 is more than the measured times allow: what remains for alpha and beta is negative, and they become zero."""
    rng = np.random.default_rng(seed)
    curves = [curve_of(name, workers, depth, (1e-4, 2e-9, min(gamma, 1e-9)), rng) for workers in (2, 3, 8)]
    rows, rests = [], []
    for curve in curves:
        messages, volume, added = expected_factors(name, curve.workers, depth)
        for s in curve.samples:
            rows.append([1e-4 * messages / s.time_s, 1e-9 * s.size_bytes * volume / s.time_s])
            rests.append(1 - s.size_bytes * gamma * added / s.time_s)
    (alpha, beta), _ = nnls(np.array(rows), np.array(rests))
    found = fit_cost(curves, gamma)
    assert found.alpha_s == pytest.approx(alpha * 1e-4, rel=1e-6, abs=1e-12)
    assert found.beta_s_per_byte == pytest.approx(beta * 1e-9, rel=1e-6, abs=1e-17)


COST = (1e-4, 1e-9, 0.0)


@pytest.mark.parametrize(
    "curves",
    [
        [],
        [curve_of("ring", 4, 1, COST)],
        [curve_of("ring", 4, 1, COST), curve_of("ring", 4, 1, COST)],
        [curve_of("ring", 4, 1, COST), curve_of("star", 8, 1, COST)],
        [curve_of("ring", 4, 1, COST), curve_of("ring", 8, 2, COST)],
    ],
)
def test_what_cannot_be_fitted(curves):
    with pytest.raises(FitError):
        fit_cost(curves, 0.0)


# -- links that workers share ----------------------------------------------------------------------


def busiest_link(algorithm, workers, workers_on_host, depth=1):
    """Elements on the busiest link of a host in either direction, by going through all that is sent."""
    schedule = in_chunks(schedule_maker(algorithm), workers, 48 * workers, depth)
    sent, received = Counter(), Counter()
    for instruction in schedule.instructions:
        for operand in instruction.operands:
            source = schedule.instructions[operand]
            here, there = source.rank // workers_on_host, instruction.rank // workers_on_host
            if here != there:
                sent[here] += source.size
                received[there] += source.size
    return max(*sent.values(), *received.values())


@pytest.mark.parametrize("algorithm", SCHEDULED)
@pytest.mark.parametrize(("workers", "workers_on_host"), [(4, 2), (8, 2), (8, 4), (16, 4), (6, 2), (6, 3), (12, 3)])
def test_a_shared_link_carries_what_is_sent_between_hosts(algorithm, workers, workers_on_host):
    counted = busiest_link(algorithm, workers, workers_on_host) / busiest_link(algorithm, workers, 1)
    load = link_load(algorithm, workers, workers_on_host)
    is_bound = algorithm == "chain" or (algorithm == "halving_doubling" and workers & (workers - 1))
    if algorithm.startswith("hierarchy_"):
        in_group, ends = int(algorithm[-1]), workers % int(algorithm[-1])
        if ends or (in_group % workers_on_host and workers_on_host % in_group):  # groups and hosts do not nest
            assert counted <= 1.01 * load
            return
    assert load == pytest.approx(counted, rel=0.01) or (is_bound and counted < load <= 2 * counted)


@pytest.mark.parametrize(
    ("workers", "workers_on_host", "depth"),
    [(6, 4, 1), (6, 4, 2), (6, 4, 4), (9, 8, 8), (8, 4, 2), (8, 4, 4), (6, 2, 2)],
)
def test_the_roots_of_a_stars_chunks_share_the_link_of_their_host(workers, workers_on_host, depth):
    """All are on the first host, which gets what the others send, and then sends them as much."""
    counted = busiest_link("star", workers, workers_on_host, depth) / (48 * workers)
    volume = link_load("star", workers, workers_on_host, depth) * factors("star", workers, depth).volume
    assert volume == pytest.approx(2 * counted)


@pytest.mark.parametrize(("workers", "has_it"), [(8, True), (5, True), (4, False), (2, False), (1, False)])
def test_costs_by_hand_know_the_hierarchy_of_shared_hosts(workers, has_it):
    network = replace(NetworkModel.from_costs(1e-5, 1e-8), workers_on_host=4)
    if workers > 1:
        names = {candidate.algorithm for candidate in network.candidates(1e6, workers)}
        assert ("hierarchy_4" in names) == has_it
    assert list(network.further_algorithms(workers)) == (["hierarchy_4"] if has_it else [])
    if workers == 8:  # two hosts: a byte leaves once, where a shuffle sends 8 x 4 / 7 halves of it
        assert network.predict("hierarchy_4", 1, 8, 1e6).time_s == pytest.approx(8 * 1e-5 + 1e6 * 1e-8)
        assert network.choose(1e8, 8).algorithm == "hierarchy_4"


def test_links_of_one_worker_and_of_one_host():
    for algorithm in SCHEDULED:
        assert link_load(algorithm, 8, 1) == link_load(algorithm, 1, 1) == 1.0
        assert link_load(algorithm, 8, 8) == link_load(algorithm, 4, 8) == 0.0
