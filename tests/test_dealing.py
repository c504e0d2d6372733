"""How rows of a batch are dealt to workers."""

import dataclasses
import importlib.util
from pathlib import Path

import numpy as np
import pytest

import caramel
from caramel.dealing import WHOLE, Dealing
from caramel.runtime.feeds import Batch, warn_of_idle_workers
from caramel.util.ranges import balanced

RUNNER = Path(caramel.__file__).parent / "export" / "templates" / "run.py"


@pytest.fixture(scope="module")
def runner():
    """The program of an export, as a module."""
    spec = importlib.util.spec_from_file_location("exported_runner", RUNNER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("count, rows", [(1, 7), (2, 8), (3, 9), (3, 11), (4, 23), (4, 4)])
def test_each_worker_has_its_part_of_every_micro_batch(runner, workers, count, rows):
    dealing, array = Dealing(count, leaves_remainder=True), np.arange(rows)
    size = rows // count
    micro_batches = [array[size * i : size * (i + 1)] for i in range(count)]
    shares = dealing.shares(rows, workers)
    assert sum(shares) == size * count == dealing.used(rows)
    for slices, part, share, (start, length) in zip(
        dealing.slices(rows, workers), runner.dealt(array, workers, count), shares, balanced(size, workers)
    ):
        own = np.concatenate([each[start : start + length] for each in micro_batches])
        assert share == len(own) and part.tolist() == own.tolist()
        dealt = np.concatenate([array[each] for each in slices])
        if length:
            assert dealt.tolist() == own.tolist()
        else:  # rows of others, as many of each micro-batch
            assert dealt.tolist() == [each[0] for each in micro_batches]


@pytest.mark.parametrize(
    "dealing, rows, refusal",
    [
        (WHOLE, 7, ""),
        (Dealing(4), 8, ""),
        (Dealing(4), 9, "a multiple of 4"),
        (Dealing(4), 3, "a multiple of 4"),
        (Dealing(4, leaves_remainder=True), 9, ""),
        (Dealing(4, leaves_remainder=True), 3, "at least one example for each"),
        (Dealing(4, rows=8), 8, ""),
        (Dealing(4, rows=8), 12, "batches of 8, of which it takes rows by their numbers"),
    ],
)
def test_batches_that_cannot_be_cut(runner, dealing, rows, refusal):
    assert dealing.refusal(rows).endswith(refusal) and bool(dealing.refusal(rows)) == bool(refusal)
    facts = dataclasses.asdict(dealing)
    if refusal:
        why = f"a batch of {rows} examples cannot be cut into 4 micro-batches|takes rows by their numbers, of 8"
        with pytest.raises(SystemExit, match=why):
            runner.check_dealing({"dealing": facts}, rows)
    else:
        runner.check_dealing({"dealing": facts}, rows)


@pytest.mark.parametrize("workers, all_workers", [(1, 2), (2, 4), (3, 3)])
@pytest.mark.parametrize("count, rows", [(1, 10), (4, 36), (3, 11)])
def test_the_rows_of_some_workers_are_dealt_to_them_as_in_the_whole_job(workers, all_workers, count, rows):
    dealing, array = Dealing(count, leaves_remainder=True), np.arange(rows)

    def dealt(array, workers):
        return [
            np.concatenate([array[each] for each in slices]).tolist() for slices in dealing.slices(len(array), workers)
        ]

    own = np.concatenate([array[each] for each in dealing.of_first(rows, workers, all_workers)])
    assert dealt(own, workers) == dealt(array, all_workers)[:workers]


@pytest.mark.parametrize("dealing, rows, idle", [(WHOLE, 3, 1), (WHOLE, 4, 0), (Dealing(4), 8, 2), (Dealing(4), 16, 0)])
def test_workers_without_rows_are_said(caplog, dealing, rows, idle):
    warn_of_idle_workers(Batch({}, dealing.shares(rows, 4)))
    assert [f"{idle} of them compute in vain" in record.getMessage() for record in caplog.records] == [True] * (
        idle > 0
    )
