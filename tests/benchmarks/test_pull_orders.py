"""Tables of the orders of pulls, from records as they are written."""

import pytest

from benchmarks.pull_orders import cells_table, ratio_bounds, table


def record(rho=1.0):
    return {
        "network": "inceptionv3",
        "workers": 4,
        "servers": 2,
        "rho": rho,
        "predicted_s": {"none": 1.8, "tic": 1.5},
        "times_s": {"none": [2.0, 2.0, 2.0], "tic": [1.5, 1.5, 1.5]},
    }


def test_each_order_is_compared_with_none():
    assert table(record()).splitlines()[2:] == [
        "| none | 2000 | 2000 | 1 | 1 | 1800 |",
        "| tic | 1500 | 1500 | 0.750 (0.750 to 0.750) | 0.750 (0.750 to 0.750) | 1500 |",
    ]


def test_each_cell_has_a_table():
    text = cells_table({"cells": [record(), record(0.5)]})
    first, _, second = text.partition("\n\ninceptionv3 on 4 workers and 2 servers, rho 0.5, 3 steps of each:\n\n")
    assert first == f"inceptionv3 on 4 workers and 2 servers, rho 1, 3 steps of each:\n\n{table(record())}"
    assert second == table(record())


def test_steps_of_one_turn_are_drawn_together():
    times = [1.0, 2.0, 4.0, 8.0]
    ratio, low, high = ratio_bounds(times, [2 * each for each in times], 0.5)
    assert (ratio, low, high) == pytest.approx((0.5, 0.5, 0.5))
