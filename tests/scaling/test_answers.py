"""Answers for many workers, networks and policies, against single predictions and formulas."""

import csv
import io
from dataclasses import replace

import pytest
from three_layers import three_layers

import caramel
from caramel.errors import InputError, TraceError
from caramel.facts import Trace
from caramel.netmodel.line import Curve, Sample
from caramel.scaling.answers import answers
from caramel.scaling.batches import TracedBatches
from caramel.scaling.plots import save_plot
from caramel.scaling.policies import COMPARED, policies_named
from caramel.scaling.question import Batch, Link, Question
from caramel.scaling.stragglers import Stragglers
from caramel.scaling.tables import as_csv, as_data, as_table, winners

FAST = Link("10Gbit/s", caramel.NetworkModel.from_link_rate(1.25e9), 1.25e9)
SLOW = Link("100Mbit/s", caramel.NetworkModel.from_link_rate(12.5e6), 12.5e6)

LATE = Link("late", caramel.NetworkModel.from_costs(0.1, 1e-10))
"""Messages take so long that one transfer is best."""


@pytest.fixture(scope="module")
def captured():
    return three_layers(40)


def traced(context, examples):
    """Products take half a millisecond and 0.1 ms for each example."""
    product_s = 5e-4 + 1e-4 * examples
    op_s = {node.name: product_s if node.op == "MatMul" else 1e-9 for node in context.model.graph}
    step_s = 9 * product_s
    orders = {"none": step_s, "total": 1.3 * step_s, "updates": 1.2 * step_s}
    return Trace(*(context.model.digest, op_s, {}, step_s, step_s, 3, 1, examples, "by hand"), ordered_step_s=orders)


@pytest.fixture(scope="module")
def traces(captured):
    return TracedBatches([traced(captured, count) for count in (8, 32)])


def asked(captured, traces, workers=(4,), links=(SLOW,), policies="optimal", **more):
    return list(answers(captured, traces, Question(workers, links, policies_named(policies), **more)))


@pytest.mark.parametrize("policy", ["optimal", "paper"])
def test_an_answer_is_the_prediction_of_the_plan(policy, captured, traces):
    """Also where the plan has one transfer only, and so no order."""
    links = (SLOW, FAST, LATE)
    found = asked(captured, traces, (1, 2, 64), links, policy)
    assert [(answer.workers, answer.link) for answer in found] == [(n, link.name) for n in (1, 2, 64) for link in links]
    for answer in found:
        network = {link.name: link.network for link in links}[answer.link]
        plan = caramel.what_if(captured, answer.workers, network=network, trace=traces.at(32), policy=policy)
        timeline, interval = plan.prediction.timeline, plan.prediction.interval
        assert answer.step_s == pytest.approx(timeline.iteration_s)
        assert (answer.low_s, answer.high_s) == pytest.approx((interval.low_s, interval.high_s))
        assert answer.utilisation == pytest.approx(traces.at(32).step_s / timeline.iteration_s)
        assert answer.speed_up == pytest.approx(answer.workers * answer.utilisation)
        assert answer.examples_per_s == pytest.approx(32 * answer.workers / timeline.iteration_s)
        assert (answer.basis, answer.refused) == ("given", "")


def test_policies_of_others(captured, traces):
    free = TracedBatches([replace(traces.at(32), ordered_step_s={})])  # an order costs nothing
    found = {answer.policy: answer for answer in asked(captured, free, (16,), policies="all")}
    assert [*found] == [*COMPARED]
    assert min(found.values(), key=lambda answer: answer.step_s).policy == "optimal"
    # Without overlap: the step of one bucket is the computation, then the all-reduce of all bytes.
    total_bytes = 4 * sum(40 * n * (40 * n + 40) for n in (1, 2, 3))
    all_reduce_s = SLOW.network.choose(total_bytes, 16).prediction.time_s
    one = found["one"]
    assert one.communication_s == pytest.approx(all_reduce_s)
    assert traces.at(32).step_s < one.step_s <= traces.at(32).step_s + all_reduce_s * (1 + 1e-9)


def test_others_do_not_pay_for_an_order(captured, traces):
    """Which they do not enforce: with one, a step's computation takes 20 or 30 % longer here."""
    for answer in asked(captured, traces, (16,), policies="mg_wfbp,buckets,each,one"):
        assert answer.compute_s == pytest.approx(traces.at(32).step_s)


def test_batches_of_all_workers_and_of_each(captured, traces):
    of_all = asked(captured, traces, (2, 4, 8, 64), batch=Batch(64, is_of_all=True))
    assert [answer.examples for answer in of_all] == [32, 16, 8, 1]
    assert [answer.all_examples for answer in of_all] == [64] * 4
    assert [answer.refused for answer in of_all] == ["", "", "", "not traced"]
    assert [answer.alone_s for answer in of_all[:3]] == pytest.approx([9 * (5e-4 + 1e-4 * n) for n in (32, 16, 8)])
    of_each = asked(captured, traces, (2, 8), batch=Batch(64, is_of_all=False))
    assert [answer.all_examples for answer in of_each] == [128, 512]
    (uneven,) = asked(captured, traces, (3,), batch=Batch(64, is_of_all=True))
    assert uneven.examples == 22  # the step is that of the worker that has most
    assert uneven.speed_up == pytest.approx(uneven.examples_per_s / (22 / uneven.alone_s))
    (none,) = asked(captured, traces, (65,), batch=Batch(64, is_of_all=True))
    assert none.step_s is None and "65 workers would share 64 examples" in none.refused


