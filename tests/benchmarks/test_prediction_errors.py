"""How near predictions come: errors, orders and intervals, with each cell's own error of the model left out."""

import math
from dataclasses import replace

import pytest
import tensorflow as tf
from click.testing import CliRunner

import caramel
from benchmarks.publish import ROOT
from benchmarks.training import ours
from benchmarks.training.evidence import Evidence, folder_of, keep
from benchmarks.training.prediction_errors import (
    Predicted,
    bounds_of_share,
    covered,
    kept,
    main,
    model_error,
    ranked,
    table,
)
from benchmarks.training.records import Cell, load, save
from caramel.analyzers.cost.network import Network
from caramel.analyzers.optimal.interval import MODEL_ERROR
from caramel.facts import Boundaries, Schedule, Timeline, Trace
from caramel.netmodel.model import NetworkModel
from caramel.prediction import Interval, Prediction
from caramel.simulator import simulate

TRACE, NETWORK = Trace("digest", {}, {}, 1.0, 1.0, 1, 1, None, "by hand"), NetworkModel.from_link_rate(1e6)
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


def test_plans_beside_a_record_are_compared_with_its_steps(tmp_path):
    record, path = load(ROOT / "benchmarks/results/slower_core.json"), str(tmp_path / "core.json")
    save(record, path)
    plan = made_plan()
    rows = [row for row in record.rows if row.contender == "caramel" and row.cell in (ONE, OTHER)]
    run = CliRunner().invoke(main, [path])
    assert run.exit_code == 1 and "plans of 0 cells" in run.output and "two or more" in run.output
    for number, row in enumerate(rows, 1):
        prediction = Prediction(
            Timeline((), float(number), 0.0, 0.0), 0.0, "", (), Interval.around(number, 0.1, 0.2, 0.3)
        )
        keep(Evidence(TRACE, NETWORK, {"caramel": replace(plan, prediction=prediction)}, {}), folder_of(path, row.cell))
    found = kept(path)
    assert [(each.cell, each.contender, each.time_s) for each in found] == [(r.cell, "caramel", r.time_s) for r in rows]
    assert [(each.predicted_s, each.interval.trace, each.interval.network) for each in found] == [
        (1.0, 0.1, 0.2),
        (2.0, 0.1, 0.2),
    ]
    run = CliRunner().invoke(main, [path])
    assert run.exit_code == 0 and run.output.strip() == table(found)
    assert "with the computation of the cell" not in run.output


def test_what_is_wrong_besides_the_computation_is_told_apart():
    """Here the machine was slower by a half than it was traced, and of that the plan knows nothing."""
    pairs = [
        replace(pair(cell, 1.0, 1.5), at_computation_s=1.5 * (1 + off)) for cell, off in ((ONE, 0.0), (OTHER, 0.1))
    ]
    assert [round(each.error_at_computation, 6) for each in pairs] == [0.0, 0.1]
    text = table(pairs)
    assert "| -33.3% | +0.0% |" in text and "Signed mean -33.3% (+5.0% with the computation of the cell)" in text


@pytest.mark.parametrize("options", [{}, {"policy": "paper"}, {"serialization": False}], ids=str)
def test_predictions_with_another_computation(options):
    """With that of the trace it is the plan's own; where nothing takes processor time, twice it is that of twice the
    trace."""
    context = captured_step()
    op_s = {node.name: 1e-3 for node in context.model.graph}
    op_least_s = dict.fromkeys(op_s, 0.0005)
    trace = Trace(context.model.digest, op_s, {}, 4e-3, 4e-3, 3, 2, None, "by hand", op_least_s=op_least_s)
    model = caramel.ARModel(context, 2, trace=trace, network=NetworkModel.from_link_rate(1e6), **options)
    network, schedule = model.facts[Network], model.facts[Schedule]
    assert ours.predicted_at_s(model, trace, 4e-3) == model.plan.prediction.timeline.iteration_s
    twice = simulate(model.facts[Boundaries].scaled(2.0), schedule, network.channel_s, network.lag_s)
    assert ours.predicted_at_s(model, trace, 8e-3) == pytest.approx(twice.iteration_s, rel=1e-12)
    assert twice.iteration_s > model.plan.prediction.timeline.iteration_s


def made_plan():
    return caramel.ARModel(captured_step(), 2).plan


def captured_step():
    w = tf.Variable([0.0, 0.0], name="w")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.linalg.matvec(x, w) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    return caramel.capture(step, [tf.TensorSpec([None, 2])])


def test_as_a_table():
    text = table([pair(ONE, 0.9, 1.0), pair(ONE, 1.1, 1.0, contender="caramel_paper"), pair(OTHER, 1.0, 1.0)])
    assert (
        "| vgg, 4 workers, rho 1 | the paper's policy | 1100 | 500 to 2000 | 1000 | +10.0% | - | 0.0%, 0.0% |" in text
    )
    told = text.rpartition("\n\n")[2]
    assert "half are within 10.0%, the worst is" in told
    assert "Of 0 pairs" in told and "With that of the other cells, 1 of 3 steps are in their intervals" in told
