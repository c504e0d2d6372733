"""The benchmark of drivers with a server in their process: what its table says, and that it runs for real."""

import pytest

from benchmarks.driver_inside import BESIDE, INSIDE, NETWORKS, measure, table
from benchmarks.testbed import UnavailableError


def test_the_table():
    times_s = {BESIDE: [0.004, 0.004, 0.005], INSIDE: [0.002, 0.003, 0.005]}
    lines = table([{"network": "three layers", "workers": 2, "times_s": times_s}]).splitlines()
    assert lines[2] == "| three layers | 2 | 4.00 | 3.00 | 0.75 (-) |"


@pytest.mark.soak
@pytest.mark.processes
def test_it_is_measured():
    try:
        (row,) = measure(NETWORKS[:1], [2], 3, 2)
    except UnavailableError as error:
        pytest.skip(str(error))
    assert (row["network"], row["workers"]) == (NETWORKS[0], 2)
    assert all(len(each) == 3 and 0 < min(each) < max(each) < 1 for each in row["times_s"].values())
