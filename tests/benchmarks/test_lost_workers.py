"""The benchmark of lost workers: what its table says of a record, and that a loss is timed for real."""

import pytest

from benchmarks.lost_workers import measure, table

RECORD = {
    "tries": 3,
    "rows": [
        {"cluster": "servers", "trains": "fit", "how": "cut off", "seconds": [7.5, 7.0, 10.5], "named": 3},
        {"cluster": "processes", "trains": "session", "how": "killed", "seconds": [0.5, 0.25, 1.0], "named": 2},
    ],
}


def test_the_table():
    lines = table(RECORD).splitlines()
    assert lines[2:] == [
        "| servers on hosts | fit | cut off | 7.5 s | 10.5 s | 2 of 3 | 3 of 3 |",
        "| processes of one machine | session | killed | 0.5 s | 1.0 s | 3 of 3 | 2 of 3 |",
    ]


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["servers", "tf_config", "processes"])
def test_workers_are_lost(kind):
    from benchmarks.testbed import Testbed, UnavailableError

    try:
        Testbed(1).close()
    except UnavailableError as error:
        pytest.skip(str(error))
    rows = []
    measure(1, (kind,), ("fit",), ("stopped", "cut off"), rows.append)
    assert [row["how"] for row in rows] == (["stopped"] if kind == "processes" else ["stopped", "cut off"])
    assert all(0.0 < row["seconds"][0] < 10.0 and row["named"] == 1 for row in rows)
