"""Targets: their modifiers run in order, the verifier after each, and a new one needs no edit of the others."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.compiler.distributed_model import distribute
from caramel.errors import InvariantError
from caramel.graph.graph import copied
from caramel.graph.nodes import node
from caramel.modifiers.emission import Emission, Purpose, Role, own_name, replica_name
from caramel.modifiers.passes import ALL_REDUCE, COMPUTATION_ALONE, Target, emit
from caramel.modifiers.replicate import replicate
from caramel.modifiers.save_restore import add_state
from caramel.runtime.session import Session


@pytest.fixture(scope="module")
def context():
    """A program to which every modifier of all-reduces adds something."""
    weights = tf.Variable(np.zeros((3, 1), np.float32), name="weights")
    bias = tf.Variable(np.zeros(1, np.float32), name="bias")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) + bias - 1.0))
        for variable, gradient in zip((weights, bias), tape.gradient(loss, (weights, bias))):
            variable.assign_sub(0.1 * gradient)
        return loss

    data = tf.data.Dataset.from_tensor_slices(np.ones((8, 3), np.float32)).batch(4)
    evaluation = {"evaluation": lambda x: tf.matmul(x, weights), "evaluation_inputs": [tf.TensorSpec([None, 3])]}
    return caramel.capture(step, data=data, **evaluation)


def begun(armodel):
    """The emission that an ARModel began with."""
    finished = armodel.distributed.emission
    return Emission.initial(finished.model, finished.plan, finished.evaluation, finished.pipeline)


BROKEN = {
    "'broken' reads 'ghost'": {"broken": "^ghost"},
    "cycle through 'broken'": {"broken": "^further", "further": "^broken"},
}


def breaking(modifier, added):
    """The modifier, which also adds nodes; each waits for another."""

    def broken(emission):
        nodes = [(node(name, "NoOp", [awaited]), Role(Purpose.STATE, 0)) for name, awaited in added.items()]
        return modifier(emission).extended(nodes)

    broken.__name__ = modifier.__name__
    return broken


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("target", [ALL_REDUCE, COMPUTATION_ALONE], ids=lambda target: target.name)
def test_a_broken_graph_is_found_after_the_modifier_that_broke_it(context, target, how):
    start = begun(caramel.ARModel(context, 2))
    for number, modifier in enumerate(target.modifiers):
        modifiers = (*target.modifiers[:number], breaking(modifier, BROKEN[how]), *target.modifiers[number + 1 :])
        with pytest.raises(InvariantError, match=f"after {modifier.__name__}: .*{how}"):
            emit(replace(target, modifiers=modifiers), start)


@pytest.mark.parametrize("target", [ALL_REDUCE, COMPUTATION_ALONE], ids=lambda target: target.name)
def test_no_modifier_changes_what_it_is_given(context, target):
    emission = begun(caramel.ARModel(context, 2, postponed=["weights"]))
    for modifier in target.modifiers:
        given = (emission.graph.to_bytes(), dict(emission.roles), dict(emission.pieces), emission.saved)
        changed = modifier(emission)
        assert (emission.graph.to_bytes(), dict(emission.roles), dict(emission.pieces), emission.saved) == given
        assert (changed.model, changed.plan, changed.pipeline) == (emission.model, emission.plan, emission.pipeline)
        emission = changed
    assert (
        emission.graph.to_bytes()
        == emit(target, begun(caramel.ARModel(context, 2, postponed=["weights"]))).graph.to_bytes()
    )


def average_from_worker_0(emission):
    """A toy: every worker's updates use the gradients of worker 0's examples."""
    changed = {}
    for gradient in emission.model.gradients:
        for rank in range(1, emission.plan.workers):
            for name in gradient.consumers:
                there = emission.graph[replica_name(rank, name)]
                mine = replica_name(rank, gradient.tensor.partition(":")[0])
                texts = [t.replace(mine, mine.replace(f"worker_{rank}", "worker_0", 1)) for t in there.input]
                changed[there.name] = copied(there, texts)
    return emission.extended([], changed)


def test_a_target_of_ones_own_needs_no_edit_of_the_others(context):
    with caramel.capture() as captured:
        x = tf.compat.v1.placeholder(tf.float32, [None, 2], name="x")
        w = tf.compat.v1.get_variable("w", [2, 1], initializer=tf.compat.v1.zeros_initializer())
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - 1.0))
        tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    toy = Target("gradients of worker 0", (replicate, average_from_worker_0, add_state))
    plan = replace(caramel.ARModel(captured, 2).plan, transfers=(), weighted=False)
    distributed = distribute(toy, captured, Emission.initial(captured.model, plan))
    batch = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]], np.float32)
    with Session(distributed, caramel.InProcess()) as session:
        session.step({"x": batch})
        trained = session.values()["w"]
    first = batch[:2]
    expected = -0.1 * 2 * (first.T @ (first @ np.zeros((2, 1)) - 1.0)) / 2
    np.testing.assert_allclose(trained, expected, rtol=1e-6)
    assert distributed.target.name == toy.name
    assert own_name(1, "step") in distributed.emission.graph
