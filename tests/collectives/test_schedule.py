"""Schedules: the checker accepts the algorithms, with the promised cost, and rejects what is wrong."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduled import SCHEDULED
from variants import mostly_in_soak

from caramel.collectives.algorithms import Schedules, all_reduce_named, schedule_maker
from caramel.collectives.chain import chain
from caramel.collectives.halving_doubling import core_size, halving_doubling
from caramel.collectives.hierarchy import hierarchy
from caramel.collectives.ring import ring
from caramel.collectives.schedule import ALIGNMENT_ELEMENTS, Builder, check, cuts, in_chunks
from caramel.collectives.shuffle import shuffle
from caramel.collectives.star import star
from caramel.errors import InputError, InvariantError
from caramel.util.ranges import balanced

WORKERS = [*range(1, 18), 32, 64]
IN_ORDER = {"shuffle", "star", "chain"}


def awkward_sizes(workers):
    return sorted({0, 1, max(workers - 1, 0), workers, 3 * workers, 3 * workers + 1, 1000, 4096 * workers + 65})


def run_in_numpy(schedule, arrays):
    """An independent interpreter: what each rank ends with."""
    values = []
    for instruction in schedule.instructions:
        operands = [values[n] for n in instruction.operands]
        if instruction.operation == "take":
            value = arrays[instruction.rank][instruction.start : instruction.end]
        elif instruction.operation == "part":
            offset = instruction.start - schedule.instructions[instruction.operands[0]].start
            value = operands[0][offset : offset + instruction.size]
        elif instruction.operation == "copy":
            value = operands[0]
        elif instruction.operation == "join":
            value = np.concatenate(operands)
        else:
            value = operands[0]
            for operand in operands[1:]:
                value = value + operand
        values.append(value)
    return [np.concatenate([values[n] for n in row]) for row in schedule.results]


def shards_of(workers, size):
    return [length for _, length in cuts(size, workers)]


@pytest.mark.parametrize("workers", mostly_in_soak(WORKERS, 1, 2, 3, 5, 7, 8, 13, 17))
@pytest.mark.parametrize("name", SCHEDULED)
def test_every_algorithm_is_proved(name, workers):
    for size in awkward_sizes(workers):
        for depth in (1, 2, 3, 8) if workers < 32 else (1, 3):
            proof = check(in_chunks(schedule_maker(name), workers, size, depth))
            if name in IN_ORDER:
                assert proof.is_rank_order_fold
            elif workers > 3 and size > workers:
                assert not proof.is_rank_order_fold


@pytest.mark.parametrize("workers", mostly_in_soak(WORKERS, *(n for n in WORKERS if n < 64)))
def test_cost_of_shuffle(workers):
    for size in awkward_sizes(workers):
        proof = check(shuffle(workers, size))
        shards = shards_of(workers, size)
        assert proof.sent_elements == tuple((size - s) + (workers - 1) * s for s in shards)
        full = sum(1 for s in shards if s)
        assert proof.sends == tuple(full - (s > 0) + (workers - 1 if s else 0) for s in shards)
        assert proof.rounds == (2 if workers > 1 and size > 0 else 0)
        if len(set(shards)) == 1:
            assert set(proof.sent_elements) == {2 * (workers - 1) * size // workers}
            if size:
                assert set(proof.sends) == {2 * (workers - 1)}


@pytest.mark.parametrize("workers", mostly_in_soak(WORKERS, *(n for n in WORKERS if n < 64)))
def test_cost_of_star(workers):
    for size in awkward_sizes(workers):
        for turn in (0, 1, workers + 1):
            proof = check(star(workers, size, turn))
            root = turn % workers
            expected = [(workers - 1) * size if r == root else size for r in range(workers)]
            assert list(proof.sent_elements) == (expected if workers > 1 else [0])
            if size and workers > 1:
                assert list(proof.sends) == [workers - 1 if r == root else 1 for r in range(workers)]
                assert proof.rounds == 2


def leaving_hosts(schedule, workers_on_host):
    """Elements that leave each host, each value once to each worker elsewhere that reads it."""
    left, arrived = Counter(), set()
    for instruction in schedule.instructions:
        for operand in instruction.operands:
            source = schedule.instructions[operand]
            here, there = source.rank // workers_on_host, instruction.rank // workers_on_host
            if here != there and (operand, instruction.rank) not in arrived:
                arrived.add((operand, instruction.rank))
                left[here] += source.size
    return left


@pytest.mark.parametrize(("workers", "on_host"), [(4, 2), (6, 2), (6, 3), (8, 2), (8, 4), (12, 3), (16, 4), (64, 8)])
def test_cost_of_hierarchy(workers, on_host):
    hosts, size = workers // on_host, 6 * workers
    for turn in (0, 1, workers + 1):
        schedule = hierarchy(on_host, workers, size, turn)
        proof = check(schedule)
        assert proof.rounds == 4 and not proof.is_rank_order_fold
        inside, outside = 2 * (on_host - 1) * size // on_host, 2 * (hosts - 1) * size // workers
        assert set(proof.sent_elements) == set(proof.received_elements) == {inside + outside}
        assert set(proof.sends) == {2 * (on_host - 1 + hosts - 1)}
        left = leaving_hosts(schedule, on_host)
        assert set(left.values()) == {2 * (hosts - 1) * size // hosts} and len(left) == hosts
        assert min(leaving_hosts(shuffle(workers, size, turn), on_host).values()) > max(left.values())


@pytest.mark.parametrize(("workers", "on_host"), [(3, 2), (5, 2), (5, 4), (7, 3), (9, 4), (11, 8)])
def test_a_last_host_with_fewer_workers(workers, on_host):
    hosts = -(-workers // on_host)
    for size in awkward_sizes(workers):
        schedule = hierarchy(on_host, workers, size)
        assert check(schedule).rounds <= 4
        left = leaving_hosts(schedule, on_host)
        # Ranges of hosts with and without the last worker do not meet, so parts of parts are rounded.
        assert all(n <= 2 * (hosts - 1) * (size / hosts + 2 * on_host) for n in left.values())


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
def test_one_host_and_hosts_of_one_worker_are_shuffles(workers):
    for on_host in (1, workers, workers + 3):
        for size in (0, 1, 17, 4096 * workers + 5):
            proof, plain = check(hierarchy(on_host, workers, size)), check(shuffle(workers, size))
            assert (proof.rounds, proof.is_rank_order_fold) == (plain.rounds, plain.is_rank_order_fold)
            assert proof.sent_elements == plain.sent_elements


@pytest.mark.parametrize(
    "name", ["hierarchy", "hierarchy_1", "hierarchy_0", "hierarchy_02", "hierarchy_10001", "ring_2"]
)
def test_names_that_no_hierarchy_has(name):
    with pytest.raises(InputError, match=f"no all-reduce algorithm '{name}'.*hierarchy_K for hosts of K workers"):
        all_reduce_named(name)
    assert all_reduce_named("hierarchy_2").name == "hierarchy_2" and all_reduce_named("hierarchy_10000")


@pytest.mark.parametrize("workers", [2, 3, 5, 8])
@pytest.mark.parametrize("name", ["shuffle", "star"])
def test_turns_share_uneven_work(name, workers):
    """One element per transfer: over N turns every rank has sent equally much."""
    total = np.zeros(workers, int)
    for turn in range(workers):
        proof = check(schedule_maker(name)(workers, 1, turn))
        assert proof.is_rank_order_fold
        total += proof.sent_elements
    assert set(total) == {2 * (workers - 1)}
    chunks = check(in_chunks(schedule_maker(name), workers, workers, workers))  # a chunk of one element on each root
    assert set(chunks.sent_elements) == {2 * (workers - 1)}


@pytest.mark.parametrize("workers", mostly_in_soak(WORKERS, *(n for n in WORKERS if n < 64)))
def test_cost_of_ring(workers):
    for size in awkward_sizes(workers):
        proof = check(ring(workers, size))
        shards = shards_of(workers, size)
        after = [(shards[(r + 1) % workers], shards[(r + 2) % workers]) for r in range(workers)]
        expected = tuple(2 * size - a - b if workers > 1 else 0 for a, b in after)
        assert proof.sent_elements == expected
        full = sum(1 for s in shards if s)
        assert proof.sends == tuple(2 * full - (a > 0) - (b > 0) if workers > 1 else 0 for a, b in after)
        assert proof.rounds == (2 * (workers - 1) if size > 0 else 0)
        if len(set(shards)) == 1:
            assert set(proof.sent_elements) == {2 * (workers - 1) * size // workers}


@pytest.mark.parametrize("workers", mostly_in_soak(WORKERS, *(n for n in WORKERS if n < 64)))
def test_cost_of_halving_doubling(workers):
    core, factors = core_size(workers)
    for size in awkward_sizes(workers):
        proof = check(halving_doubling(workers, size))
        shards = shards_of(core, size)
        extras = workers - core
        for rank in range(core):
            first, doubled, stride = 0, 0, core
            for factor in factors:  # the rank's digits, the most significant first, choose its range
                stride //= factor
                first += rank // stride % factor * stride
                doubled += (factor - 1) * sum(shards[first : first + stride])
            assert proof.sent_elements[rank] == (size - shards[first]) + doubled + extras * shards[first]
            if len(set(shards)) == 1:
                assert proof.sent_elements[rank] == 2 * (size - size // core) + extras * size // core
        assert proof.sent_elements[core:] == (size,) * extras
        if size >= core:
            assert proof.rounds == 2 * len(factors)
            assert set(proof.sends[:core]) == {2 * sum(f - 1 for f in factors) + extras}
            assert set(proof.sends[core:]) <= {core}


@pytest.mark.parametrize("workers", mostly_in_soak(WORKERS, *(n for n in WORKERS if n < 64)))
def test_cost_of_chain(workers):
    for size in awkward_sizes(workers):
        proof = check(chain(workers, size))
        ends = {0, workers - 1}
        expected = [0 if workers == 1 else size if r in ends else 2 * size for r in range(workers)]
        assert list(proof.sent_elements) == expected
        if size:
            assert list(proof.sends) == [0 if workers == 1 else 1 if r in ends else 2 for r in range(workers)]
            assert proof.rounds == 2 * (workers - 1)


def test_core_size_against_brute_force():
    for workers in range(1, 200):
        smooth = [n for n in range(1, workers + 1) if _is_smooth(n)]
        core, factors = core_size(workers)
        assert core == max(smooth)
        assert np.prod(factors, dtype=int) == core


def _is_smooth(number):
    for factor in (2, 3):
        while number % factor == 0:
            number //= factor
    return number == 1


@given(st.sampled_from(sorted(SCHEDULED)), st.integers(1, 9), st.integers(0, 50), st.integers(1, 8), st.integers(0, 99))
def test_what_is_computed(name, workers, size, depth, seed):
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=size).astype(np.float32) for _ in range(workers)]
    fold = arrays[0]
    for array in arrays[1:]:
        fold = fold + array
    results = run_in_numpy(in_chunks(schedule_maker(name), workers, size, depth), arrays)
    for result in results:
        np.testing.assert_array_equal(result, results[0])  # replicas must stay identical
        if name in IN_ORDER:
            np.testing.assert_array_equal(result, fold)
        else:
            np.testing.assert_allclose(result, fold, rtol=1e-5, atol=1e-5)


@given(st.integers(0, 1000), st.integers(1, 40))
def test_balanced_partitions(size, parts):
    ranges = balanced(size, parts)
    lengths = [length for _, length in ranges]
    assert [start for start, _ in ranges] == [sum(lengths[:n]) for n in range(parts)]
    assert sum(lengths) == size
    assert max(lengths) - min(lengths) <= 1


@given(st.integers(0, 10**6), st.integers(1, 40))
def test_cuts_are_balanced_and_aligned(size, parts):
    ranges = cuts(size, parts)
    lengths = [length for _, length in ranges]
    assert [start for start, _ in ranges] == [sum(lengths[:n]) for n in range(parts)]
    assert sum(lengths) == size
    if size // parts < 4096:
        assert ranges == balanced(size, parts)
    else:
        assert max(lengths) - min(lengths) <= 2 * ALIGNMENT_ELEMENTS
        assert max(lengths) / (size / parts) < 1.02
        assert all(start % ALIGNMENT_ELEMENTS == 0 for start, _ in ranges)


# -- the checker finds what is wrong -------------------------------------------------------------


def altered(number, **changes):
    schedule = shuffle(3, 7)
    instructions = list(schedule.instructions)
    instructions[number] = replace(instructions[number], **changes)
    return replace(schedule, instructions=tuple(instructions))


SUM = 3  # shuffle(3, 7) takes three contributions to the first shard, then adds them


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (altered(SUM, operands=(0, 1)), r"contributions of ranks \[0, 1\]"),
        (altered(SUM, operands=(0, 1, 1)), r"contributions of ranks \[0, 1, 1\]"),
        (altered(SUM, operands=(0, 1, 2, 0)), r"contributions of ranks \[0, 0, 1, 2\]"),
        (altered(SUM, operands=(0, 1, 9)), "does not come before"),
        (altered(SUM, operands=(0, 1, SUM)), "does not come before"),
        (altered(SUM, operation="copy"), "not a valid 'copy'"),
        (altered(SUM, operation="dance"), "not a valid 'dance'"),
        (altered(SUM, size=2), "reads elements"),
        (altered(SUM, rank=7), "only 3 ranks"),
        (altered(0, start=6, size=3), "of a tensor of 7"),
        (altered(SUM, operation="part", operands=(1,)), "takes a part of a value of rank 1"),
        (altered(SUM, operation="join", operands=(0, 1, 2)), "out of order"),
        (replace(shuffle(3, 7), results=shuffle(3, 7).results[:-1]), "results for 2 of 3"),
        (replace(shuffle(3, 7), results=(shuffle(3, 7).results[1],) * 3), "is on rank"),
        (replace(shuffle(3, 7), results=tuple(row[:-1] for row in shuffle(3, 7).results)), "end at element"),
        (replace(shuffle(3, 7), results=tuple(row[1:] for row in shuffle(3, 7).results)), "no element 0"),
    ],
)
def test_the_checker_finds(schedule, message):
    with pytest.raises(InvariantError, match=message):
        check(schedule)


def test_the_checker_sees_another_order():
    assert not check(altered(SUM, operands=(1, 0, 2))).is_rank_order_fold
    assert check(altered(SUM, operands=(0, 1, 2))).is_rank_order_fold


def test_the_checker_adds_element_by_element():
    """Sums of parts that were cut differently are told apart."""
    builder = Builder(2, 4)
    left = builder.join(0, [builder.take(0, 0, 1), builder.take(0, 1, 3)])
    right = builder.join(1, [builder.take(1, 0, 3), builder.take(1, 3, 1)])
    total = builder.add(0, [left, right])
    proof = check(builder.schedule("test", [[total], [builder.copy(1, total)]]))
    assert proof.is_rank_order_fold
    assert proof.sent_elements == (4, 4)


@pytest.mark.parametrize("name", SCHEDULED)
@pytest.mark.parametrize(("workers", "size"), [(0, 3), (-1, 3), (2, -1)])
def test_bad_arguments(name, workers, size):
    with pytest.raises(InputError, match="a collective needs"):
        schedule_maker(name)(workers, size)


def test_bad_depth_and_algorithm():
    with pytest.raises(InputError, match="depth of a collective must be at least 1, got 0"):
        Schedules().proved("ring", 2, 5, 0)
    with pytest.raises(InputError, match="no all-reduce algorithm 'tree'; there are shuffle, star, ring"):
        Schedules().proved("tree", 2, 5, 1)


def test_schedules_are_made_once():
    schedules = Schedules()
    assert schedules.proved("ring", 3, 10, 2) is schedules.proved("ring", 3, 10, 2)


def test_no_number_of_additions_hides_a_missing_rank():
    """Doubled 32 times and once more, a count of 32 bits would say that every rank is there once."""
    builder = Builder(2, 1)
    once = builder.take(0, 0, 1)
    value = once
    for _ in range(32):
        value = builder.add(0, [value, value])
    value = builder.add(0, [value, once])
    schedule = builder.schedule("doubling", [[value], [builder.copy(1, value)]])
    with pytest.raises(InvariantError, match="not of each of 2 once"):
        check(schedule)


@pytest.mark.parametrize("number", [-1, 99])
def test_results_that_do_not_exist(number):
    schedule = shuffle(3, 7)
    with pytest.raises(InvariantError, match=f"instruction {number}, which does not exist"):
        check(replace(schedule, results=((number,), *schedule.results[1:])))


def test_another_order_is_refused_where_the_rank_order_is_promised():
    assert Schedules().proved("chain", 4, 10, 2, in_rank_order=True)
    with pytest.raises(InvariantError, match="ring of 10 elements over 4 ranks does not add in rank order"):
        Schedules().proved("ring", 4, 10, 2, in_rank_order=True)
