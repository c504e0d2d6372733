"""The benchmark of first steps: what its table says of a record, and that it trains for real."""

import pytest

from benchmarks.first_step import measure, table


def row(workers, first_s, servers=False):
    return {
        "model": "A",
        "workers": workers,
        "servers": servers,
        "ready_s": 1.0,
        "first_s": first_s,
        "step_s": 0.5,
        "state_bytes": 2**28,
        "peak_bytes": 2**30,
    }


def test_the_table():
    lines = table([row(0, 4.0), row(2, 9.0), row(0, 5.0), row(2, 7.0), row(0, 6.0), row(2, 8.0), row(2, 10.0, True)])
    assert lines.splitlines()[2:] == [
        "| A | Keras' own fit | 1.0 | 5.0 | 1.00 | 0.50 | 0.25 | 1.00 |",
        "| A | 2 | 1.0 | 8.0 | 1.60 | 0.50 | 0.25 | 1.00 |",
        "| A | 2, servers | 1.0 | 10.0 | 2.00 | 0.50 | 0.25 | 1.00 |",
    ]


@pytest.mark.soak
@pytest.mark.parametrize("servers", [False, True])
def test_a_network_is_trained(servers):
    plain, ours = measure(["MobileNet"], [0, 2], 1, servers)
    assert (plain["servers"], ours["servers"]) == (False, servers)
    for each in (plain, ours):
        assert 2**22 < each["state_bytes"] < 2**25
        assert 0 < each["ready_s"] < each["first_s"] and each["step_s"] > 0 and each["peak_bytes"] > 2**27
