"""How near predictions come: errors, orders and intervals, with each cell's own error of the model left out."""

import math

import pytest

from benchmarks.publish import ROOT
from benchmarks.training.prediction_errors import Predicted, bounds_of_share, covered, model_error, ranked, table
from benchmarks.training.records import Cell, load
from caramel.analyzers.optimal.interval import MODEL_ERROR
from caramel.plan import Interval

ONE, OTHER = Cell("vgg", 4, 1.0), Cell("tiny", 4, 1.0)


def pair(cell, predicted_s, time_s, trace=0.0, network=0.0, contender="caramel"):
    return Predicted(cell, contender, predicted_s, time_s, Interval(0.5, 2.0, trace, network, 0.1))


def test_the_error_of_the_model_is_what_trace_and_network_do_not_explain():
    exact = [pair(ONE, 1.0, math.exp(0.1)), pair(ONE, 1.0, math.exp(-0.1))]
    assert model_error(exact) == pytest.approx(0.1)
    explained = [pair(ONE, 1.0, math.exp(0.1), trace=0.06, network=0.08)]
    assert model_error(explained) == pytest.approx(0.0, abs=1e-6)
    assert model_error([pair(ONE, 1.0, 1.0, trace=0.5)]) == 0.0


def test_a_cell_is_covered_with_the_error_of_the_others():
    """One cell is predicted well, the other one 20 % too short: each has the other one's error."""
    good = [pair(ONE, 1.0, math.exp(0.01)), pair(ONE, 1.0, math.exp(-0.01))]
    bad = [pair(OTHER, 1.0, math.exp(0.2)), pair(OTHER, 1.0, math.exp(0.2), network=0.11)]
    assert covered(good + bad) == 3  # 0.2 is more than 1.96 * 0.01, and less than 1.96 * 0.11
    assert covered(bad) == 1 and covered(good) == 0  # there are no others: no error at all


@pytest.mark.parametrize(("found", "count"), [(24, 24), (20, 24), (0, 24), (135, 150)])
def test_bounds_are_those_at_which_so_many_would_be_rare(found, count):
    """At the lower bound so many or more have a probability of 2.5 %, at the upper one so many or fewer."""
    low, high = bounds_of_share(found, count)
    terms = [lambda p, n=n: math.comb(count, n) * p**n * (1 - p) ** (count - n) for n in range(count + 1)]
    assert low == 0 if found == 0 else sum(term(low) for term in terms[found:]) == pytest.approx(0.025)
    assert high == 1 if found == count else sum(term(high) for term in terms[: found + 1]) == pytest.approx(0.025)


def test_orders_count_within_a_cell_where_steps_differ():
    pairs = [
        *(pair(ONE, predicted_s, time_s) for predicted_s, time_s in ((1.0, 1.0), (1.1, 1.02), (1.05, 1.2))),
        pair(OTHER, 9.0, 0.1),
    ]
    assert ranked(pairs) == (1, 2)  # 1.0 and 1.2 are in order, 1.02 and 1.2 are not, 1.0 and 1.02 are alike


def test_the_error_that_plans_count_with_is_that_of_the_published_cells():
    records = [*(ROOT / "benchmarks/results").glob("training*.json"), ROOT / "benchmarks/results/slower_core.json"]
    rows = [row for path in records for row in load(path).rows if row.predicted_s and row.time_s]
    assert len(rows) == 238
    found = model_error(pair(row.cell, row.predicted_s, row.time_s) for row in rows)
    assert pytest.approx(found, abs=5e-4) == MODEL_ERROR


def test_as_a_table():
    text = table([pair(ONE, 0.9, 1.0), pair(ONE, 1.1, 1.0, contender="caramel_paper"), pair(OTHER, 1.0, 1.0)])
    assert "| vgg, 4 workers, rho 1 | the paper's policy | 1100 | 500 to 2000 | 1000 | +10.0% | 0.0%, 0.0% |" in text
    assert "Signed mean -0.0%" in text or "Signed mean +0.0%" in text
    assert "Of 0 pairs" in text and "3 of 3" not in text
