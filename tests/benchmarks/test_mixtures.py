"""The benchmark of tables on servers: what it makes of what it has measured."""

from benchmarks.mixtures import EXAMPLES, LENGTH, OWNERS, WIDTH, rows_bytes, table


def cell(rho, **others):
    return {"workers": 4, "rho": rho, "times_s": {OWNERS: [1.0, 1.0, 1.0], **others}}


def test_servers_are_compared_with_owners():
    record = {"cells": [cell(1.0, two=[1.5, 1.5, 1.5], four=[1.25] * 3), cell(2.0, two=[2.0] * 3)]}
    assert table(record).splitlines()[0] == (
        f"| workers | rho | rows at {OWNERS} [ms] | rows at two [ms]: over that | rows at four [ms]: over that |"
    )
    assert table(record).splitlines()[2:] == [
        "| 4 | 1 | 1000 | 1500: 1.500 (1.500 to 1.500) | 1250: 1.250 (1.250 to 1.250) |",
        "| 4 | 2 | 1000 | 2000: 2.000 (2.000 to 2.000) | - |",
    ]


def test_bytes_are_those_of_all_rows_of_a_worker_and_of_their_indices():
    assert rows_bytes(4) == EXAMPLES / 4 * LENGTH * (4 * WIDTH + 4)
