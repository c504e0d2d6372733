"""One worker's part of a step, and what is predicted of it, against sums by hand."""

import pytest
import tensorflow as tf
from server_programs import model_of, variable

from caramel.analyzers.servers.makespan import makespan_s
from caramel.analyzers.servers.placement import place, variable_groups
from caramel.analyzers.servers.pull_orders import pull_order
from caramel.analyzers.servers.served_step import channel_s, predict_served_step
from caramel.analyzers.servers.worker_step import worker_step
from caramel.netmodel.messages import MessageCost

NAMES = ["one", "two", "three", "four", "five", "six"]

COST = MessageCost(1e-3, 1e-6, 0.0, "by hand")


def chain(layers=3, prepares=False):
    """Layers of one matrix each; with ``prepares`` they are joined in pairs before they are used."""
    matrices = [variable(name, [4, 4]) for name in NAMES[:layers]]

    def step(x, y):
        with tf.GradientTape() as tape:
            joined = tf.concat(matrices, 0) if prepares else None
            for number, matrix in enumerate(matrices):
                x = tf.tanh(x @ (joined[4 * number : 4 * number + 4] if prepares else matrix))
            loss = tf.reduce_mean((tf.reduce_sum(x, 1) - y) ** 2)
        for matrix, gradient in zip(matrices, tape.gradient(loss, matrices)):
            matrix.assign_sub(0.1 * gradient)
        return loss

    return model_of(step)


def made(model, servers=1, op_s=None):
    homes = place(variable_groups(model), servers)
    return worker_step(model, homes, op_s or {}, lambda size_bytes: size_bytes * 1e-6)


def test_every_parameter_is_pulled_and_every_gradient_pushed():
    step = made(chain())
    assert sorted(step.parameter_of.values()) == sorted(NAMES[:3])
    assert [push.size_bytes for push in step.pushes] == [128] * 3
    assert [pull.time_s for pull in step.problem.pulls] == pytest.approx([128e-6] * 3)


@pytest.mark.parametrize("ordering", ["tic", "tac", "tio", "tao", "best"])
def test_layers_come_in_the_order_of_the_forward_pass(ordering):
    model = chain()
    op_s = {name: 1e-3 for name in model.graph.order if model.graph[name].op == "MatMul"}
    step = made(model, op_s=op_s)
    assert step.parameters(pull_order(ordering, step.problem)) == ("one", "two", "three")
    assert step.parameters(step.pulls(("three", "one", "two"))) == ("three", "one", "two")


def test_what_prepares_parameters_counts_with_what_uses_them():
    model = chain(prepares=True)
    joined = [name for name in model.graph.order if model.graph[name].op == "ConcatV2"]
    op_s = dict.fromkeys(joined, 5.0)
    step = made(model, op_s=op_s)
    names = {op.name for op in step.problem.ops}
    assert joined and names.isdisjoint(joined)
    assert sum(op.time_s for op in step.problem.ops) == pytest.approx(5.0 * len(joined))


def test_a_predicted_step_is_the_schedule_and_the_pushes():
    """One layer: pull, compute, push, update, one after the other."""
    model = chain(1)
    (computing,) = (name for name in model.graph.order if model.graph[name].op == "MatMul" and "gradient" not in name)
    step = worker_step(
        model, place(variable_groups(model), 1), {computing: 0.5}, lambda size: channel_s(size, 4, 1, COST)
    )
    message_s = 4 * (1e-3 + 128e-6)
    found = predict_served_step(step, ("one",), 4, lambda size: channel_s(size, 4, 1, COST), COST, {"one": 0.25})
    assert found.step_s == pytest.approx(message_s + 0.5 + message_s + 0.25)
    assert (found.compute_s, found.pull_s, found.push_s) == pytest.approx((0.5, message_s, message_s))
    assert found.lower_bound_s == pytest.approx(message_s + 0.5 + message_s)  # all but the update
    assert [(span.kind, span.what, span.server) for span in found.spans] == [
        ("pull", "one", 0),
        ("compute", "", None),
        ("push", "one", 0),
        ("update", "one", 0),
    ]
    ends_s = [message_s, message_s + 0.5, 2 * message_s + 0.5, 2 * message_s + 0.75]
    assert [span.end_s for span in found.spans] == pytest.approx(ends_s)
    assert [span.start_s for span in found.spans] == pytest.approx([0.0, *ends_s[:3]])


def test_no_order_is_the_middle_of_random_ones():
    model = chain(6)
    op_s = {name: 1e-4 for name in model.graph.order if model.graph[name].op == "MatMul"}
    step = made(model, op_s=op_s)
    best = step.parameters(pull_order("best", step.problem))
    ordered, free = (
        predict_served_step(step, order, 2, lambda size: channel_s(size, 2, 1, COST), COST, {}) for order in (best, ())
    )
    worst = max(makespan_s(step.problem, pull_order("random", step.problem, seed)) for seed in range(16))
    assert ordered.step_s <= free.step_s and makespan_s(step.problem, pull_order("best", step.problem)) <= worst


def test_a_link_is_shared_by_whoever_is_at_its_end():
    assert channel_s(1000, 1, 1, COST) == pytest.approx(1e-3 + 1e-3)
    assert channel_s(1000, 4, 2, COST) == pytest.approx(4e-3 + 4e-3)
    assert channel_s(1000, 2, 8, COST) == pytest.approx(2e-3 + 8e-3)
    # 4 workers on a host get messages of 2 servers each over one link, of 8 workers in all.
    assert channel_s(1000, 8, 2, COST, workers_on_host=4) == channel_s(1000, 8, 2, COST)
    assert channel_s(1000, 8, 4, COST, workers_on_host=4) == pytest.approx(8e-3 + 16e-3)
    assert channel_s(1000, 2, 4, COST, workers_on_host=4) == pytest.approx(2e-3 + 8e-3)  # there are not as many
