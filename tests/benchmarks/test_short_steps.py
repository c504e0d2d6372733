"""The benchmark of short steps: what its table says of a record, and that it runs for real."""

import pytest

from benchmarks.short_steps import FED, HOROVOD, MIRRORED, ON_WORKERS, measure, table
from benchmarks.testbed import UnavailableError
from benchmarks.training.workloads import ALL_BY_NAME


def test_the_table():
    times_s = {FED: [0.002, 0.003, 0.004], ON_WORKERS: [0.003, 0.003, 0.003], MIRRORED: [0.004, 0.004, 0.004]}
    lines = table([{"workload": "dense3", "workers": 4, "steps": 8, "times_s": times_s}]).splitlines()
    assert lines[0].count("|") == lines[2].count("|") == 10
    assert lines[2] == "| 3 dense layers of 32 | 4 | 8 | 3.00 | 3.00 | 4.00 | 0.75 (-) | 0.75 (-) | 1.00 (-) |"


def test_a_contender_that_did_not_take_part():
    times_s = {FED: [0.002], ON_WORKERS: [0.002], MIRRORED: [0.004]}
    rows = [{"workload": "dense3", "workers": n, "steps": 1, "times_s": dict(times_s)} for n in (1, 2)]
    rows[1]["times_s"][HOROVOD] = [0.008]
    lines = table(rows).splitlines()
    assert lines[2].startswith("| 3 dense layers of 32 | 1 | 1 | 2.00 | 2.00 | 4.00 | - | 0.50")
    assert lines[3].startswith("| 3 dense layers of 32 | 2 | 1 | 2.00 | 2.00 | 4.00 | 8.00 | 0.50")


@pytest.mark.soak
@pytest.mark.processes
def test_short_steps_are_measured():
    try:
        rows = list(measure([ALL_BY_NAME["dense3"]], [2], [1, 3], 2, 3))
    except UnavailableError as error:
        pytest.skip(str(error))
    assert [row["steps"] for row in rows] == [1, 3]
    for row in rows:
        assert set(row["times_s"]) == {FED, ON_WORKERS, MIRRORED}
        assert all(len(each) == 2 and 0 < min(each) < max(each) < 1 for each in row["times_s"].values())
