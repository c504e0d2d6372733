"""Schedules: the checker accepts shuffle, with the promised cost, and rejects what is wrong."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caramel.collectives.schedule import Step, balanced, check
from caramel.collectives.shuffle import shuffle
from caramel.errors import InputError, InvariantError

WORKERS = [*range(1, 18), 32, 64]


def run_in_numpy(schedule, arrays):
    """An independent interpreter: what each rank ends with."""
    values = []
    for step in schedule.steps:
        chunk = schedule.chunks[step.chunk]
        if step.operation == "take":
            values.append(arrays[step.rank][chunk.start : chunk.start + chunk.size])
        elif step.operation == "copy":
            values.append(values[step.operands[0]])
        else:
            total = values[step.operands[0]]
            for operand in step.operands[1:]:
                total = total + values[operand]
            values.append(total)
    return [np.concatenate([values[n] for n in row]) for row in schedule.results]


@pytest.mark.parametrize("workers", WORKERS)
def test_shuffle_is_proved_and_costs_what_it_says(workers):
    for size in (0, 1, max(workers - 1, 0), workers, 3 * workers, 3 * workers + 1, 1000):
        schedule = shuffle(workers, size)
        proof = check(schedule)
        assert proof.is_rank_order_fold
        shards = [c.size for c in schedule.chunks]
        assert max(shards) - min(shards) <= 1
        assert proof.sent_elements == tuple((size - own) + (workers - 1) * own for own in shards)
        assert proof.received_elements == tuple((workers - 1) * own + (size - own) for own in shards)
        full = sum(1 for s in shards if s)
        expected = [full - (1 if own else 0) + (workers - 1 if own else 0) for own in shards]
        assert proof.sends == tuple(expected)
        if size % workers == 0:
            assert set(proof.sent_elements) == {2 * (workers - 1) * size // workers}


@given(st.integers(1, 9), st.integers(0, 50), st.integers(0, 1000))
def test_shuffle_computes_the_left_fold(workers, size, seed):
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=size).astype(np.float32) for _ in range(workers)]
    expected = arrays[0]
    for array in arrays[1:]:
        expected = expected + array
    for result in run_in_numpy(shuffle(workers, size), arrays):
        np.testing.assert_array_equal(result, expected)


@given(st.integers(0, 1000), st.integers(1, 40))
def test_balanced_partitions(size, parts):
    chunks = balanced(size, parts)
    assert [c.start for c in chunks] == [sum(d.size for d in chunks[:n]) for n in range(parts)]
    assert sum(c.size for c in chunks) == size
    assert max(c.size for c in chunks) - min(c.size for c in chunks) <= 1


def broken(change):
    schedule = shuffle(3, 7)
    return change(schedule, list(schedule.steps))


def with_step(schedule, steps, number, **changes):
    steps[number] = replace(steps[number], **changes)
    return replace(schedule, steps=tuple(steps))


FIRST_SUM = 9  # after the nine own chunks of three ranks


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s, t: with_step(s, t, FIRST_SUM, operands=(0, 3)), "contributions of ranks"),
        (lambda s, t: with_step(s, t, FIRST_SUM, operands=(0, 3, 3)), "contributions of ranks"),
        (lambda s, t: with_step(s, t, FIRST_SUM, operands=(0, 3, 7)), "reads chunk 1 for chunk 0"),
        (lambda s, t: with_step(s, t, FIRST_SUM, operands=(0, 3, 20)), "not made before it"),
        (lambda s, t: with_step(s, t, FIRST_SUM, operation="copy"), "not a valid 'copy'"),
        (lambda s, t: replace(s, chunks=s.chunks[:-1]), "chunks cover"),
        (lambda s, t: replace(s, results=s.results[:-1]), "results for 2 of 3"),
        (lambda s, t: replace(s, results=(s.results[1], *s.results[1:])), "the result of chunk 0 on rank 0"),
    ],
)
def test_the_checker_finds_what_is_wrong(change, message):
    with pytest.raises(InvariantError, match=message):
        check(broken(change))


def test_the_checker_sees_another_order():
    swapped = broken(lambda s, t: with_step(s, t, FIRST_SUM, operands=(3, 0, 6)))
    assert not check(swapped).is_rank_order_fold


@pytest.mark.parametrize(("workers", "size"), [(0, 3), (-1, 3), (2, -1)])
def test_bad_arguments(workers, size):
    with pytest.raises(InputError):
        shuffle(workers, size)


def test_steps_are_plain_data():
    assert Step(0, 0, "take") == Step(0, 0, "take", ())
