"""What plans with parameter servers say about themselves."""

from dataclasses import replace

import pytest
import tensorflow as tf

import caramel
from caramel.errors import InputError, PlanError


@pytest.fixture(scope="module")
def context():
    first = tf.Variable(tf.ones([40, 40]), name="first")
    second = tf.Variable(tf.ones([40, 1]), name="second")

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.tanh(x @ first) @ second - y) ** 2)
        for v, gradient in zip((first, second), tape.gradient(loss, (first, second))):
            v.assign_sub(0.1 * gradient)
        return loss

    return caramel.capture(step, [tf.TensorSpec([None, 40]), tf.TensorSpec([None, 1])])


@pytest.fixture(scope="module")
def plan(context):
    return caramel.PSModel(context, 2, servers=2).plan


def test_it_is_read_as_it_was_written(plan):
    assert caramel.Plan.from_json(plan.to_json()) == plan
    assert '"servers"' in plan.to_json()


def test_plans_without_servers_do_not_speak_of_them(context):
    assert '"servers"' not in caramel.ARModel(context, 2).plan.to_json()


def test_the_table_and_what_is_explained(plan):
    text = plan.table()
    assert "2 workers and 2 parameter servers" in text and "in an order (tic)" in text
    assert plan.explain("first") == (
        "first: in parts: 832 elements on server 0, 768 elements on server 1. "
        "Workers get it as number 1 of 2 (tic), 2 at a time."
    )


def test_what_cannot_be_explained(plan):
    with pytest.raises(InputError, match="takes the name of a gradient, got 5"):
        plan.explain(5)


def test_beside_a_plan_no_number_of_servers_is_given(context, plan):
    assert caramel.PSModel(context, 2, plan=plan).plan.server_devices == plan.server_devices
    for count in (1, 2):
        with pytest.raises(InputError, match="with plan= leave out servers="):
            caramel.PSModel(context, 2, count, plan=plan)


@pytest.mark.parametrize("options", [{"pulls_in_flight": 2}, {"ordering": "tic"}])
def test_options_of_servers_without_servers(context, options):
    with pytest.raises(InputError, match=f"{next(iter(options))}= is of parameter servers: give servers="):
        caramel.ARModel(context, 2, **options)


def test_what_differs(context, plan):
    assert plan.diff(plan) == ""
    other = caramel.PSModel(context, 2, servers=1, ordering="none").plan
    said = plan.diff(other).splitlines()
    assert "first: 832 elements on server 0, 768 elements on server 1 -> on server 0" in said
    assert (
        "servers, ordering: tic -> none" in said
        and "order of pulls: 2 parameters in other places (first, second)" in said
    )


def test_as_a_graph(plan):
    digraph = plan.to_networkx()
    assert {n for n, kind in digraph.nodes(data="kind") if kind == "server"} == {0, 1}
    assert sorted(elements for _, _, elements in digraph.edges("first", data="elements")) == [768, 832]


def test_it_is_applied_by_either_class(context, plan):
    assert caramel.PSModel(context, 2, plan=plan).plan.digest == plan.digest
    assert caramel.ARModel(context, 2, plan=plan).plan.digest == plan.digest
    with pytest.raises(PlanError, match="no parameter servers"):
        caramel.PSModel(context, 2, plan=caramel.ARModel(context, 2).plan)
    with pytest.raises(InputError, match="with plan= leave out ordering="):
        caramel.PSModel(context, 2, plan=plan, ordering="tic")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: replace(s, devices=s.devices[:1]), "no server, or one that does not exist"),
        (lambda s: replace(s, homes=s.homes[1:]), "other variables"),
        (
            lambda s: replace(s, homes=(replace(s.homes[0], parts=s.homes[0].parts[:1]), *s.homes[1:])),
            "are not all of its",
        ),
        (
            lambda s: replace(s, homes=(replace(s.homes[0], parts=(s.homes[0].parts[0],) * 2), *s.homes[1:])),
            "two parts on",
        ),
        (lambda s: replace(s, pulls=("first", "first")), "order of pulls"),
        (lambda s: replace(s, pulls=("third",)), "'?third'?, which no server has"),
        (lambda s: replace(s, in_flight=0), "at least 1"),
    ],
)
def test_a_damaged_plan_is_refused(context, plan, change, said):
    with pytest.raises(PlanError, match=said):
        caramel.PSModel(context, 2, plan=replace(plan, servers=change(plan.servers)))


def test_times_need_a_trace_and_a_network(context):
    with pytest.raises(
        InputError, match="ordering='tac' goes by the times of ops and transfers: give trace= and network="
    ):
        caramel.PSModel(context, 2, ordering="tac")


def test_a_predicted_step(context):
    trace = caramel.trace(context, tf.ones([8, 40]).numpy(), tf.ones([8, 1]).numpy(), workers=2)
    network = caramel.NetworkModel.from_link_rate(1e8)
    model = caramel.PSModel(context, 2, servers=2, trace=trace, network=network)
    predicted = model.plan.servers.prediction
    assert model.plan.servers.ordering == "best" and predicted.lower_bound_s <= predicted.step_s
    assert "predicted:" in model.plan.table() and predicted.as_dict()["predicted_iteration_s"] == predicted.step_s
    assert caramel.Plan.from_json(model.plan.to_json()) == model.plan