def test_stragglers_make_the_computation_longer(captured, traces):
    (plain,) = asked(captured, traces, (8,), (FAST,))
    (slower,) = asked(captured, traces, (8,), (FAST,), stragglers=Stragglers(rank=7, factor=2.0))
    assert slower.compute_s == pytest.approx(2 * plain.compute_s)
    assert slower.alone_s == plain.alone_s and slower.utilisation < 0.55
    (same,) = asked(captured, traces, (7,), (FAST,), stragglers=Stragglers(rank=7, factor=2.0))
    assert same.compute_s == pytest.approx(plain.compute_s)


def test_workers_that_share_a_link(captured, traces):
    for name, factor in (("ring", 1.0), ("shuffle", 4 * 12 / 15)):
        costs = caramel.NetworkModel.from_costs(0.0, 1e-6)
        shared = replace(costs, workers_on_host=4)
        alone_s, shared_s = (each.predict(name, 1, 16, 1e6).time_s for each in (costs, shared))
        assert shared_s == pytest.approx(factor * alone_s)
    (apart,), (together,) = (asked(captured, traces, (16,), workers_on_host=count) for count in (1, 4))
    assert together.step_s >= apart.step_s
    measured = Curve.fitted(16, "ring", 1, [Sample(64, 1e-4), Sample(2**20, 1e-2)])
    with pytest.raises(InputError, match="was measured is that of its workers on their hosts"):
        Question((4,), (Link("f", caramel.NetworkModel("m", (measured,))),), policies_named("all"), workers_on_host=2)


def test_a_measured_network_goes_four_times_as_far(captured, traces):
    cost = SLOW.network.given
    curves = tuple(
        Curve.fitted(n, "ring", 1, [Sample(size, cost.time_s("ring", n, 1, size)) for size in (64, 2**12, 2**20)])
        for n in (2, 4)
    )
    link = Link("network.json", caramel.NetworkModel("measured", curves))
    found = asked(captured, traces, (4, 16, 17), (link,), "each")
    assert [answer.basis for answer in found] == ["measured", "extrapolated", ""]
    assert "up to 16" in found[2].refused
    table = as_table(found)
    assert "extrapolated" in table and found[2].refused in table


def test_the_best_policy_is_marked(captured, traces):
    found = asked(captured, traces, (2, 16), (SLOW, FAST), "each,optimal,one")
    best = winners(found)
    assert len(best) == 4
    for answer in best:
        rivals = [each.step_s for each in found if (each.workers, each.link) == (answer.workers, answer.link)]
        assert answer.step_s == min(rivals)
    lines = as_table(found).splitlines()
    assert len(lines) == 2 + 12 + 2 and sum("best" in line for line in lines) == 4


def test_for_programs(captured, traces):
    found = asked(captured, traces, (2, 100), batch=Batch(64, is_of_all=True))
    rows = list(csv.DictReader(io.StringIO(as_csv(found))))
    assert [row["refused"] for row in rows] == ["", found[1].refused]
    assert float(rows[0]["step_s"]) == found[0].step_s and rows[1]["step_s"] == ""
    assert as_data(found[0])["speed_up"] == found[0].speed_up


def test_pictures(captured, traces, tmp_path):
    found = asked(captured, traces, (2, 16), (SLOW, FAST), "all")
    for name in ("answers.png", "answers.svg"):
        save_plot(found, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 5000
    nothing = asked(captured, traces, (100,), batch=Batch(64, is_of_all=True))
    with pytest.raises(InputError, match="no answer to draw"):
        save_plot(nothing, tmp_path / "none.png")
    with pytest.raises(InputError, match="cannot be written"):
        save_plot(found, tmp_path / "answers.nothing")
    assert not (tmp_path / "answers.nothing").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((), (SLOW,), "optimal"), "at least one"),
        (((4,), (), "optimal"), "at least one"),
        (((0,), (SLOW,), "optimal"), "number of workers"),
        (((10_001,), (SLOW,), "optimal"), "10,000"),
        (((4,), (SLOW,), "optimum"), "policy"),
        (((4,), (SLOW,), "each,each"), "twice"),
        (((4,), (SLOW, SLOW), "each"), "a network is named twice: 100Mbit/s, 100Mbit/s"),
    ],
)
def test_bad_questions(arguments, message):
    workers, links, policies = arguments
    with pytest.raises(InputError, match=message):
        Question(workers, links, policies_named(policies))


def test_a_trace_of_another_program(captured, traces):
    other = TracedBatches([replace(traces.at(8), model_digest="other")])
    with pytest.raises(TraceError, match="another"):
        asked(captured, other)


def test_what_no_policy_answers_is_one_line(captured, traces):
    found = asked(captured, traces, (2, 4, 300), (SLOW, FAST), "optimal,one", batch=Batch(200, is_of_all=True))
    assert [answer.refused for answer in found[:4]] == ["not traced"] * 4
    text = as_table(found, ["train.py:main", "--rate", "0.1 0.2"])
    lines = text.splitlines()
    assert [line.split()[:3] for line in lines[2:8:2]] == [
        ["2", "100Mbit/s", "any"],
        ["4", "100Mbit/s", "optimal"],
        ["4", "10Gbit/s", "optimal"],
    ]
    assert text.count("300 workers would share 200 examples") == 2
    assert "(caramel trace train.py:main --examples 100 --out T.json -- --rate '0.1 0.2'; where" in text
    assert "--global-batch B" not in text
    assert text.count("speed-up: ") == 1


def test_the_batch_that_nobody_gave_is_said(captured, traces):
    text = as_table(asked(captured, traces), ["train.py:main"], is_batch_given=False)
    assert "each worker has the 32 examples that were traced" in text and "not traced:" not in text
