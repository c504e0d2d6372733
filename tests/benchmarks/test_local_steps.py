"""The benchmark of local steps: what it makes of what it has measured."""

import pytest
from variants import mostly_in_soak

from benchmarks.local_steps import ALL_REDUCED, EXAMPLES, NO_EXCHANGE, VARIANTS, losses, losses_table, times_table

RECORD = {
    "times": {
        "times_s": {
            NO_EXCHANGE: [0.04, 0.05, 0.05],
            ALL_REDUCED: [0.8, 1.0, 1.1],
            "local, 500 steps": [0.05, 0.052, 0.0625],
        },
        "alone_s": {"local, 500 steps": [0.048, 0.0494, 0.06]},
    },
    "losses": [
        {"example": example, "training": name, "every": 20, "steps": steps, "loss": 3.0 / number, "accuracy": 0.5}
        for example in ("digits", "words")
        for number, name in enumerate(VARIANTS, 1)
        for steps in (250, 500)
    ],
}


def test_utilisation_is_that_of_the_same_turn_or_round():
    assert times_table(RECORD).splitlines()[2:] == [
        f"| {NO_EXCHANGE} | 50.0 | 100.0% |",
        f"| {ALL_REDUCED} | 1000.0 | 5.0% |",
        "| local, 500 steps | 52.0 | 96.0% |",
    ]


def test_losses_are_beside_each_other():
    of_digits, _, of_words = losses_table(RECORD).partition("\n\n")
    head, _, *lines = of_digits.splitlines()
    assert head == "| `digits.py`, an exchange after 20 steps | 250 steps | 500 steps |"
    assert lines == [
        f"| {name} | {loss} (50.0%) | {loss} (50.0%) |"
        for name, loss in zip(VARIANTS, ("3.000", "1.500", "1.000", "0.750"))
    ]
    assert of_words == of_digits.replace("digits", "words")


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("example", mostly_in_soak([*EXAMPLES], "digits_keras"))
def test_losses_are_of_the_program(example):
    rows = list(losses(example, 2, 2, [2, 4]))
    assert [(row["training"], row["steps"]) for row in rows] == [(name, n) for name in VARIANTS for n in (2, 4)]
    assert all(0 < row["loss"] < 10 for row in rows)
    by_name = {row["training"]: row["loss"] for row in rows}
    assert len(set(by_name.values())) == len(VARIANTS)
